r"""Write grammars in the notation of xgrammar (GBNF).

Repeat(Characters 0-9, 1, 3)      [\U00000030-\U00000039]{1,3}
Graph  0 -"a"-> 1, end 1          g0 ::= "a" g1        g1 ::= ""
"""

from __future__ import annotations

import json

from engine.core.grammar_protocol import GrammarError
from engine.grammar.regex import Characters, Choice, Graph, Node, Repeat, Rule, Sequence
from engine.grammar.rules import Rules

MAX_CHARACTERS = 4_000_000
"""Length of a grammar. The library takes about a second per million."""


def ebnf(rules: Rules) -> str:
    """Return the grammar as text. Raises GrammarError if it is too long."""
    writer = _Writer()
    for name, node in rules.items():
        writer.add(name, writer.text(node))
    return "\n".join(writer.lines)


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._length = 0
        self._num_graphs = 0

    def add(self, name: str, body: str) -> None:
        line = f"{name} ::= {body}"
        self._length += len(line)
        if self._length > MAX_CHARACTERS:
            raise GrammarError(
                f"the grammar is longer than {MAX_CHARACTERS:,} characters: it is too large; lower its counts"
            )
        self.lines.append(line)

    def text(self, node: Node) -> str:
        match node:
            case Rule():
                return node.name
            case Characters():
                return _class(node)
            case Sequence():
                return _joined(node, self) or '""'
            case Choice():
                return "(" + " | ".join(map(self.text, node.options)) + ")"
            case Repeat():
                return self._repeat(node)
            case Graph():
                return self._graph(node)

    def _repeat(self, node: Repeat) -> str:
        body = f"({self.text(node.body)})"
        match node.least, node.most:
            case 0, None:
                return f"{body}*"
            case 1, None:
                return f"{body}+"
            case 0, 1:
                return f"{body}?"
        return f"{body}{{{node.least},{'' if node.most is None else node.most}}}"

    def _graph(self, graph: Graph) -> str:
        self._num_graphs += 1
        prefix = f"g{self._num_graphs}_"
        for state, moves in enumerate(graph.moves):
            options = [f"{self.text(node)} {prefix}{target}" for node, target in moves]
            self.add(f"{prefix}{state}", " | ".join(options + ['""'] * (state in graph.ends)))
        return f"{prefix}0"


def _joined(node: Sequence, writer: _Writer) -> str:
    """Return the parts, with neighbouring single characters as one text in quotes."""
    written: list[str] = []
    text = ""
    for part in _flat(node):
        if isinstance(part, Characters) and len(part.ranges) == 1 and part.ranges[0][0] == part.ranges[0][1]:
            text += chr(part.ranges[0][0])
            continue
        if text:
            written.append(_quoted(text))
            text = ""
        written.append(writer.text(part))
    return " ".join([*written, *([_quoted(text)] if text else [])])


def _flat(node: Sequence) -> list[Node]:
    return [inner for part in node.parts for inner in (_flat(part) if isinstance(part, Sequence) else [part])]


def _quoted(text: str) -> str:
    if all(32 <= ord(character) < 127 for character in text):
        return json.dumps(text)
    return '"' + "".join(_point(ord(character)) for character in text) + '"'


def _class(node: Characters) -> str:
    ranges = []
    for first, last in node.ranges:  # surrogates are not characters
        ranges += [(first, min(last, 0xD7FF)), (max(first, 0xE000), last)]
    return "[" + "".join(_point(a) + (f"-{_point(b)}" if a < b else "") for a, b in ranges if a <= b) + "]"


def _point(point: int) -> str:
    return f"\\U{point:08x}"
