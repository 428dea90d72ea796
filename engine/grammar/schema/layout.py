r"""Layout of JSON texts: where whitespace may stand and how much, and how many digits a number may have.

A model that may write whitespace without end often does. So between two tokens there is at most one line break and
`most_spaces` spaces or tabs after it, or a few spaces without one: what `json.dumps` writes with any indentation.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.grammar.regex import EMPTY, Characters, Graph, Node, Rule, Sequence, literal

MAX_WHITESPACE = 20
"""Spaces and tabs after a line break, by default."""
MAX_DIGITS, MOST_DIGITS = 19, 100
"""Digits of a number before its point: by default, and at most."""
SPACE_RULE = "space"


@dataclass(frozen=True)
class Layout:
    """Style of JSON. is_compact: no whitespace between tokens."""

    is_compact: bool = False
    max_whitespace: int = MAX_WHITESPACE
    max_digits: int = MAX_DIGITS

    @property
    def between(self) -> Node:
        return EMPTY if self.is_compact else Rule(SPACE_RULE)

    @property
    def comma(self) -> Node:
        return literal(",") if self.is_compact else Sequence((self.between, literal(","), self.between))

    @property
    def colon(self) -> Node:
        return literal(":") if self.is_compact else Sequence((self.between, literal(":"), self.between))

    def enclosed(self, opening: str, body: Node, closing: str) -> Node:
        """Return the text of a container."""
        return Sequence((literal(opening), self.between, body, self.between, literal(closing)))

    def rules(self) -> dict[str, Node]:
        """Return the rule of whitespace."""
        if self.is_compact or not self.max_whitespace:
            return {SPACE_RULE: EMPTY}
        blank, ends = Characters(((9, 9), (32, 32))), range(self.max_whitespace + 1)
        line: list[tuple[tuple[Node, int], ...]] = [((blank, n + 1),) for n in ends[1:-1]]
        first = ((literal(" "), ends[-1]), (literal("\n"), 1), (literal("\r\n"), 1))
        return {SPACE_RULE: Graph((first, *line, ()), frozenset(ends))}

    def several(self, item: Node) -> Node:
        """Return at least one item, with commas between them; one copy of the item, however deep it is."""
        return Graph((((item, 1),), ((self.comma, 0),)), frozenset({1}))
