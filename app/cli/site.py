"""`prep site`: build the documentation site from the checkout, and show it on this machine."""

from __future__ import annotations

import http.server
import tempfile
import webbrowser
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from app.cli import terminal
from app.cli.options import option
from prep_common.text import counted

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("mkdocs", "material", "mkdocstrings_handlers")


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, without a line on stderr per request."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def make(output: Path) -> int:
    """Build the site, and return the number of pages. Raises Problem with what is wrong in the pages."""
    terminal.need_libraries("the site needs", LIBRARIES, "site", "site")
    from app.site.build import SiteError, build_site

    try:
        with terminal.loading("the pages"):
            return build_site(ROOT, output)
    except SiteError as error:
        raise terminal.Problem(str(error), code=terminal.CHECKS_FAILED) from error


def build(output: Annotated[Path, option("Folder of the site.", metavar="DIR")]) -> None:
    """Write the site into a folder. A broken link or anchor is an error.

    \b
    Example: prep site build --output runs/site
    """
    pages = make(output)
    print(f"{counted(pages, 'page')} in {output}")
    terminal.next_command(f"prep site serve --folder {terminal.shown(output)}")


@terminal.signals_interrupt()
def serve(
    folder: Annotated[Path | None, option("A site that is built already.", metavar="DIR")] = None,
    port: Annotated[int, option("Port on 127.0.0.1; 0: a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, option("Open the browser.")] = True,
) -> None:
    """Build the site, and show it on this machine (127.0.0.1) until Ctrl-C.

    \b
    Example: prep site serve --port 8080
    """
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "site"
            make(folder)
        elif not (folder / "index.html").is_file():
            raise terminal.Problem(f"{terminal.shown(folder)} holds no site", "prep site build --output DIR")
        try:
            server = http.server.ThreadingHTTPServer(
                ("127.0.0.1", port), partial(Quiet, directory=str(folder))
            )
        except OSError as error:
            raise terminal.Problem(
                f"port {port} cannot be used: {error.strerror or error}",
                "prep site serve --port 0   takes a free one",
                code=terminal.ENVIRONMENT,
            ) from error
        url = f"http://127.0.0.1:{stack.enter_context(server).server_port}/"
        print(url, flush=True)
        terminal.err().print("[dim]the site is shown until Ctrl-C[/]")
        if browser:
            webbrowser.open(url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            terminal.err().print("[dim]stopped[/]")


site = terminal.command_app(
    build, serve, help="Build and show the documentation: pages, lessons, sources, API reference."
)
