"""The page Blocks shows what the engine's objects were, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from app.debugger.pages.blocks import MAX_TEXT, MAX_TEXT_BLOCKS, node_text
from app.debugger.views.contents import Contents, Place
from app.debugger.views.one_block import chain, history, last_touch
from app.debugger.views.prefix_tree import icicle, prefix_tree
from app.debugger.views.texts import shortened
from engine.trace.reader import TraceReader
from tests.trace.trace_workloads import Run, Snapshot, random_run

SEEDS = (0, 2, 3, 5, 7, 9)
"""Runs with and without sliding window, host tier, priorities and preemptions."""


class Case(NamedTuple):
    run: Run
    reader: TraceReader
    parents: dict[str, str | None]
    """Hash -> the hash before it in the engine's own chains; None after the root."""

    def steps(self) -> Iterator[tuple[int, Snapshot, Contents]]:
        digests: dict[int, list[bytes]] = {}
        for step in range(0, len(self.run.snapshots), 5):
            yield step, self.run.snapshots[step], Contents(self.reader, step, digests)

    def ancestors(self, block_hash: str) -> list[str]:
        """Root first, the hash itself last."""
        found: list[str] = []
        at: str | None = block_hash
        while at is not None:
            found.append(at)
            at = self.parents[at]
        return found[::-1]


@pytest.fixture(scope="module", params=SEEDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    run = random_run(tmp_path_factory.mktemp("run") / "run.itrace", request.param)
    parents: dict[str, str | None] = {}
    for each in run.requests:
        hashes = [block_hash.hex()[:16] for block_hash in each.block_hashes]
        parents.update(zip(hashes, [None, *hashes], strict=False))
    return Case(run, TraceReader(run.path), parents)


def test_chains_are_those_of_the_engine(case: Case) -> None:
    num_links = 0
    for _, snapshot, contents in case.steps():
        block_of = {value: block for block, value in enumerate(snapshot.hashes) if value}
        for value, block in block_of.items():
            found = chain(contents, block)
            assert found is not None
            expected = case.ancestors(value)
            assert found.place.index == len(expected) - 1
            for link, ancestor in zip(found.links, expected, strict=True):
                assert link.is_published == (ancestor in block_of)
                if link.is_published:
                    assert link.block == block_of[ancestor]
                    assert contents.blocks.hash_hex(link.block) == ancestor
                num_links += 1
            assert found.is_reachable == all(ancestor in block_of for ancestor in expected)
    assert num_links or not case.parents, "seed 9 caches nothing"


def test_children_are_the_blocks_whose_parent_is_this_one(case: Case) -> None:
    for _, snapshot, contents in case.steps():
        block_of = {value: block for block, value in enumerate(snapshot.hashes) if value}
        for value, block in block_of.items():
            found = chain(contents, block)
            assert found is not None
            published = {child for after, child in block_of.items() if case.parents[after] == value}
            assert published <= set(found.children)
            for child in set(found.children) - published:
                follows = [
                    (table, table.index(child)) for table in snapshot.tables.values() if child in table
                ]
                assert follows and snapshot.hashes[child] is None, (
                    "an unpublished content is in a block table"
                )


def test_owners_are_the_tables_that_hold_a_block(case: Case) -> None:
    for _, snapshot, contents in case.steps():
        held = {block for table in snapshot.tables.values() for block in table if block}
        assert set(contents.owners) == held
        for block, places in contents.owners.items():
            names = sorted(contents.reader.requests[place.number].request_id for place in places)
            assert names == sorted(name for name, table in snapshot.tables.items() if block in table)
            for place in places:
                assert (
                    snapshot.tables[contents.reader.requests[place.number].request_id][place.index] == block
                )


def test_the_tree_holds_every_block_once_where_its_owners_have_it(case: Case) -> None:
    for _, snapshot, contents in case.steps():
        nodes = [node for tree in prefix_tree(contents) for node in tree.walk()]
        blocks = [block for node in nodes for each in node.blocks for block in each]
        held = {block for table in snapshot.tables.values() for block in table if block}
        cached = {block for block, value in enumerate(snapshot.hashes) if value and not snapshot.refs[block]}
        assert len(blocks) == len(set(blocks))
        assert held <= set(blocks) <= held | cached
        assert {block for block in cached if contents.place(block)} <= set(blocks)
        assert sum(node.num_refs for node in nodes) == sum(map(bool, sum(snapshot.tables.values(), [])))
        for node in nodes:
            names = {contents.reader.requests[number].request_id for number in node.owners}
            for index, copies in enumerate(node.blocks, start=node.depth):
                holders = {
                    n
                    for n, t in snapshot.tables.items()
                    if index < len(t) and t[index] and t[index] in copies
                }
                assert holders == names
            assert (node.state in ("used", "shared")) == bool(names)


def test_runs_of_the_tree_end_where_owners_part(case: Case) -> None:
    for _, _, contents in case.steps():
        for tree in prefix_tree(contents):
            for node in tree.walk():
                for child in node.children:
                    assert child.depth == node.depth + len(node.contents)
                    assert set(child.owners) <= set(node.owners) or 0 in sum(contents.tables.values(), [])
                if len(node.children) == 1:
                    only = node.children[0]
                    assert (only.owners, only.state) != (node.owners, node.state), "one run, not two"


def test_a_nodes_text_is_that_of_its_blocks_without_control_characters(case: Case) -> None:
    for _, _, contents in case.steps():
        for tree in prefix_tree(contents):
            for node in tree.walk():
                places = [Place(node.place.number, node.depth + n) for n in range(len(node.contents))]
                tokens = [token for place in places[:MAX_TEXT_BLOCKS] for token in contents.tokens(place)]
                text = node_text(contents, node, None)
                assert text == shortened(" ".join(map(str, tokens)), MAX_TEXT)
                spelled = node_text(contents, node, lambda token: f"{token}\x07\u202e\n")
                assert spelled.isprintable() and len(spelled) <= MAX_TEXT


def test_boxes_do_not_overlap_and_lie_under_their_parents(case: Case) -> None:
    for _, _, contents in case.steps():
        trees = prefix_tree(contents)
        boxes, num_hidden = icicle(trees, max_rows=30)
        cells = [
            (x, y) for box in boxes for x in range(box.left, box.right) for y in range(box.top, box.bottom)
        ]
        assert len(cells) == len(set(cells))
        drawn = {id(box.node) for box in boxes}
        assert num_hidden == sum(id(tree) not in drawn for tree in trees)


def test_the_eviction_order_is_the_free_queue(case: Case) -> None:
    for _, snapshot, contents in case.steps():
        order = contents.eviction_order()
        hashes = contents.blocks.hash
        assert order == list(enumerate(snapshot.eviction_order, start=1))
        assert [bool(hashes[block]) for _, block in order] == [
            bool(snapshot.hashes[block]) for block in snapshot.eviction_order
        ]
        only = contents.eviction_order(only_cached=True)
        assert only == [free for free in order if hashes[free[1]]]
        for _, block in only:
            if (place := contents.place(block)) is not None:
                assert place.index == len(case.ancestors(str(snapshot.hashes[block]))) - 1


def test_history_leads_to_the_state_of_every_step(case: Case) -> None:
    for block in range(1, case.reader.num_blocks):
        events = history(case.reader, block)
        assert [event.step for event in events] == sorted(event.step for event in events)
        for step, snapshot in enumerate(case.run.snapshots):
            before = [event for event in events if event.step <= step]
            assert (before[-1].ref if before else 0) == snapshot.refs[block]
            assert (before[-1].hash_hex if before else None) == snapshot.hashes[block]


def test_tokens_of_a_block_are_those_whose_kv_was_computed(case: Case) -> None:
    size = case.reader.block_size
    for step, snapshot, contents in case.steps():
        for number, table in contents.tables.items():
            request = case.reader.requests[number]
            sequence = [*request.record["prompt"], *request.tokens][
                : snapshot.num_computed[request.request_id]
            ]
            for index, block in enumerate(table):
                if block and contents.owners[block][0].number == number:
                    place = contents.place(block)
                    assert place is not None
                    assert contents.tokens(place) == sequence[index * size : (index + 1) * size], (
                        step,
                        block,
                    )


def test_a_block_was_last_touched_when_somebody_computed_with_it_or_let_it_go(case: Case) -> None:
    for step, snapshot, contents in case.steps():
        for block in range(1, case.reader.num_blocks):
            touched = last_touch(contents, block)
            holders = {
                at
                for at, then in enumerate(case.run.snapshots[: step + 1])
                if any(block in table for table in then.tables.values())
            }
            if touched is None:
                assert not holders
            elif not snapshot.refs[block] and holders:
                assert touched >= max(holders)
