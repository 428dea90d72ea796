"""`prep doctor` and `prep zoo`: what they find, and how they say it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import doctor
from app.cli.main import app
from kernels.cpu.build import Library, load_library


def test_a_working_installation_is_healthy() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["healthy"]
    assert any("the same tokens" in check["text"] for check in report["checks"])


def test_a_damaged_model_is_found_by_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that loads and speaks, but was overwritten by a few steps of training."""
    import torch
    from safetensors.torch import load_file, save_file

    from engine import LLM
    from engine.zoo.registry import resolve

    folder = tmp_path / "shop"
    shutil.copytree(resolve("shop"), folder)
    [weights] = folder.glob("*.safetensors")
    generator = torch.Generator().manual_seed(0)
    damaged = {
        name: (tensor + 0.1 * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)
        for name, tensor in load_file(weights).items()
    }
    save_file(damaged, weights, metadata={"format": "pt"})
    with LLM(str(folder)) as llm:
        monkeypatch.setattr(
            "app.cli.zoo_eval.show_bar", lambda: pytest.fail("no bar among the doctor's lines")
        )
        check = doctor._golden_answers(llm)
    assert check.status == "fail" and check.fix == doctor.RESTORE


def test_the_fix_of_a_damaged_model_restores_it_and_keeps_what_was_there(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    weights = tmp_path / "engine" / "zoo" / "models" / "shop" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text("shipped")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "shipped")
    fix = doctor.RESTORE.partition("   ")[0].split()
    git(*fix[1:])  # nothing was changed: nothing happens
    weights.write_text("trained for a week")
    git(*fix[1:])
    assert weights.read_text() == "shipped" and "trained for a week" in git("stash", "show", "-p")


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), doctor.FREE),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), doctor.FREE),
        (RuntimeError("no memory"), doctor.TEST),
        (ImportError("libtorch.so"), doctor.REINSTALL),
        (OSError("libtorch.so: cannot open shared object file"), doctor.REINSTALL),
    ],
)
def test_an_environment_is_removed_only_if_a_library_does_not_load(error: Exception, fix: str) -> None:
    def check() -> doctor.Check:
        raise error

    assert doctor._guarded(check).fix == fix


def test_a_state_that_cannot_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "file" / "home"))
    check = doctor._guarded(doctor._state)
    assert check.status == "fail" and "cannot be written" in check.text


def test_something_missing_fails_with_exit_code_3_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.LIBRARIES, "no_such_library", "no-such-library")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 3
    assert "missing libraries: no_such_library" in result.stdout
    assert "next: rm -rf .venv" in result.stderr


def test_a_check_that_breaks_is_a_failure_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def _disk() -> doctor.Check:
        raise OSError("no such disk")

    monkeypatch.setattr(doctor, "_disk", _disk)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 3
    assert "fail disk: OSError: no such disk" in result.stdout


def test_a_wrong_setting_of_the_kernels_is_one_failure_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    load_library.cache_clear()
    monkeypatch.setenv("PREP_KERNELS_BUILD", "nonsense")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 3
    assert result.output.count("PREP_KERNELS_BUILD='nonsense' is not valid") == 1
    assert result.output.count("unset PREP_KERNELS_BUILD, or set it to wait or background") == 1
    assert "rm -rf" not in result.output and "1 problem to solve" in result.output


@pytest.mark.parametrize(
    ("library", "status", "told", "fix"),
    [
        (
            Library(None, None, Path("/c/kernels.so"), 4.2),
            "ok",
            "compiled in 4.2 s, kept in /c/kernels.so",
            "",
        ),
        (Library(None, None, Path("/c/kernels.so")), "ok", "C++ kernels from /c/kernels.so", ""),
        (
            Library(None, "no C++ compiler (g++ or clang++); install one: apt install g++"),
            "warn",
            "no C++ kernels, attention falls back to SDPA: no C++ compiler (g++ or clang++)",
            "install one: apt install g++",
        ),
        (
            Library(None, "g++ failed: norm.cpp:3: error: x"),
            "warn",
            "g++ failed: norm.cpp:3",
            "PREP_KERNELS_COMPILER",
        ),
    ],
    ids=["built", "cached", "no compiler", "broken compiler"],
)
def test_the_kernels_line_says_where_they_come_from_or_what_takes_over(
    library: Library, status: str, told: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.compile_report.load_library", lambda: library)
    check = doctor._cpu_kernels()
    assert check.status == status
    assert told in check.text and fix in check.fix


def test_zoo_list_shows_the_shipped_models() -> None:
    result = CliRunner().invoke(app, ["zoo", "list", "--json"])
    assert result.exit_code == 0, result.output
    assert "shop" in [model["name"] for model in json.loads(result.stdout)]


def test_zoo_eval_judges_the_engines_answers_by_type() -> None:
    result = CliRunner().invoke(app, ["zoo", "eval", "shop", "-n", "4", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["overall"]["total"] >= 4
    assert sum(group["total"] for group in report["by_type"].values()) == report["overall"]["total"]


def test_an_unknown_recipe_is_refused() -> None:
    result = CliRunner().invoke(app, ["zoo", "train", "bakery"])
    assert result.exit_code == 2
    assert "no recipe 'bakery'" in result.stderr
