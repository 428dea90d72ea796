"""Read from the source which module imports which, also inside functions and behind TYPE_CHECKING."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("prep_common", "kernels", "engine", "quizzes", "lessons", "interview", "app")

Graph = dict[str, set[str]]


def modules(packages: Iterable[str] = PACKAGES, root: Path = ROOT) -> dict[str, Path]:
    """Every module of these packages by its dotted name."""
    paths = [path for package in packages for path in (root / package).rglob("*.py")]
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def imported(tree: ast.Module, package: list[str]) -> Iterator[str]:
    """Names that a module of a package imports anywhere: `a.b` for `import a.b` and for `from a import b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def module_of(name: str, paths: dict[str, Path]) -> str:
    """Return the longest start of a dotted name that is a module; "" if there is none."""
    while name and name not in paths:
        name = name.rpartition(".")[0]
    return name


def import_graph(paths: dict[str, Path], root: Path = ROOT) -> Graph:
    """Module -> the modules that it imports."""
    graph = {}
    for name, path in paths.items():
        package = list(path.relative_to(root).parts[:-1])
        names = imported(ast.parse(path.read_text()), package)
        graph[name] = {module_of(each, paths) for each in names} - {name, ""}
    return graph


def reachable(graph: Graph, start: str) -> set[str]:
    """Return `start` and what it leads to."""
    seen, todo = {start}, [start]
    while todo:
        new = graph.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return seen


def reversed_graph(graph: Graph) -> Graph:
    back: Graph = {}
    for name, targets in graph.items():
        for target in targets:
            back.setdefault(target, set()).add(name)
    return back
