"""JupyterLab in the foreground, on 127.0.0.1; its settings and records lie below the learner's folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import webbrowser
from pathlib import Path
from urllib.parse import quote

import psutil

from app.cli import terminal
from prep_common.child_process import PYTHON_M, ROOT, ChildProcess
from prep_common.paths import data_dir

SETTINGS = {
    "apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "notebook-extension/tracker": {"codeCellConfig": {"lineNumbers": False, "lineWrap": True}},
}
"""Settings of JupyterLab: no questions, no requests to other machines, no line cut off at the right edge."""


def check_installed() -> None:
    """Raise a Problem if the notebook libraries are not installed."""
    names = ("jupyterlab", "ipykernel", "ipywidgets", "matplotlib")
    terminal.need_libraries("notebooks need", names, "lesson", "lesson")


@terminal.signals_interrupt()
def serve(notebook: Path, *, port: int, browser: bool) -> None:
    """Open a notebook in JupyterLab: in the one that runs already, else in a new one until Ctrl-C."""
    check_installed()
    running = _running(notebook.parent)
    if running is not None:
        url = f"{running['url']}lab/tree/{quote(notebook.name)}?token={running['token']}"
        terminal.say(f"JupyterLab runs already: {url}", whole=True)
        if browser:
            webbrowser.open(url)
        return
    home = data_dir() / "jupyter"
    _write_settings(home / "settings")
    args = [
        "lab", str(notebook), f"--ServerApp.root_dir={notebook.parent}", f"--port={port or 8888}", "--port-retries=50",
        "--ServerApp.ip=127.0.0.1", "--ServerApp.log_level=ERROR", "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.extension_manager=readonly",
    ]  # fmt: skip
    if not browser:
        args.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        args.append("--allow-root")
    environment = {
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    server = ChildProcess(
        [*PYTHON_M, "jupyter", *args],
        name="JupyterLab",
        environment=environment,
        stop_signal=signal.SIGTERM,
        keep_stderr=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        _tell_address(server, notebook)
        code = server.exit_code(timeout=None)
        if code:
            raise terminal.Problem(
                f"JupyterLab ended with code {code}: {server.last_words() or 'no message'}",
                "prep lesson open --port 8899   uses another port",
                code=terminal.ENVIRONMENT,
            )
    except KeyboardInterrupt:
        terminal.err().print(f"[dim]stopped; what you saved is in {terminal.literal(notebook.parent)}[/]")
    finally:
        server.close()


def _tell_address(server: ChildProcess, notebook: Path) -> None:
    """Print the address once the server answers."""
    import time

    with terminal.loading("JupyterLab"):
        for _ in range(600):
            if not server.is_running or (running := _running(notebook.parent)) is not None:
                break
            time.sleep(0.1)
        else:
            raise terminal.Problem("JupyterLab did not start within a minute", code=terminal.ENVIRONMENT)
    if server.is_running and running is not None:
        url = f"{running['url']}lab/tree/{quote(notebook.name)}?token={running['token']}"
        print(url, flush=True)
        terminal.err().print("[dim]JupyterLab runs until Ctrl-C[/]")


def _running(folder: Path) -> dict[str, str] | None:
    """Return the record of a live server of ours that serves this folder."""
    for path in (data_dir() / "jupyter" / "runtime").glob("jpserver-*.json"):
        try:
            record = json.loads(path.read_text())
            if record["root_dir"] == str(folder) and psutil.pid_exists(record["pid"]):
                socket.create_connection(("127.0.0.1", record["port"]), timeout=1).close()
                return dict(record)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _write_settings(folder: Path) -> None:
    for name, settings in SETTINGS.items():
        place = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(settings))
