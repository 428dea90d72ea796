"""Translate a page of the tree, which reads well on GitHub, into a page of the site.

A relative link keeps its meaning: to a page, it leads to that page; to a picture, to its copy; to a notebook, to the
rendered lesson; to a folder, to its README.md; to any other file or folder, to a page below `source/` that shows it. A
path in backticks that exists in the tree becomes a link, too.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path

FENCED = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[ \t]*$\n?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?P<target>[^)\s]+)\)|(?P<code>`[^`\n]+`)")
LIST = re.compile(r"(?m)^(?!\s|[*+-] |\d+\. |\||>)(.*\S.*)\n(?=(?:[*+-]|1\.) )")
"""A line of a paragraph, then the start of a list: Python-Markdown wants an empty line between them."""
PICTURES = (".svg", ".png", ".webp")
LANGUAGES = {
    ".cu": "cpp",
    ".cuh": "cpp",
    ".h": "cpp",
    ".js": "javascript",
    ".md": "markdown",
    ".py": "python",
}
CODE = (".py", ".md", ".cpp", ".h", ".cu", ".cuh", ".js", ".css")
"""Suffixes that a folder's page links; it only names other files, such as YAML with answers."""
LARGEST = 200_000
"""Bytes of the largest file that is shown; of a larger one, its page says the size."""


class Tree:
    """The files of a checkout, where each is on the site, and which sources the pages have linked so far."""

    def __init__(self, root: Path, files: list[str]) -> None:
        self.root = root
        self.files = frozenset(files)
        self.folders = frozenset(str(folder) for file in files for folder in Path(file).parents)
        self.linked: dict[str, None] = {}

    def place(self, path: str) -> str | None:
        """Return the path on the site of a file or folder of the tree; None if there is none."""
        if path in self.folders:
            readme = os.path.normpath(f"{path}/README.md")
            if readme in self.files:
                return readme
            self.linked[path] = None
            return f"source/{path}/README.md"
        if path not in self.files:
            return None
        if path.endswith((".md", *PICTURES)):
            return path
        if path.endswith("/lesson.ipynb"):
            return path.replace(".ipynb", ".md")
        self.linked[path] = None
        return f"source/{path}.md"

    def link(self, page: str, target: str) -> str:
        """Return a link of `page` for the site. One that leads nowhere in the tree stays, and fails the build."""
        if "://" in target or target.startswith(("#", "mailto:")):
            return target
        path, hash_, anchor = target.partition("#")
        place = self.place(os.path.normpath(os.path.join(os.path.dirname(page), path)))
        return relative(page, place) + hash_ + anchor if place else target

    def path_of(self, page: str, code: str) -> str | None:
        """Return the file of the tree that a path in backticks means, from the root or beside the page; or None."""
        for base in ("", os.path.dirname(page)):
            path = os.path.normpath(os.path.join(base, code))
            if "/" in code and (path in self.files or path in self.folders):
                return path
        return None


def relative(page: str, place: str) -> str:
    return os.path.relpath(place, os.path.dirname(page) or ".")


def translate(tree: Tree, page: str, text: str) -> str:
    """Return the Markdown of a page for the site: links, paths in backticks, and lists after a paragraph."""

    def replace(match: re.Match[str]) -> str:
        if match["code"]:
            path = tree.path_of(page, match["code"].strip("`").rstrip("/"))
            place = tree.place(path) if path else None
            return f"[{match['code']}]({relative(page, place)})" if place and place != page else match["code"]
        return f"{match['text']}({tree.link(page, match['target'])})"

    return outside_fences(text, lambda prose: LINK.sub(replace, LIST.sub(r"\1\n\n", prose)))


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to the parts of a text between fenced code blocks."""
    parts, end = [], 0
    for match in FENCED.finditer(text):
        parts += [change(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, change(text[end:])])


def source_page(tree: Tree, path: str) -> str:
    """Return a page that shows a file, or lists a folder that has no README.md."""
    head = f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n"
    if path in tree.folders:
        return head + folder_table(tree, path)
    size = (tree.root / path).stat().st_size
    try:
        text = (tree.root / path).read_text(encoding="utf-8") if size <= LARGEST else ""
    except UnicodeDecodeError:
        text = ""
    if not text:
        return f"{head}{size:,} bytes, not shown here.\n"
    suffix = os.path.splitext(path)[1]
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return (
        f'{head}{fence}{LANGUAGES.get(suffix, suffix[1:] or "sh")} linenums="1"\n{text.rstrip()}\n{fence}\n'
    )


def folder_table(tree: Tree, folder: str) -> str:
    """Return a table of what is in a folder: name, and the first sentence of a module's docstring."""
    page = f"source/{folder}/README.md"
    inside = {
        file[len(folder) + 1 :].partition("/")[0] for file in tree.files if file.startswith(f"{folder}/")
    }
    rows = ["| file | |", "|---|---|"]
    for name in sorted(inside):
        path = f"{folder}/{name}"
        shown = path in tree.folders or name.endswith(CODE)
        place = tree.place(path) if shown else None
        cell = f"[`{name}`]({relative(page, place)})" if place else f"`{name}`"
        rows.append(f"| {cell} | {summary(tree.root / path)} |")
    return "\n".join(rows) + "\n"


def summary(path: Path) -> str:
    """Return the first sentence of the docstring of a module or package; "" without one."""
    module = path / "__init__.py" if path.is_dir() else path
    if module.suffix != ".py" or not module.exists():
        return ""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return escape_cell(re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0])


def escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")


def title(text: str, otherwise: str) -> str:
    """Return the first heading of a page without its markup."""
    match = re.search(r"(?m)^# +(.+)$", text)
    return match[1].replace("`", "") if match else otherwise
