"""The prefix tree: blocks shared by requests, with common prefixes of sequences drawn once, at the left.

    | system prompt            | question A | answer A      |   a
    |                          | question B | answer B |        b     one rectangle per run of blocks with the same
    |                          |------------|                        owners; its width is their number
    | another prompt  | ...                                   c

A node is a run of consecutive contents (`contents.Key`) that are held by the same requests and do not branch. Its
depth is the index of its first block, so equal depth means equal position in the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from app.debugger.views.contents import Contents, Key, Place
from engine.trace.blocks import NULL_BLOCK

State = Literal["shared", "used", "cached", "gone"]
"""Held by several requests; held by one; free but published; neither held nor published, but with children."""


@dataclass
class Node:
    """A run of blocks. `contents` and `blocks` are equally long."""

    depth: int
    contents: list[Key]
    blocks: list[tuple[int, ...]]
    """The blocks that hold each content: one; two if it was computed twice; none if it was evicted."""
    owners: tuple[int, ...]
    """Numbers of the running requests that hold all its contents."""
    state: State
    place: Place
    """Index of its first content in the sequence."""
    children: list[Node] = field(default_factory=list)

    @property
    def every_block(self) -> list[int]:
        """The physical blocks, in the order of the contents."""
        return [block for copies in self.blocks for block in copies]

    @property
    def num_blocks(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def num_refs(self) -> int:
        """Number of references to its blocks: the blocks needed without sharing."""
        return len(self.owners) * len(self.contents)

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class _Content:
    """One content, before runs are merged."""

    place: Place
    parent: Key | None
    owners: set[int] = field(default_factory=set)
    blocks: set[int] = field(default_factory=set)
    children: list[Key] = field(default_factory=list)

    @property
    def state(self) -> State:
        if self.owners:
            return "shared" if len(self.owners) > 1 else "used"
        return "cached" if self.blocks else "gone"


def prefix_tree(contents: Contents, with_cached: bool = True) -> list[Node]:
    """The roots, sorted by blocks saved through sharing, then by size. `with_cached`: include free cached blocks."""
    by_key: dict[Key, _Content] = {}
    for number, table in contents.tables.items():
        _add(contents, by_key, Place(number, len(table) - 1), number)
    if with_cached:
        for value, block in contents.block_of.items():
            place = None if block in contents.owners else contents.sealed_by(block)
            if place is not None:
                _add(contents, by_key, place, None, value)
                by_key[value].blocks.add(block)
    roots = [key for key, content in by_key.items() if content.parent is None]
    trees = [_run(by_key, key) for key in roots]

    def saved_and_size(tree: Node) -> tuple[int, int]:
        saved = sum(node.num_refs - node.num_blocks for node in tree.walk() if node.owners)
        return saved, sum(node.num_blocks for node in tree.walk())

    return sorted(trees, key=saved_and_size, reverse=True)


def _add(
    contents: Contents, by_key: dict[Key, _Content], end: Place, owner: int | None, last: Key | None = None
) -> None:
    """Add a sequence up to and including a place, whose key is `last` if known. Without an owner, stop at contents that
    were already added."""
    table = contents.tables.get(end.number, []) if owner is not None else []
    after: Key | None = None
    for index in range(end.index, -1, -1):
        place = Place(end.number, index)
        key = last if last is not None and index == end.index else contents.key(place)
        content = by_key.get(key)
        is_new = content is None
        if content is None:
            content = by_key[key] = _Content(place, None)
        if after is not None and by_key[after].parent is None:
            by_key[after].parent = key
            content.children.append(after)
        if owner is not None:
            if table[index] != NULL_BLOCK:  # not behind the sliding window
                content.owners.add(owner)
                content.blocks.add(table[index])
        elif not is_new:
            return
        after = key


def _run(by_key: dict[Key, _Content], key: Key) -> Node:
    """The node that begins with a content, and its children."""
    first = by_key[key]
    node = Node(first.place.index, [], [], tuple(sorted(first.owners)), first.state, first.place)
    while True:
        content = by_key[key]
        node.contents.append(key)
        node.blocks.append(tuple(sorted(content.blocks)))
        if len(content.children) != 1:
            break
        after = by_key[content.children[0]]
        if after.owners != content.owners or after.state != content.state:
            break
        key = content.children[0]
    node.children = [_run(by_key, child) for child in content.children]
    node.children.sort(key=lambda child: (-len(child.owners), child.owners, child.place))
    return node


@dataclass(frozen=True)
class Box:
    """A node on the chart: columns [left, right) are blocks of the sequence, [top, bottom) are rows."""

    node: Node
    left: int
    right: int
    top: int
    bottom: int


def icicle(trees: list[Node], max_rows: int) -> tuple[list[Box], int]:
    """The boxes of the trees that fit into `max_rows`, and the number of trees that do not."""
    boxes: list[Box] = []
    row = 0
    for position, tree in enumerate(trees):
        if row and row + _num_leaves(tree) > max_rows:
            return boxes, len(trees) - position
        row = _place(tree, row, boxes)
    return boxes, 0


def _place(node: Node, top: int, boxes: list[Box]) -> int:
    """Place a tree at row `top`; returns the row below it."""
    at = len(boxes)
    bottom = top
    for child in node.children:
        bottom = _place(child, bottom, boxes)
    bottom = max(bottom, top + 1)
    boxes.insert(at, Box(node, node.depth, node.depth + len(node.contents), top, bottom))
    return bottom


def _num_leaves(node: Node) -> int:
    return sum(map(_num_leaves, node.children)) or 1
