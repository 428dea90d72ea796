"""No circles of imports, counting those inside functions and behind TYPE_CHECKING, which import-linter leaves out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from tests.import_graph import Graph, import_graph, imported, modules, reachable, reversed_graph


def circles(graph: Graph) -> Iterator[frozenset[str]]:
    """The sets of modules that import each other; each is yielded once."""
    graph = {name: set(targets) for name, targets in graph.items()}
    while True:
        try:
            TopologicalSorter(graph).prepare()
            return
        except CycleError as error:
            start = error.args[1][0]
        circle = frozenset(reachable(graph, start) & reachable(reversed_graph(graph), start))
        yield circle
        for name in circle:
            graph[name] -= circle


def test_modules_do_not_import_each_other() -> None:
    found = list(circles(import_graph(modules())))
    assert not found, [sorted(circle) for circle in found]


def test_circles_are_found_also_behind_type_checking() -> None:
    source = "if TYPE_CHECKING:\n    from a.b import C\ndef f():\n    import d.e\n    from . import g"
    assert set(imported(ast.parse(source), ["p"])) == {"a.b.C", "d.e", "p.g"}
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert set(circles(graph)) == {frozenset("abc"), frozenset("de")}
