"""The JavaScript of the page Step: its modules by `node --test`, and the one script that they are joined into."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from app.debugger.runs import open_run
from app.debugger.step_view import SCRIPTS, parts, script
from app.debugger.step_view.envelope import envelope
from tests.trace.trace_workloads import random_run

TESTS = Path(__file__).with_name("step_view") / "step_view.test.mjs"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node: apt-get install nodejs")


@needs_node
def test_the_modules_pass_their_own_tests(tmp_path: Path) -> None:
    run = open_run(f"file:{random_run(tmp_path / 'run.itrace', 3).path}")
    cut = parts.sizes(run)
    head = {
        "run": "x",
        "window": cut.window,
        "chunk": cut.chunk,
        "num_steps": run.index.num_steps,
        "num_blocks": run.index.num_blocks,
    }
    sent = {key: parts.make(run, cut, key) for key in parts.first_keys(run, cut, 0)}
    (tmp_path / "envelope").write_bytes(envelope(head, sent))
    done = subprocess.run(
        ["node", "--test", str(TESTS)],
        env={**os.environ, "STEP_ENVELOPE": str(tmp_path / "envelope")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@needs_node
def test_joined_into_one_they_are_one_module_without_imports(tmp_path: Path) -> None:
    text = script()
    assert re.findall(r"^(?:import|export).*", text, re.MULTILINE) == [
        "export default function stepView(component) {"
    ]
    (tmp_path / "joined.mjs").write_text(text)
    done = subprocess.run(["node", "--check", str(tmp_path / "joined.mjs")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_module_is_joined_after_those_that_it_imports() -> None:
    folder = Path(parts.__file__).parent
    assert sorted(SCRIPTS) == sorted(path.name for path in folder.glob("*.js"))
    for at, name in enumerate(SCRIPTS):
        imports = re.findall(r'from "\./(.*?)"', (folder / name).read_text())
        assert set(imports) <= set(SCRIPTS[:at]), name
