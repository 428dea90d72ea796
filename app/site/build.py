"""Gather the pages of a checkout, let mkdocs render them, and put the result into a folder.

Broken links and missing anchors are errors. The site has no scripts, fonts or pictures of other hosts, and opens from a
server of this machine or from a disk (without search, for which browsers want a server).
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from app.site.lessons import notebook_page
from app.site.pages import PICTURES, Tree, source_page, title, translate
from app.site.reference import PACKAGES, reference_pages

STYLE = Path(__file__).with_name("style.css")
LISTING = ".prep-site.json"
"""File of a built site that lists the site's files: only these are replaced by the next build."""
SECTIONS = {
    "Start": ("README.md", "docs/"),
    "Engine": ("engine/", "kernels/"),
    "Practise": ("lessons/", "quizzes/", "interview/"),
    "Workbench": ("app/", "deploy/", "prep_common/"),
    "Develop": ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "tests/"),
    "API": ("api/",),
}
"""Section of the navigation -> pages, by the start of their paths."""


class SiteError(Exception):
    """The site cannot be built: what is wrong, one finding per line."""


def build_site(root: Path, output: Path) -> int:
    """Build the site of the checkout `root` into the folder `output`, and return the number of pages.

    Files that another build put there are replaced; other files stay. Raises SiteError for a broken link or anchor, a
    folder with files of others, or a tree that is not a git checkout.
    """
    refuse_foreign(output)
    with tempfile.TemporaryDirectory() as scratch:
        pages, built = Path(scratch) / "pages", Path(scratch) / "site"
        count = gather(Tree(root, tracked(root, output)), pages)
        render(root, pages, built)
        publish(built, output)
    return count


def tracked(root: Path, output: Path | None = None) -> list[str]:
    """Return the files of the checkout that git tracks or would add, without those of a site in `output`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if listed.returncode or not (root / "README.md").exists():
        raise SiteError(f"{root} is not a git checkout, from whose pages the site is built")
    names = dict.fromkeys(listed.stdout.splitlines())
    site = output and output.resolve()
    return [name for name in names if (root / name).is_file() and site not in (root / name).resolve().parents]


def gather(tree: Tree, pages: Path) -> int:
    """Write every page of the site as Markdown, with the pictures, into the folder `pages`. Return their number."""
    texts = {
        file: (tree.root / file).read_text(encoding="utf-8")
        for file in sorted(tree.files)
        if file.endswith(".md") and not file.startswith(".")
    }
    for file in sorted(tree.files):
        if file.endswith("/lesson.ipynb"):
            page = file.replace(".ipynb", ".md")
            number = Path(file).parent.name[1:3]
            texts[page] = notebook_page(tree.root / file, number, pages / Path(file).parent / "pictures")
    texts |= reference_pages(tree)
    for page, text in texts.items():
        write(pages / page, translate(tree, page, text))
    shown: set[str] = set()
    while left := [path for path in tree.linked if path not in shown]:  # a folder's page links its files
        for path in left:
            shown.add(path)
            place = tree.place(path)
            assert place is not None
            write(pages / place, source_page(tree, path))
    for file in tree.files:
        if file.endswith(PICTURES):
            (pages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree.root / file, pages / file)
    write(pages / "assets" / STYLE.name, STYLE.read_text(encoding="utf-8"))
    return len(texts) + len(shown)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def navigation(pages: Path) -> list[dict[str, Any]]:
    """Return the navigation for mkdocs: sections, and pages in them by folder. Pages of sources are not in it."""
    names = (str(path.relative_to(pages).with_suffix("")) for path in pages.rglob("*.md"))
    listed = [f"{name}.md" for name in sorted(names, key=rank) if not name.startswith("source/")]
    return [
        {section: nested([page for start in starts for page in listed if page.startswith(start)], pages)}
        for section, starts in SECTIONS.items()
    ]


def rank(page: str) -> tuple[int, str]:
    """Return the key that sorts pages: by name, and those of the reference as it lists packages."""
    package = re.split(r"[/.]", page)[1] if page.startswith("api/") else ""
    return PACKAGES.index(package) if package in PACKAGES else -1, page


def nested(paths: list[str], pages: Path) -> list[dict[str, Any]]:
    """Return entries for pages; the pages of one folder that has several become a group with its README.md first."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        top = "labs" if path.startswith("lessons/labs/") else path.partition("/")[0]
        groups.setdefault(top, []).append(path)
    entries: list[dict[str, Any]] = []
    for top, group in groups.items():
        group.sort(key=lambda path: not path.endswith(f"{top}/README.md"))
        items = [{label(path, pages): path} for path in group]
        flat = len(groups) == 1 or len(items) == 1 or top == "docs"
        entries += items if flat else [{top: items}]
    return entries


def label(path: str, pages: Path) -> str:
    """Return the name of a page in the navigation: a README.md has its folder's."""
    folder, _, name = path.rpartition("/")
    if name == "README.md":
        return folder.replace("_", " ") if folder else "prep"
    text = title((pages / path).read_text(encoding="utf-8"), path)
    return text.partition(": what an interviewer")[0]


def render(root: Path, pages: Path, built: Path) -> None:
    """Let mkdocs render `pages` into `built`. Raises SiteError with all warnings if there are any."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import MkDocsException

    from app.site.settings import settings

    (pages.parent / "mkdocs.yml").write_text("", encoding="utf-8")
    findings = Findings()
    logger = logging.getLogger("mkdocs")
    logger.addHandler(findings)
    try:
        made = settings(root) | {"docs_dir": str(pages), "site_dir": str(built), "nav": navigation(pages)}
        config = load_config(config_file=str(pages.parent / "mkdocs.yml"), **made)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
    except MkDocsException as error:
        findings.lines.append(str(error))
    finally:
        logger.removeHandler(findings)
    if findings.lines:
        raise SiteError("\n".join(findings.lines))


class Findings(logging.Handler):
    """The warnings of a build."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def refuse_foreign(output: Path) -> None:
    """Raise SiteError if the folder holds files and no build made it: a build must not replace a reader's files."""
    if output.exists() and (
        not output.is_dir() or (any(output.iterdir()) and not (output / LISTING).exists())
    ):
        raise SiteError(f"{output} holds files that `prep site build` did not write; choose a new folder")


def publish(built: Path, output: Path) -> None:
    """Replace the files that an earlier build wrote into `output` by those in `built`."""
    listing = output / LISTING
    before = json.loads(listing.read_text(encoding="utf-8")) if listing.exists() else []
    now = sorted(str(path.relative_to(built)) for path in built.rglob("*") if path.is_file())
    shutil.copytree(built, output, dirs_exist_ok=True)
    for name in set(before) - set(now):
        (output / name).unlink(missing_ok=True)
    listing.write_text(json.dumps(now), encoding="utf-8")
