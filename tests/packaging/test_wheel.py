"""The wheel, installed from the folder: it holds everything that commands read, and runs without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment into which the wheel was installed. The other libraries are those of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(lambda name: (ROOT / name).is_file(), listed.stdout.splitlines()):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "-q"]
    # `prep test` puts this checkout on PYTHONPATH: pip would find its metadata, and install nothing.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(wheel, env=clean, check=True)
    venv.create(folder / "env", symlinks=True)
    python = folder / "env/bin/python"
    [file] = folder.glob("*.whl")
    install = [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(file)]
    subprocess.run(install, env=clean, check=True)
    (site_packages(folder / "env") / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "env"


def site_packages(env: Path) -> Path:
    return next(env.glob("lib/python*/site-packages"))


def run(env: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(env / "bin" / words[0]), *words[1:]],
        cwd=folder,
        env={**os.environ, "PREP_HOME": str(folder / "home"), "PYTHONPATH": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize(
    "command",
    [
        "prep demo --fast",
        "prep generate shop -p Hello --max-tokens 3",
        "prep quiz --question batching.static_vs_continuous --seed 7",
        "prep lesson list",
        "prep lesson open 1 --path",
        "prep lab list",
        "prep mock list",
        "prep drill list",
        "prep bank lint",
        "prep kernels list",
        "prep zoo list",
    ],
)
def test_commands_run_from_the_wheel(command: str, installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, *command.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(ROOT) not in done.stdout


def test_the_engine_is_that_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    done = run(
        installed,
        tmp_path,
        "python",
        "-c",
        "import engine, kernels; print(engine.__file__, kernels.__file__)",
    )
    site = site_packages(installed)
    assert done.stdout.split() == [str(site / "engine/__init__.py"), str(site / "kernels/__init__.py")], (
        done.stderr
    )


def test_another_package_that_was_installed_over_ours_is_named(installed: Path, tmp_path: Path) -> None:
    """As `pip install kernels` does, with Hugging Face's package of that name."""
    ours = site_packages(installed) / "kernels/__init__.py"
    text = ours.read_text()
    try:
        ours.write_text("__version__ = '0.18.2'\n")
        for words in (["prep", "kernels", "list"], ["python", "-c", "from engine import LLM"]):
            done = run(installed, tmp_path, *words)
            assert ("Traceback" in done.stderr) == (words[0] == "python")
            assert done.returncode != 0 and "was installed over it. Install prep into" in done.stderr, (
                done.stderr
            )
    finally:
        ours.write_text(text)
