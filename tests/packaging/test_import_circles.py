"""No circles of imports, counting those inside functions and behind TYPE_CHECKING, which import-linter leaves out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "kernels", "engine", "quizzes", "lessons", "interview", "app")

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Every module of the project by its dotted name."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def imported(source: str, package: list[str]) -> Iterator[str]:
    """Names that a module of a package imports anywhere: `a.b` for `import a.b` and for `from a import b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def import_graph(paths: dict[str, Path]) -> Graph:
    def target(name: str) -> str:
        while name and name not in paths:
            name = name.rpartition(".")[0]
        return name

    graph = {}
    for name, path in paths.items():
        package = list(path.relative_to(ROOT).parts[:-1])
        graph[name] = {target(each) for each in imported(path.read_text(), package)} - {name, ""}
    return graph


def circles(graph: Graph) -> Iterator[frozenset[str]]:
    """The sets of modules that import each other; each is yielded once."""
    graph = {name: set(targets) for name, targets in graph.items()}
    while True:
        try:
            TopologicalSorter(graph).prepare()
            return
        except CycleError as error:
            start = error.args[1][0]
        circle = frozenset(_reachable(graph, start) & _reachable(_reversed(graph), start))
        yield circle
        for name in circle:
            graph[name] -= circle


def _reachable(graph: Graph, start: str) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        new = graph.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return seen


def _reversed(graph: Graph) -> Graph:
    back: Graph = {}
    for name, targets in graph.items():
        for target in targets:
            back.setdefault(target, set()).add(name)
    return back


def test_modules_do_not_import_each_other() -> None:
    found = list(circles(import_graph(modules())))
    assert not found, [sorted(circle) for circle in found]


def test_circles_are_found_also_behind_type_checking() -> None:
    source = "if TYPE_CHECKING:\n    from a.b import C\ndef f():\n    import d.e\n    from . import g"
    assert set(imported(source, ["p"])) == {"a.b.C", "d.e", "p.g"}
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert set(circles(graph)) == {frozenset("abc"), frozenset("de")}
