"""The documentation site: how pages are translated, and (slow) every link, name and host of the built pages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.site.build import LISTING, SiteError, build_site, tracked
from app.site.lessons import notebook_page
from app.site.pages import Tree, source_page, translate
from app.site.reference import exported
from engine.server.child_server import PREP, ChildServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
COUNTED = ("h1", "h2", "h3", "h4", "li", "table", "tr", "pre", "blockquote")


def small_tree(folder: Path, **files: str) -> Tree:
    """Write a git checkout of a few files; `__` in a name stands for a slash, and each file has its suffix."""
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name, text in {"README_md": "# Start\n", **files}.items():
        path = folder / re.sub(r"_(?=[a-z]+$)", ".", name.replace("__", "/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(folder, tracked(folder))


def test_a_link_keeps_its_meaning(tmp_path: Path) -> None:
    tree = small_tree(
        tmp_path, a__README_md="# A\n", a__code_py="1\n", b__two_md="# Two\n", c__x_py="", a__p_svg="<svg/>"
    )
    pairs = {
        "[two](../b/two.md#part)": "[two](../b/two.md#part)",
        "[code](code.py)": "[code](../source/a/code.py.md)",
        "[a](../a)": "[a](README.md)",
        "[c](../c)": "[c](../source/c/README.md)",
        "![p](p.svg)": "![p](p.svg)",
        "`a/code.py`": "[`a/code.py`](../source/a/code.py.md)",
        "`b/none.py`": "`b/none.py`",
        "[see `a/code.py`](code.py)": "[see `a/code.py`](../source/a/code.py.md)",
        "[web](https://vllm.ai)": "[web](https://vllm.ai)",
        "```\n[code](code.py)\n```\n": "```\n[code](code.py)\n```\n",
    }
    for on_github, on_site in pairs.items():
        assert translate(tree, "a/README.md", on_github) == on_site
    assert set(tree.linked) == {"a/code.py", "c"}


def test_a_list_after_a_paragraph_is_a_list(tmp_path: Path) -> None:
    text = translate(small_tree(tmp_path), "README.md", "Three:\n* one\n* two\n  more\n* three\n")
    assert text == "Three:\n\n* one\n* two\n  more\n* three\n"


def test_a_source_page_shows_what_is_in_the_file(tmp_path: Path) -> None:
    tree = small_tree(tmp_path, a__x_py='"""Fence: ``` inside. More."""\n', a__data_yaml="answer: 1\n")
    assert '````python linenums="1"\n"""Fence' in source_page(tree, "a/x.py")
    listed = source_page(tree, "a")
    assert "[`x.py`](x.py.md) | Fence: ``` inside. |" in listed and "| `data.yaml` |" in listed


def test_exported_names_are_those_a_reader_may_import() -> None:
    assert exported("from a import B as B\nfrom a import C\n") == ["B"]
    assert exported("__all__ = ['x']\n__all__ += ['Y']\ndef z(): ...\n") == ["x", "Y"]
    assert exported("def f(): ...\nclass _G: ...\nH: int = 1\nimport os\n") == ["f", "H"]


def test_a_lesson_shows_its_cells_and_what_they_printed(tmp_path: Path) -> None:
    picture = {"data": {"image/png": "aGk=", "text/plain": "[plot]"}}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Why"]},
        {"cell_type": "code", "source": "print(1)", "outputs": [{"text": ["1\n"]}, picture]},
    ]
    (tmp_path / "lesson.ipynb").write_text(json.dumps({"cells": cells}))
    text = notebook_page(tmp_path / "lesson.ipynb", "07", tmp_path / "pictures")
    for part in (
        "# Title\nWhy",
        "lesson open 07",
        "```python\nprint(1)\n```",
        "\n1\n```",
        "(pictures/1-1.png)",
    ):
        assert part in text
    assert (tmp_path / "pictures" / "1-1.png").read_bytes() == b"hi"


@pytest.mark.parametrize(
    ("page", "finding"),
    [
        ("[x](none.md)", "none.md"),
        ("[x](#none)", "#none"),
        ("[x](a/two.md#none)", "#none"),
        ("![x](n.svg)", "n.svg"),
    ],
)
def test_a_broken_link_is_an_error_that_names_it(tmp_path: Path, page: str, finding: str) -> None:
    small_tree(tmp_path / "tree", README_md=f"# Start\n\n{page}\n", a__two_md="# Two\n")
    with pytest.raises(SiteError, match=re.escape(finding)):
        build_site(tmp_path / "tree", tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_build_replaces_its_own_files_only(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree", a__two_md="# Two\n")
    site = tmp_path / "site"
    build_site(tmp_path / "tree", site)
    assert (site / "a" / "two.html").exists()
    (site / "live.html").write_text("another part of the site")
    (tmp_path / "tree" / "a" / "two.md").unlink()
    build_site(tmp_path / "tree", site)
    assert not (site / "a" / "two.html").exists() and (site / "live.html").exists()
    (site / LISTING).unlink()
    with pytest.raises(SiteError, match="choose a new folder"):
        build_site(tmp_path / "tree", site)


def test_a_folder_without_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="is not a git checkout"):
        build_site(tmp_path, tmp_path / "site")


class Page(HTMLParser):
    """Ids, links and tags of a built page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.tags: Counter[str] = Counter()
        self._article = self._code_table = False
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "article":
            self._article = True
        if self._article:
            self.tags[tag] += 1
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("link", "script", "img", "iframe", "source"):
            if values.get("rel") not in ("canonical", "prev", "next"):
                self.loaded += [values[name] for name in ("href", "src") if name in values]

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._article = False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this checkout, built by the command."""
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "app.cli.main", "site", "build", "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.match(r"\d{3,} pages in ", done.stdout)
    return folder


@cache
def page_of(file: Path) -> Page:
    return Page(file)


@pytest.mark.slow
def test_no_link_of_the_site_is_broken(site: Path) -> None:
    broken = []
    assert sum(1 for _ in site.rglob("*.html")) > 300
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages <= {page.stem for page in (site / "docs").glob("*.html")}
    for file in site.rglob("*.html"):
        if file.name == "404.html":  # its links are absolute, because it appears at any address
            continue
        page = page_of(file)
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = Path(os.path.normpath(file.parent / unquote(parts.path))) if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            missing = anchor and target.suffix == ".html" and anchor not in page_of(target).ids
            if not target.is_file() or missing:
                broken.append(f"{file.relative_to(site)}: {link}")
    assert not broken, f"{len(broken)}:\n" + "\n".join(broken[:30])


@pytest.mark.slow
def test_no_page_loads_anything_of_another_host(site: Path) -> None:
    foreign = [
        f"{file.relative_to(site)}: {address}"
        for file in site.rglob("*.html")
        for address in page_of(file).loaded
        if urlsplit(address).netloc
    ]
    for file in site.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)", file.read_text())
        foreign += [f"{file.relative_to(site)}: {address}" for address in addresses]
    assert not foreign, "\n".join(foreign[:30])


@pytest.mark.slow
def test_the_reference_has_every_name_that_a_package_exports(site: Path) -> None:
    inits = [
        name for name in tracked(ROOT) if name.endswith("/__init__.py") and not name.startswith("tests/")
    ]
    seen = 0
    for init in inits:
        package = init.removesuffix("/__init__.py").replace("/", ".")
        source = (ROOT / init).read_text()
        names = set(re.findall(r"import (\w+) as \1$", source, re.MULTILINE))
        names |= set(getattr(import_module(package), "__all__", ())) if "__all__" in source else set()
        for name in names:
            page = page_of(site / "api" / f"{package}.html")
            assert f"{package}.{name}" in page.ids, f"{package}.{name}"
        seen += len(names)
    assert seen > 80


@pytest.mark.slow
def test_pages_have_the_headings_lists_and_tables_that_github_shows(site: Path) -> None:
    """markdown-it reads as GitHub does; Python-Markdown, which renders the site, has other rules for lists."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark").enable("table")
    for name in tracked(ROOT):
        if not name.endswith(".md") or name.startswith("."):
            continue
        tokens = reader.parse((ROOT / name).read_text())
        told = Counter(token.tag for token in tokens if token.nesting == 1)
        told["pre"] = sum(token.type in ("fence", "code_block") for token in tokens)
        html = re.sub(r"(^|/)README\.md$", r"\1index.md", name).removesuffix(".md") + ".html"
        shown = page_of(site / html).tags
        assert {tag: shown[tag] for tag in COUNTED} == {tag: told[tag] for tag in COUNTED}, name


@pytest.mark.slow
def test_the_site_is_served_and_asks_no_other_host(site: Path, browser: Browser) -> None:
    arguments = ["site", "serve", "--no-browser", "--folder", str(site)]
    with ChildServer(PREP, args=arguments, name="prep site", path="/index.html") as server:
        tab = browser.new_page()
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        for page in ("index.html", "lessons/l07_paged_kv/lesson.html", "api/engine.html"):
            tab.goto(f"{server.url}/{page}")
            tab.wait_for_load_state("networkidle")
        # The search reads its field when a key is released; `fill` releases none.
        tab.locator("input.md-search__input").press_sequentially("preemption")
        tab.locator(".md-search-result__item").first.wait_for()
        assert not [url for url in asked if not url.startswith((server.url, "data:", "blob:"))]
        tab.close()


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_what_is_no_site_is_not_served(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no site")
    result = CliRunner().invoke(app, ["site", "serve", "--no-browser", "--folder", str(tmp_path / name)])
    assert result.exit_code == 2
    assert "holds no site" in result.stderr and "prep site build" in result.stderr
