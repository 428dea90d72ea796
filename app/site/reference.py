"""Pages of the API reference: one per package whose `__init__` exports names. Nothing is imported."""

from __future__ import annotations

import ast

from app.site.pages import Tree, relative

PACKAGES = ("engine", "kernels", "quizzes", "lessons", "interview", "app", "prep_common")


def exported(source: str) -> list[str]:
    """Return the names that the source of an `__init__` exports.

    They are those of `__all__` and imports of the form `from x import A as A`; without either, the public functions,
    classes and constants that it defines.
    """
    listed: list[str] = []
    defined: list[str] = []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            listed += [alias.name for alias in node.names if alias.asname == alias.name]
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if "__all__" in names and isinstance(getattr(node, "value", None), ast.List):
            listed += ast.literal_eval(node.value)  # type: ignore[attr-defined]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        defined += [name for name in names if not name.startswith("_")]
    return sorted(dict.fromkeys(listed or defined), key=str.lower)


def exports(tree: Tree) -> dict[str, list[str]]:
    """Return package -> names that it exports, for packages that export any."""
    by_package = {}
    files = [file for file in sorted(tree.files) if file.endswith("/__init__.py")]
    for top in PACKAGES:
        for file in files:
            package = file.removesuffix("/__init__.py").replace("/", ".")
            if package.partition(".")[0] != top:
                continue
            if names := exported((tree.root / file).read_text(encoding="utf-8")):
                by_package[package] = names
    return by_package


def reference_pages(tree: Tree) -> dict[str, str]:
    """Return path on the site -> Markdown of the reference, which mkdocstrings completes."""
    by_package = exports(tree)
    pages = {"api/README.md": index(tree, by_package)}
    for package, names in by_package.items():
        page = f"api/{package}.md"
        folder = package.replace(".", "/")
        source = (tree.root / folder / "__init__.py").read_text(encoding="utf-8")
        place = tree.place(folder)
        assert place is not None
        head = f"# {package}\n\n{ast.get_docstring(ast.parse(source)) or ''}\n\n"
        about = f"The folder: [{folder}]({relative(page, place)}).\n\n"
        pages[page] = head + about + "\n\n".join(f"::: {package}.{name}" for name in names) + "\n"
    return pages


def index(tree: Tree, objects: dict[str, list[str]]) -> str:
    """Return the first page of the reference: each package with its names."""
    rows = ["| package | exports |", "|---|---|"]
    for package, names in objects.items():
        links = ", ".join(f"[{name}]({package}.md#{package}.{name})" for name in names)
        rows.append(f"| [{package}]({package}.md) | {links} |")
    folders = []
    for folder in sorted({package.partition(".")[0] for package in objects}):
        place = tree.place(folder)
        assert place is not None
        folders.append(f"[{folder}]({relative('api/README.md', place)})")
    intro = "The names that packages export, from their docstrings. Start with `from engine import LLM`."
    below = f"The pages of the folders describe the rest: {', '.join(folders)}."
    return f"# API reference\n\n{intro} {below}\n\n" + "\n".join(rows) + "\n"
