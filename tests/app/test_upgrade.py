"""`prep upgrade` with real servers: a commit against this checkout, another model, its bad ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from app.cli.main import app
from app.cli.upgrade import _with_servers
from engine.zoo.registry import resolve
from prep_common.child_process import ROOT
from tests.waiting import has_ended, wait_until

PREP = [sys.executable, "-m", "app.cli.main", "upgrade"]
SMALL = ("--requests", "6", "--rounds", "1", "--rate", "40")


def run(*words: str, temp: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(temp)}
    return subprocess.run([*PREP, *words], cwd=ROOT, capture_output=True, text=True, env=environment)


def checks_in(ended: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert ended.stdout, ended.stderr
    return {check["name"]: check for check in json.loads(ended.stdout)["checks"]}


@pytest.mark.slow
def test_a_commit_and_this_checkout_agree_and_a_lost_prefix_cache_is_found(tmp_path: Path) -> None:
    words = (
        "check",
        "--base",
        "HEAD",
        "--new",
        ".",
        "--set",
        "enable_prefix_caching=false",
        *SMALL,
        "--json",
    )
    ended = run(*words, temp=tmp_path)
    checks = checks_in(ended)
    assert ended.returncode == 1
    assert checks["equal answers"]["verdict"] == checks["failed requests"]["verdict"] == "pass"
    assert checks["prefix hit rate"]["verdict"] == "fail" and checks["prefix hit rate"]["new"] == 0
    assert checks["prefix hit rate"]["base"] > 0.3
    assert checks["median TTFT (s)"]["verdict"] == "inconclusive", "one round decides nothing"
    assert checks["peak memory (bytes)"]["base"] > 10**8
    assert not list(tmp_path.glob("prep-upgrade-*")), "the unpacked commit and the logs are removed"


@pytest.mark.slow
def test_another_model_and_slightly_scaled_weights_differ_from_the_recorded_answers(tmp_path: Path) -> None:
    golden = tmp_path / "golden.jsonl"
    recorded = run("record", "--output", str(golden), "--requests", "6", temp=tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    same = run("check", "--golden", str(golden), "--new", ".", "--json", temp=tmp_path)
    assert same.returncode == 0 and checks_in(same)["equal answers"]["new"] == 6, same.stdout + same.stderr
    command = f"command: {sys.executable} -m app.cli.main serve shop-draft"
    other = run("check", "--golden", str(golden), "--new", command, "--json", temp=tmp_path)
    assert other.returncode == 1
    assert checks_in(other)["equal answers"]["verdict"] == "fail"
    scaled = run(
        "check", "--golden", str(golden), "--new", ".", "--model", str(scaled_shop(tmp_path)), "--json",
        "--near-tie", "100", temp=tmp_path,
    )  # fmt: skip
    checks = checks_in(scaled)
    assert scaled.returncode == 1, "any token may change here: the drift alone fails the check"
    assert [name for name, each in checks.items() if each["verdict"] == "fail"] == ["drift of logprobs"]


def scaled_shop(folder: Path) -> Path:
    """Return a copy of the model whose output norm is 5 % too large, as by a wrong scale of a quantised tensor."""
    copy = folder / "scaled"
    shutil.copytree(resolve("shop"), copy)
    file = copy / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 1.05
    save_file(tensors, file, metadata={"format": "pt"})
    return copy


@pytest.mark.slow
def test_sigterm_ends_both_servers_and_leaves_no_files(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    words = ("check", "--base", "HEAD", "--new", ".", "--rounds", "100")
    process = subprocess.Popen([*PREP, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 1"):
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 4, "two servers, each with its engine"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    wait_until(lambda: all(has_ended(child) for child in children))
    assert not list(tmp_path.glob("prep-upgrade-*"))


def test_sigterm_ends_a_check_also_where_ctrl_c_is_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt):
            _with_servers(lambda tell: signal.raise_signal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--new", "."), "give --base, or --golden"),
        (("--base", "no-such-ref", "--new", "."), "'no-such-ref' is none of: a URL"),
        (("--base", "tests", "--new", "."), "tests is a folder but not a checkout of prep"),
        (("--base", "http://127.0.0.1:9", "--new", ".", "--base-set", "block_size=32"), "cannot be changed"),
        (("--base", "command:", "--new", "."), "needs a command"),
        (("--golden", "pyproject.toml", "--new", "."), "pyproject.toml:1: not a golden trace"),
        (("--base", ".", "--new", ".", "--base-set", "no_such_setting=1"), "No such option"),
        (("--base", "http://127.0.0.1:9", "--new", "http://127.0.0.1:9"), "a server does not answer"),
    ],
)
def test_wrong_sides_are_errors_that_say_what_to_give(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    ended = CliRunner().invoke(app, ["upgrade", "check", *words])
    assert ended.exit_code in (2, 3) and message in ended.stderr.replace("\n", " "), ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_wrong_side_or_output_is_told_before_any_server_starts(tmp_path: Path) -> None:
    for words, told in (
        (("check", "--base", ".", "--new", "no-such-ref"), "'no-such-ref' is none of: a URL"),
        (("check", "--base", ".", "--new", "command: "), "needs a command"),
        (("record", "--output", str(tmp_path)), "it is a folder"),
        (("record", "--output", str(tmp_path / "no" / "golden.jsonl")), "there is no folder"),
    ):
        ended = run(*words, temp=tmp_path)
        assert ended.returncode == 2 and told in ended.stderr and "starting" not in ended.stderr
