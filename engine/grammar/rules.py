"""Grammars: named nodes that may contain each other.

    root     "{" "next" ":" (rest | "null") "}"          rest     <root>

A grammar without recursion is a regular expression: `inlined` puts the rules into each other. What can never end, such
as a rule that always contains itself, is cut out by `cleaned`.
"""

from __future__ import annotations

from engine.core.grammar_protocol import GrammarError
from engine.grammar.regex import EMPTY, Characters, Choice, Graph, Node, Repeat, Rule, Sequence

Rules = dict[str, Node]
ROOT = "root"
_SURROGATES = (0xD800, 0xDFFF)


class RecursionFoundError(GrammarError):
    """A rule that contains itself where a regular expression is needed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the rule {name} contains itself")
        self.name = name


def cleaned(rules: Rules) -> Rules:
    """Return the rules without choices that never end. Raises GrammarError if nothing is left."""
    alive: set[str] = set()
    while more := {name for name, node in rules.items() if name not in alive and _ends(node, alive)}:
        alive |= more
    if ROOT not in alive:
        raise GrammarError("no value satisfies it, so no output could; leave out what contradicts the rest")
    kept: Rules = {}
    todo = [ROOT]
    while todo:
        name = todo.pop()
        if name not in kept:
            kept[name] = node = _pruned(rules[name], alive)
            todo += named(node)
    return kept


def inlined(rules: Rules) -> Node:
    """Return the root with each rule in its place. Raises RecursionFoundError if a rule contains itself."""
    done: dict[str, Node] = {}
    open_: set[str] = set()

    def of(name: str) -> Node:
        if name not in done:
            if name in open_:
                raise RecursionFoundError(name)
            open_.add(name)
            done[name] = replaced(rules[name])
            open_.discard(name)
        return done[name]

    def replaced(node: Node) -> Node:
        match node:
            case Rule():
                return of(node.name)
            case Sequence():
                return Sequence(tuple(map(replaced, node.parts)))
            case Choice():
                return Choice(tuple(map(replaced, node.options)))
            case Repeat():
                return Repeat(replaced(node.body), node.least, node.most)
            case Graph():
                return Graph(tuple(tuple((replaced(n), t) for n, t in row) for row in node.moves), node.ends)
        return node

    return of(ROOT)


def _ends(node: Node, alive: set[str]) -> bool:
    """Whether some text matches, with the rules that are known to match one."""
    match node:
        case Characters():
            return any(first < _SURROGATES[0] or last > _SURROGATES[1] for first, last in node.ranges)
        case Sequence():
            return all(_ends(part, alive) for part in node.parts)
        case Choice():
            return any(_ends(option, alive) for option in node.options)
        case Repeat():
            return node.least == 0 or _ends(node.body, alive)
        case Graph():
            return 0 in _useful(node, alive)
    return node.name in alive


def _useful(graph: Graph, alive: set[str]) -> set[int]:
    """Return the states from which an end is reached."""
    sources: dict[int, list[int]] = {}
    for state, moves in enumerate(graph.moves):
        for node, target in moves:
            if _ends(node, alive):
                sources.setdefault(target, []).append(state)
    seen, todo = set(graph.ends), list(graph.ends)
    while todo:
        for state in sources.get(todo.pop(), ()):
            if state not in seen:
                seen.add(state)
                todo.append(state)
    return seen


def _pruned(node: Node, alive: set[str]) -> Node:
    """Return a node that ends, without the parts that do not."""
    match node:
        case Sequence():
            return Sequence(tuple(_pruned(part, alive) for part in node.parts))
        case Choice():
            options = tuple(_pruned(option, alive) for option in node.options if _ends(option, alive))
            return options[0] if len(options) == 1 else Choice(options)
        case Repeat():
            if not _ends(node.body, alive) or node.most == 0:
                return EMPTY
            return Repeat(_pruned(node.body, alive), node.least, node.most)
        case Graph():
            return _pruned_graph(node, alive)
    return node


def _pruned_graph(graph: Graph, alive: set[str]) -> Node:
    useful = _useful(graph, alive)
    numbers: dict[int, int] = {0: 0}
    order = [0]
    moves: list[tuple[tuple[Node, int], ...]] = []
    for state in order:  # grows
        row = []
        for node, target in graph.moves[state]:
            if target in useful and _ends(node, alive):
                if target not in numbers:
                    numbers[target] = len(order)
                    order.append(target)
                row.append((_pruned(node, alive), numbers[target]))
        moves.append(tuple(row))
    return Graph(tuple(moves), frozenset(numbers[state] for state in graph.ends if state in numbers))


def named(node: Node) -> list[str]:
    """Return the names of the rules in a node."""
    match node:
        case Rule():
            return [node.name]
        case Sequence():
            return [name for part in node.parts for name in named(part)]
        case Choice():
            return [name for option in node.options for name in named(option)]
        case Repeat():
            return named(node.body)
        case Graph():
            return [name for row in node.moves for inner, _ in row for name in named(inner)]
    return []
