"""`prep app`: start the workbench in the browser. Streamlit runs on this machine until Ctrl-C."""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import webbrowser
from pathlib import Path
from subprocess import DEVNULL
from typing import Annotated

from app.cli import terminal
from app.cli.options import option
from prep_common.child_process import ChildProcess

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "app" / "debugger" / "entry" / "workbench.py"
START_SECONDS = 60
HOME = "runs"
"""The page whose URL path is empty, as Streamlit requires for the default page."""
SETTINGS = {
    "server.headless": "true",
    "server.address": "127.0.0.1",
    "server.fileWatcherType": "none",
    "server.showEmailPrompt": "false",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    "logger.level": "error",
    "runner.magicEnabled": "false",
    "theme.dark.primaryColor": "#56B4E9",
    "theme.dark.backgroundColor": "#0b1020",
    "theme.dark.secondaryBackgroundColor": "#111827",
    "theme.dark.textColor": "#e5e7eb",
    "theme.light.primaryColor": "#0a62a0",
    "theme.light.backgroundColor": "#ffffff",
    "theme.light.secondaryBackgroundColor": "#f3f5f9",
    "theme.light.textColor": "#131c2b",
}


def app(
    trace: Annotated[Path | None, option("Open this trace file.", metavar="FILE")] = None,
    attach: Annotated[str | None, option("Attach to a running engine: the URL that it printed.")] = None,
    page: Annotated[str, option("Page to open: runs, step, metrics, …")] = "",
    step: Annotated[int, option("Step to open the trace at.", min=0)] = 0,
    port: Annotated[int, option("Port on 127.0.0.1; 0: a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, option("Open the browser.")] = True,
) -> None:
    """Open the visual debugger: block table and batch, step by step, forwards and backwards.

    Runs on this machine only (127.0.0.1), needs no model for recorded runs, and ends with Ctrl-C.

    \b
    Examples:
      prep app
      prep app --trace run.itrace --step 418
      prep app --attach http://127.0.0.1:PORT/?token=…
    """
    check_installed()
    parameters = {}
    if page:
        from app.debugger.main import PAGES  # half a second, and rarely asked for

        if page not in PAGES:
            raise terminal.Problem(f"unknown page {page!r}", f"the pages are {', '.join(PAGES)}")
    if trace is not None:
        if not trace.is_file():
            raise terminal.Problem(
                f"there is no file {trace}", "prep trace record --help   shows how to make one"
            )
        parameters = {"run": f"file:{trace.resolve()}", **({"step": str(step)} if step else {})}
    elif attach is not None:
        from app.debugger.live.client import LiveError, Port

        try:
            Port(attach)  # the page Live shows whether an engine answers
        except LiveError as error:
            raise terminal.Problem(str(error)) from error
        parameters = {"attach": attach}
    serve(parameters, page or ("step" if trace else "live" if attach else ""), port, browser)


def check_installed() -> None:
    """Raise a Problem if the libraries of the workbench are not installed."""
    terminal.need_libraries(
        "the workbench needs", ("streamlit", "altair", "httpx", "prometheus_client"), "app", "app"
    )


@terminal.signals_interrupt()
def serve(parameters: dict[str, str], page: str, port: int, browser: bool) -> None:
    """Run the server in the foreground until Ctrl-C."""
    check_installed()
    port = _free_port(port)
    args = ["run", str(SCRIPT), "--server.port", str(port)]
    for name, value in SETTINGS.items():
        args += [f"--{name}", value]
    environment = {}
    kind, _, trace = parameters.get("run", "").partition(":")
    if kind == "file":
        environment["PREP_APP_TRACE"] = trace  # read while the browser starts
    server = ChildProcess(
        "app.debugger.server",
        name="the server",
        args=args,
        environment=environment,
        stop_signal=signal.SIGTERM,
        stdout=DEVNULL,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )
    try:
        _wait_until_healthy(server, port)
        suffix = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        url = f"http://127.0.0.1:{port}/{'' if page == HOME else page}{suffix}"
        print(url, flush=True)
        terminal.err().print("[dim]the workbench runs until Ctrl-C[/]")
        if page in ("", HOME):
            how = "open Memory pressure: it begins where blocks run out; b leads to the next time"
            terminal.err().print(f"[dim]first:[/] {how}")
        if browser:
            webbrowser.open(url)
        code = server.exit_code(timeout=None)
        raise terminal.Problem(f"the server ended unexpectedly with code {code}", code=terminal.CHECKS_FAILED)
    except KeyboardInterrupt:
        terminal.err().print("[dim]stopped[/]")
    finally:
        server.close()


def _end_with_parent() -> None:
    """Run in the server process before it starts: the kernel then ends it when this command dies, even by kill -9."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _wait_until_healthy(server: ChildProcess, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    with terminal.loading("the workbench"):
        while time.monotonic() < deadline:
            if not server.is_running:
                raise terminal.Problem(
                    f"the server did not start (code {server.exit_code()})",
                    f"prep app --port 0   takes a free port, if {port} is not free",
                    code=terminal.ENVIRONMENT,
                )
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
    raise terminal.Problem(f"the server did not answer within {START_SECONDS} s", code=terminal.ENVIRONMENT)


def _free_port(port: int) -> int:
    """Return a free port for 0. Any other is checked, because another workbench on it would answer instead."""
    with socket.socket() as probe:
        if port:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise terminal.Problem(
                f"port {port} cannot be used: {error.strerror or error}",
                "prep app --port 0   takes a free one",
                code=terminal.ENVIRONMENT,
            ) from error
        return int(probe.getsockname()[1])
