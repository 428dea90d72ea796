"""Format question and claim files: lines of at most 110 columns, short mappings on one line, long texts folded.

    formatted(text)       the same document in the format of the bank; formatting it again changes nothing
    long_lines(text)      lines that the formatter cannot break: code of an exhibit, for instance

Keys keep their order, comments their place, short strings their quotes, and block mappings stay blocks. A flow mapping
that does not fit becomes a block. Values stay equal, except for line breaks inside the paragraphs of a literal text
(`|`), which no display shows; those of an exhibit are content.
"""

import json
import re
from functools import cache
from typing import Any, NamedTuple

import yaml

WIDTH = 120
"""Columns of a line."""
_SHORT = 24
"""Columns of an item in a flow sequence that may continue on the next line."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_VERBATIM = "exhibit"
"""The key whose text is shown line by line, so that its line breaks are content."""
_ALONE = re.compile(r"\s*$|   |[|]")
"""A line that is not filled: blank, indented, or of a table."""
_ITEM = re.compile(r"\s*([-*]|\d+\.) ")
_WORD = re.compile(r"(?:\{\{.*?\}\}|\{%.*?%\}|\S)+")
_LOOP = re.compile(r"\{%-? *(for|set) ")


class _Comment(NamedTuple):
    line: int
    text: str
    alone: bool
    """Whether the line holds nothing else."""


def formatted(text: str) -> str:
    """Return the document in the bank's format. Raises yaml.YAMLError for text that is not YAML."""
    root = yaml.compose(text, Loader=_LOADER)
    if root is None:
        return text
    new = "\n".join(_Writer(_comments(text)).document(root)) + "\n"
    kept = [comment.text for comment in _comments(new)] == [comment.text for comment in _comments(text)]
    if _data(new) != _data(text) or not kept:
        raise yaml.YAMLError("the formatter would change the content; format this file by hand")
    return new


def long_lines(text: str) -> list[int]:
    """Return the numbers of the lines over 120 columns, from 1."""
    return [number for number, line in enumerate(text.splitlines(), 1) if len(line) > WIDTH]


def _data(text: str) -> Any:
    """Return the document's content: lists of pairs for mappings, one space for white space in filled texts."""

    def normal(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return [(name, normal(entry, name)) for name, entry in value.items()]
        if isinstance(value, list):
            return [normal(entry) for entry in value]
        fills = isinstance(value, str) and "\n" in value and key != _VERBATIM
        return (" ".join(value.split()), value[-1:]) if fills else value

    return normal(yaml.load(text, Loader=_LOADER))


def _comments(text: str) -> list[_Comment]:
    """Return the comments: every # at a line's start or after a space, outside of the scalars."""
    if "#" not in text:
        return []
    inside: set[int] = set()
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.ScalarEvent):
            inside.update(range(event.start_mark.index + 1, event.end_mark.index))
    comments = []
    for match in re.finditer(r"(?:^|(?<=[ \t]))#.*$", text, re.MULTILINE):
        start = text.rfind("\n", 0, match.start()) + 1
        if match.start() not in inside:
            alone = not text[start : match.start()].strip()
            comments.append(_Comment(text.count("\n", 0, match.start()), match[0].rstrip(), alone))
    return comments


class _Writer:
    """Writes nodes as lines; a comment goes before, or behind, the entry that it stands at."""

    def __init__(self, comments: list[_Comment]) -> None:
        self.comments = comments

    def document(self, root: yaml.Node) -> list[str]:
        lines = self._block(root, 0) if isinstance(root, yaml.CollectionNode) else [_inline(root) or ""]
        return lines + [comment.text for comment in self.comments]

    def _block(self, node: yaml.CollectionNode, indent: int) -> list[str]:
        """The entries of a mapping or a sequence, one below the other."""
        lines = []
        for entry in node.value:
            if isinstance(node, yaml.MappingNode):
                key, value = entry
                head = f"{_inline(key)}:"
            else:
                key, value, head = entry, entry, "-"
            line = key.start_mark.line
            while self.comments and self.comments[0].line < line:
                lines.append(" " * indent + self.comments.pop(0).text)
            behind = ""
            if self.comments and self.comments[0].line == line and not self.comments[0].alone:
                behind = "  " + self.comments.pop(0).text
            written = self._entry(" " * indent + head, value, indent, key.value if head != "-" else "")
            lines += [written[0] + behind, *written[1:]]
        return lines

    def _entry(self, head: str, node: yaml.Node, indent: int, key: str) -> list[str]:
        """`head`, which ends in a colon or a dash, and the value behind or below it."""
        if isinstance(node, yaml.ScalarNode):
            return _scalar(head, node, indent + 2, fills=key != _VERBATIM)
        has_comments = any(
            node.start_mark.line <= comment.line < node.end_mark.line for comment in self.comments
        )
        if not node.value or (node.flow_style and not has_comments):
            if (line := _flow(node)) is not None and len(head) + 1 + len(line) <= WIDTH:
                return [f"{head} {line}"]
            if isinstance(node, yaml.SequenceNode):
                items = [_flow(item) for item in node.value]
                if all(item is not None and len(item) <= _SHORT for item in items):
                    words = [f"{item}," for item in items]
                    words = [f"[{words[0]}", *words[1:-1], f"{items[-1]}]"]
                    return _fill(words, indent + 2, head)
        below = self._block(node, indent + 2)
        return [f"{head} {below[0].lstrip()}", *below[1:]] if head.endswith("-") else [head, *below]


def _flow(node: yaml.Node) -> str | None:
    """The node on one line; None for a text of several lines."""
    if isinstance(node, yaml.ScalarNode):
        return _inline(node, flow=True)
    if isinstance(node, yaml.SequenceNode):
        items = [_flow(item) for item in node.value]
    else:
        values = [_flow(value) for _, value in node.value]
        items = [v and f"{_inline(k, flow=True)}: {v}" for (k, _), v in zip(node.value, values, strict=True)]
    if any(item is None for item in items):
        return None
    body = ", ".join(item for item in items if item is not None)
    return f"[{body}]" if isinstance(node, yaml.SequenceNode) else f"{{{body}}}"


def _inline(node: yaml.ScalarNode, *, flow: bool = False) -> str | None:
    """A scalar on one line, in its own quotes where it has some; None for a text of several lines."""
    value = str(node.value)
    if not node.tag.endswith(":str"):
        return value or "null"
    if "\n" in value:
        return None
    if node.style == "'":
        return "'" + value.replace("'", "''") + "'"
    if node.style != '"' and _needs_no_quotes(value, flow):
        return value
    return json.dumps(value, ensure_ascii=False)


@cache
def _needs_no_quotes(value: str, flow: bool) -> bool:
    try:
        read = yaml.load(f"[{value}]" if flow else f"k: {value}", Loader=_LOADER)
        return read in ([value], {"k": value})
    except yaml.YAMLError:
        return False


def _scalar(head: str, node: yaml.ScalarNode, indent: int, *, fills: bool) -> list[str]:
    """On the line of `head` where it fits in quotes, else as a folded text, or as a literal one if it was one."""
    inline, value = _inline(node), str(node.value)
    fits = len(head) + 1 + len(json.dumps(value, ensure_ascii=False)) <= WIDTH
    if inline is not None and (fits or not node.tag.endswith(":str")):
        return [f"{head} {inline}"]
    body = value.rstrip("\n")
    chomp = {0: "-", 1: ""}.get(len(value) - len(body), "+")
    lines = body.split("\n")
    if node.style != "|" and all(
        line and not line.startswith((" ", "\t")) for line in re.split(r"\n+", body)
    ):
        folded = [part for line in lines for part in [*_fill(re.split(r"(?<=\S) (?=\S)", line), indent), ""]]
        return [f"{head} >{chomp}", *folded[:-1]]
    if fills:
        lines = _fill_paragraphs(lines, indent)
    leading = "2" if lines[0].startswith(" ") else ""
    return [f"{head} |{leading}{chomp}", *(" " * indent + line if line else "" for line in lines)]


def _fill_paragraphs(lines: list[str], indent: int) -> list[str]:
    """Fill paragraphs and list items. Blank and indented lines, tables and template loops stay as they are."""
    groups: list[list[str]] = []
    for line in lines:
        if not groups or _ALONE.match(line) or _ITEM.match(line) or _ALONE.match(groups[-1][0]):
            groups.append([line])
        else:
            groups[-1].append(line)
    filled: list[str] = []
    for group in groups:
        joined = " ".join(line.strip() for line in group)
        if _ALONE.match(group[0]) or _LOOP.search(joined):
            filled += group
            continue
        words: list[str] = []
        for word in _WORD.findall(joined):
            if words and _ITEM.match(word + " "):  # at a line's start it would look like a list item
                words[-1] += f" {word}"
            else:
                words.append(word)
        hanging = 2 if _ITEM.match(group[0]) else 0
        first, *rest = _fill(words, indent + hanging)
        filled += [first.strip(), *(line[indent:] for line in rest)]
    return filled


def _fill(words: list[str], indent: int, head: str = "") -> list[str]:
    """Lines of words between `indent` and WIDTH, the first behind `head`."""
    lines = [head] if head else []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(" " * indent + word)
    return lines
