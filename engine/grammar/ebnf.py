r"""Write grammars in the notation of xgrammar (GBNF).

Repeat(Characters 0-9, 1, 3)      [\U00000030-\U00000039]{1,3}
Graph  0 -"a"-> 1, end 1          g0 ::= "a" g1        g1 ::= ""
Repeat(a-z | \n, 0, None)         [a-z]* (g1b [a-z]*)*        g1b ::= "\\n"
Repeat(a-z | \n, 0, 2) "!"        g1_2 ::= [a-z] g1_1 | g1b g1_1 | g1e       g1_0 ::= g1e       g1e ::= "!"

The last two are for speed. The library knows the masks inside a rule, but tries every token that passes the end of one,
and each round of ( | )* is a rule: 8 ms per mask of a string at 32,000 tokens, and none as written here. With {0,500}
it also follows each round written so far, up to 2 s per mask; a rule per count takes 9 ms once. Each character costs it
memory for all counts before, so counts come in blocks: g1_100 ::= <64 rounds> g1_36 | g1_63.
"""

from __future__ import annotations

import json

from engine.core.grammar_protocol import GrammarError
from engine.grammar.regex import Characters, Choice, Graph, Node, Repeat, Rule, Sequence, merged
from engine.grammar.rules import Rules

MAX_CHARACTERS = 4_000_000
"""Length of a grammar."""
BLOCK = 64
"""Rounds that are counted one by one; of larger counts, blocks of them are."""


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
        self._repeated: dict[tuple[Node, str], str] = {}
        """Prefix of the rules of what is repeated, by what follows it."""
        self._counts: set[str] = set()

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
        single, others = _parts(node.body)
        if single and not others:
            return f"{single}{_times(node.least, node.most)}"
        if single and (node.least, node.most) == (0, None):
            return f"{single}* ({self._rules_of(node.body)}b {single}*)*"
        if is_counted(node):
            return self.counted(node, '""')
        return f"({self.text(node.body)}){_times(node.least, node.most)}"

    def counted(self, node: Repeat, end: str) -> str:
        """Return a repeat and what follows it. A rule's name tells how many rounds must and may follow."""
        prefix, (single, _) = self._rules_of(node.body, end), _parts(node.body)
        todo = [(node.least, node.most)]
        for least, most in todo:  # grows
            name = _count_name(prefix, least, most)
            if name in self._counts:  # an earlier repeat has added it
                continue
            self._counts.add(name)
            if not least and not most:
                several = f"{single}* ({prefix}b {single}*)* " if most is None else ""
                self.add(name, f"{several}{prefix}e")
                continue
            size, rounds = 1, [single, f"{prefix}b"]
            if max(least, most or 0) > BLOCK:
                size, rounds = BLOCK, [self.counted(Repeat(node.body, BLOCK, BLOCK), '""')]
            after = [(max(0, least - size), None if most is None else most - size)]
            options = [f"{part} {_count_name(prefix, *after[0])}" for part in rounds]
            if least < size:  # it may end before
                after.append((least, size - 1))
                options.append(_count_name(prefix, *after[1]))
            todo += after
            self.add(name, " | ".join(options))
        return _count_name(prefix, node.least, node.most)

    def _rules_of(self, body: Node, end: str = "") -> str:
        """Add rules for what is repeated: b without its class, e for what follows. Returns their prefix."""
        if (body, end) not in self._repeated:
            self._num_graphs += 1
            prefix = self._repeated[body, end] = f"g{self._num_graphs}"
            self.add(f"{prefix}b", " | ".join(map(self.text, _parts(body)[1])))
            if end:
                self.add(f"{prefix}e", end)
        return self._repeated[body, end]

    def _graph(self, graph: Graph) -> str:
        self._num_graphs += 1
        prefix = f"g{self._num_graphs}_"
        for state, moves in enumerate(graph.moves):
            options = [f"{self.text(node)} {prefix}{target}" for node, target in moves]
            self.add(f"{prefix}{state}", " | ".join(options + ['""'] * (state in graph.ends)))
        return f"{prefix}0"


def _times(least: int, most: int | None) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return simple.get((least, most)) or f"{{{least},{'' if most is None else most}}}"


def _count_name(prefix: str, least: int, most: int | None) -> str:
    return f"{prefix}_" + (f"{least}_" if least else "") + ("more" if most is None else str(most))


def _parts(body: Node) -> tuple[str, list[Node]]:
    """Return the class of a repeated node, empty if it has none, and its other options."""
    options = _options(body)
    ranges = [span for option in options if isinstance(option, Characters) for span in option.ranges]
    others: list[Node] = [option for option in options if not isinstance(option, Characters)]
    return _class(Characters(merged(ranges))) if ranges else "", others


def _options(node: Node) -> list[Node]:
    return (
        [part for option in node.options for part in _options(option)] if isinstance(node, Choice) else [node]
    )


def is_counted(node: Node) -> bool:
    """Whether a node is written with one rule per count."""
    if not isinstance(node, Repeat) or node.most == 1 or (node.least, node.most) == (0, None):
        return False
    single, others = _parts(node.body)
    return bool(single and others)


def _joined(node: Sequence, writer: _Writer) -> str:
    """Return the parts, with neighbouring single characters as one text in quotes."""
    written: list[str] = []
    text = ""
    parts = _flat(node)
    for index, part in enumerate(parts):
        if isinstance(part, Characters) and len(part.ranges) == 1 and part.ranges[0][0] == part.ranges[0][1]:
            text += chr(part.ranges[0][0])
            continue
        if text:
            written.append(_quoted(text))
            text = ""
        if isinstance(part, Repeat) and is_counted(part) and parts[index + 1 :]:
            rest = _joined(Sequence(tuple(parts[index + 1 :])), writer)
            return " ".join([*written, writer.counted(part, rest)])
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
