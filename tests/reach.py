"""Find the tests that a change can reach: their source leads to a changed file, by imports, names and folders.

A file leads to
- what it imports. Of a package around that, only what it imports at once: `engine/__init__.py` knows `LLM`, and who
  imports `engine.core` does not get it;
- modules and files that it names: "engine.core", "app.cli.quiz:command", "docs/answers.md", and for a name that it puts
  together, f"lessons.{lab}.checks", to the folders of all modules with such names;
- all modules of its folder, if it looks for them at run time; a test that looks for files, also those of each folder
  that it names;
- all pages, if it is a test that names the pattern "*.md";
- the commands of `prep` that it names at the start of a text or behind `prep`, if it or what it leads to starts `prep`;
  a test also the fixtures of its folder.
A file to which nothing leads (data, the solution of a lab) belongs to the modules of the nearest folder above it that
has any, and to those above that; not to a module that imports none of ours and does not know its own place. What all
tests share (`SHARED`) leads everywhere.

This is read from the source, so a test that puts a name together can be missed: `prep test --all` runs everything, and
writes its commit to `last_green.json`, from which the next change counts.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.import_graph import PACKAGES, ROOT, Graph, imported, module_of, modules, reachable, reversed_graph

LAST_GREEN = Path(__file__).with_name("last_green.json")
"""Written by `prep test --all`: commit, date, seed and seconds of its last green run."""
SHARED = re.compile(r"pyproject\.toml|prep|\.ci/.*|environment\.yml|tests/[^/]*\.py|tests/.*/conftest\.py")
SELECTS = ("tests/conftest.py", "tests/reach.py", "tests/import_graph.py")
"""Files that select tests: they name every part, and use none."""
SILENT = ("tests/last_green.json", ".gitignore")
"""Files that no slow test reads."""
MARKDOWN = "*.md"
"""Node of the graph for all pages: a test that names this pattern reads them."""
LOOKS = frozenset({"glob", "rglob", "iterdir"})
"""Methods that find files by their names at run time."""
STARTS = ("subprocess", "prep_common.child_process", "multiprocessing")
"""Modules that start processes."""
PREP = "app/cli/main.py"
DOCUMENTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
PLACES = frozenset({"__file__", "__path__", "__package__", "__spec__"})
"""Names from which a module learns where the project lies."""
PATTERN = r"[a-z_]+\[\.\][\w\[\].+]*"
"""Pattern of the patterns of dotted names."""


class Change(NamedTuple):
    """Files that differ from the last green run of everything."""

    since: str
    files: frozenset[str]


def change(last_green: Path = LAST_GREEN, root: Path = ROOT) -> Change | None:
    """Return what changed since the last green run; None if that is not known, so that every test counts."""
    try:
        since = str(json.loads(last_green.read_text(encoding="utf-8"))["commit"])
        _git(root, "rev-parse", "--verify", "--end-of-options", f"{since}^{{commit}}")
        differ = _git(root, "diff", "--name-only", "--no-renames", since, "--")
        new = _git(root, "ls-files", "--others", "--exclude-standard")
    except (OSError, ValueError, KeyError, TypeError, subprocess.CalledProcessError):
        return None
    return Change(since, frozenset(differ + new) - set(SILENT))


def sentence(changed: Change | None, reached: frozenset[str] | None) -> str:
    """Say which slow tests run, and why."""
    if changed is None:
        return "slow tests: all, since no commit is known at which they passed"
    count = len(changed.files)
    since = f"{count} file{'s' * (count != 1)} changed since {changed.since[:10]}"
    if reached is None:
        return f"slow tests: all, since what all tests share is among the {since}"
    return f"slow tests: those of {len(reached)} test files; {since}"


def _git(root: Path, *arguments: str) -> list[str]:
    command = ["git", "-c", "core.quotePath=false", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def reached(files: Iterable[str], graph: Graph | None = None) -> frozenset[str] | None:
    """Return the test files, relative to the project, that lead to one of these files; None if all do."""
    if any(map(SHARED.fullmatch, files)):
        return None
    graph = leads() if graph is None else graph
    back = reversed_graph(graph)
    found = {
        test for file in files for start in _starts(file, graph, back) for test in reachable(back, start)
    }
    return frozenset(file for file in found if Path(file).name.startswith("test_") and file.endswith(".py"))


def _starts(file: str, graph: Graph, back: Graph) -> set[str]:
    """Return the file, its package, and if nothing leads to it, the modules of the nearest folders with any."""
    found = {file, around(file), MARKDOWN} if file.endswith(".md") else {file, around(file)}
    if Path(file).name.startswith("test_") or file in back and file in graph:
        return found
    known = {each for each in back.keys() & graph.keys() if blind(each) not in graph}
    for folder in list(Path(file).parents)[:-1]:
        if near := {each for each in known if Path(each).parent == folder}:
            above = {each for each in known if Path(each).parent == folder.parent}
            return found | near | above
    return found


def around(file: str) -> str:
    """Return the entry of a package for those that import a module inside it."""
    return f"around/{file}"


def blind(file: str) -> str:
    """Return the entry that marks a module as one that finds no other file."""
    return f"blind/{file}"


class Source:
    """Names in the source of a file."""

    def __init__(self, path: Path, root: Path) -> None:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):  # ruff, and pytest where a test imports it, say so
            tree = ast.Module([], [])
        nodes = list(ast.walk(tree))
        self.file = path.relative_to(root).as_posix()
        self.folder = str(Path(self.file).parent)
        self.package = list(Path(self.file).parts[:-1])
        self.imports = set(imported(tree, self.package))
        at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        self.at_once = set(imported(ast.Module(at_once, []), self.package))
        texts = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        ends = {id(node.right) for node in nodes if _path(node) and _path(node.left)}  # type: ignore[attr-defined]
        beside = {id(arg) for node in nodes if _is_with_name(node) for arg in node.args}  # type: ignore[attr-defined]
        self.words = {node.value for node in texts if id(node) not in ends | beside}
        self.words |= {path for node in nodes if (path := _path(node))}
        self.words |= {f"{self.folder}/{node.value}" for node in texts if id(node) in beside}
        """Texts, and paths that are put together."""
        documented = [tree, *(node for node in nodes if isinstance(node, DOCUMENTED))]
        said = {ast.get_docstring(node, clean=False) for node in documented}
        self.typed = {word for text in self.words - said for word in _typed(text)}
        """Words that can be a command of `prep`."""
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        texts = [node for node in nodes if isinstance(node, ast.JoinedStr)]
        self.patterns = {pattern for text in texts if re.fullmatch(PATTERN, pattern := _pattern(text))}
        """Names that are put together, such as lessons.*.checks for f"lessons.{lab}.checks"."""
        known = {node.id for node in nodes if isinstance(node, ast.Name)} | attributes
        self.looks = bool(attributes & LOOKS)
        self.names_itself = bool((known - attributes) & {"__package__", "__path__"})
        self.is_test = self.file.startswith("tests/")
        ours = any(name.partition(".")[0] in (*PACKAGES, "tests", "importlib") for name in self.imports)
        self.is_blind = not ours and not PLACES & known
        starts = any(name.startswith(STARTS) for name in self.imports)
        self.starts_prep = starts and "prep" in {word.rpartition("/")[2] for word in self.words}


def _pattern(text: ast.JoinedStr) -> str:
    """Return a pattern of the names that an f-string can make."""
    parts = (part.value if isinstance(part, ast.Constant) else None for part in text.values)
    return "".join(".+" if part is None else str(part).replace(".", "[.]") for part in parts)


def _typed(text: str) -> set[str]:
    """Return the first word of a text, and those behind `prep` in it."""
    words = text.split()
    starts = [after for before, after in pairwise(words) if before.endswith(("prep", "app.cli.main"))]
    return {*words[:1], *starts}


def _is_with_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "with_name"


def _path(node: ast.AST) -> str:
    """Return the end of a path that is put together: "guest/main.py" for `HERE / "guest" / "main.py"`."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return ""
    end = node.right.value if isinstance(node.right, ast.Constant) else None
    start = _path(node.left)
    return f"{start}/{end}".lstrip("/") if isinstance(end, str) else ""


def leads(root: Path = ROOT) -> Graph:
    """File -> the files to which it leads, all relative to `root`."""
    tree = Tree(root)
    graph = {source.file: tree.leads_of(source) for source in tree.sources if source.file not in SELECTS}
    graph |= {blind(source.file): set() for source in tree.sources if source.is_blind}
    packages = [source for source in tree.sources if source.file.endswith("/__init__.py")]
    graph |= {around(package.file): tree.imports(package.at_once) for package in packages}
    for file in reachable(reversed_graph(graph), PREP) & graph.keys() - {PREP}:
        graph[file] |= tree.commands(file)
    return graph


class Tree:
    """The Python files of the project, by module and by folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = modules((*PACKAGES, "tests"), root)
        self.files = {name: path.relative_to(root).as_posix() for name, path in self.paths.items()}
        self.sources = [Source(path, root) for path in self.paths.values()]
        self.of_file = {source.file: source for source in self.sources}
        self.below: dict[str, set[str]] = defaultdict(set)
        """Folder -> the Python files in it and below."""
        for file in self.files.values():
            for folder in list(Path(file).parents)[:-1]:
                self.below[str(folder)].add(file)

    def leads_of(self, source: Source) -> set[str]:
        """Return the files to which a file leads, but for the commands that it names."""
        found = self.imports(source.imports)
        if source.file != PREP:  # its table names every command
            found |= {file for word in source.words for file in self._named(word, source.folder)}
        if source.starts_prep:
            found.add(PREP)
        if source.is_test and MARKDOWN in source.words:
            found.add(MARKDOWN)
        if source.is_test:
            fixtures = f"{source.folder}/conftest.py"
            found |= {fixtures} & self.of_file.keys()
        names = {
            name for pattern in source.patterns for name in filter(re.compile(pattern).fullmatch, self.paths)
        }
        found |= self.imports(names)
        found |= {file for name in names for file in self.below[str(Path(self.files[name]).parent)]}
        folders = {source.folder} if source.names_itself else set()
        folders |= source.words if source.looks and source.is_test else set()
        found |= {file for folder in folders & self.below.keys() for file in self.below[folder]}
        return found - {source.file}

    def imports(self, names: Iterable[str]) -> set[str]:
        """Return the files of imported names, and the entries of the packages around them."""
        found = set()
        for name in names:
            module = module_of(name, self.paths)
            if module:
                found.add(self.files[module])
            while module := module_of(module.rpartition(".")[0], self.paths):
                found.add(around(self.files[module]))
        return found

    def commands(self, file: str) -> set[str]:
        """Return the modules of the commands that a test names, or another file that names prep's module itself."""
        source = self.of_file.get(file)
        if source is None or not (source.is_test or "app.cli.main" in source.words):
            return set()
        return {self.files[name] for word in source.typed if (name := f"app.cli.{word}") in self.files}

    def _named(self, word: str, folder: str) -> Iterator[str]:
        """Yield the modules and the files that a string names: "engine.core", "docs/answers.md", "main.py" beside."""
        name = word.partition(":")[0]
        if "." in name and name in self.paths:
            yield from self.imports([name])
        elif word.isprintable() and "." in word and len(word) < 200:
            yield from (file for file in (word, f"{folder}/{word}") if (self.root / file).is_file())
