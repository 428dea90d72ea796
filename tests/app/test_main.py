"""The command itself: fast, helpful, and never a traceback."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from app.cli import terminal
from app.cli.main import COMMANDS, WAITING, app
from engine.config import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def prep(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "app.cli.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        **settings,
    )


def test_no_help_page_imports_torch() -> None:
    program = (
        "import sys\n"
        "from app.cli.main import COMMANDS, app\n"
        "for arguments in [['--help'], [], *([name, '--help'] for name in COMMANDS)]:\n"
        "    app(arguments, prog_name='prep', standalone_mode=False)\n"
        "    heavy = {'torch', 'numpy', 'tokenizers'} & set(sys.modules)\n"
        "    assert not heavy, (arguments, heavy)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Usage: prep") >= len(COMMANDS) + 2


def test_ctrl_c_during_the_imports_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    program = "from prep_common.own_packages import run_command; run_command()"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    result = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_during_a_command_is_an_exception_as_in_any_program() -> None:
    program = (
        "import signal, app.cli.main as line\n"
        "line.main = lambda: print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "from prep_common.own_packages import run_command\n"
        "run_command()\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_a_narrow_terminal_gets_a_path_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=20, color_system=None)
    monkeypatch.setattr(terminal, "out", lambda: console)
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "a long name"))
    assert CliRunner().invoke(app, ["state", "where"]).exit_code == 0
    assert str(tmp_path / "a long name") in screen.getvalue()


def test_the_overview_imports_no_command() -> None:
    program = (
        "import sys\n"
        "from app.cli.main import COMMANDS, app\n"
        "app(['--help'], standalone_mode=False)\n"
        "loaded = {entry.module for entry in COMMANDS.values()} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_module_with_a_command_is_in_the_table() -> None:
    """A module or package defines a command if it has a function or an app of its own name."""
    folder = ROOT / "app" / "cli"
    stems = {path.stem: path for path in folder.glob("[a-z]*.py")}
    stems |= {path.parent.name: path for path in folder.glob("[a-z]*/__init__.py")}
    listed = {entry.module for entry in COMMANDS.values()}
    code = "\n".join(path.read_text() for path in (ROOT / "app").rglob("*.py"))
    missing = [
        f"{path.relative_to(ROOT)}: no row in COMMANDS of app/cli/main.py"
        for stem, path in stems.items()
        if re.search(rf"^(def {stem}_?\(|{stem} = )", path.read_text(), re.MULTILINE)
        and f"app.cli.{stem}" not in listed
        and f"from app.cli.{stem} import" not in code
    ]
    assert not missing, "\n".join(missing)


def test_every_command_has_an_example_in_its_help() -> None:
    for name in COMMANDS:
        page = CliRunner().invoke(app, [name, "--help"]).stdout
        if "Commands:" not in page and name not in ("demo", "version"):
            assert "prep " + name in page.split("Options:")[0], f"prep {name} --help shows no example"


def test_no_arguments_print_the_help_and_succeed() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout and "demo" in result.stdout


GROUPS = ("trace", "bench", "kernels", "sim", "zoo", "claims", "bank", "state", "experiments")


@pytest.mark.parametrize("group", GROUPS)
def test_a_bare_group_prints_its_help(group: str) -> None:
    result = CliRunner().invoke(app, [group])
    assert result.exit_code == 0
    assert f"Usage: prep {group}" in result.stdout or f"Usage: root {group}" in result.stdout
    listed = result.stdout.split("Commands:")[1]
    assert "..." not in listed, "a sentence was cut"
    assert all(line.startswith("  ") for line in listed.strip("\n").splitlines())


def test_every_line_of_the_overview_is_a_sentence() -> None:
    for name, entry in COMMANDS.items():
        assert entry.help[0].isupper() and entry.help.endswith("."), name


def test_the_version_is_an_option_too() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and result.stdout.startswith("prep ")


def test_the_shell_completes_commands_and_their_options() -> None:
    environment = {
        **os.environ,
        "_PREP_COMPLETE": "complete_bash",
        "COMP_WORDS": "prep gen",
        "COMP_CWORD": "1",
    }
    assert prep(env=environment).stdout.split() == ["generate"]
    environment |= {"COMP_WORDS": "prep trace wh", "COMP_CWORD": "2"}
    assert prep(env=environment).stdout.split() == ["why"]


def test_hints_name_the_command_as_the_user_typed_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREP_COMMAND", "./prep")
    terminal.next_command("prep quiz", "or prep review")
    terminal.say("read prep answer", terminal.err())
    terminal.tell_error("see prep doctor, or prep-workbench", "prep today")
    terminal.tell_error("xgrammar is missing: pip install -e '.[structured]'", "pip install -e .")
    shown = capsys.readouterr().err
    assert f"missing: {shlex.quote(sys.executable)} -m pip install -e '.[structured]'" in shown.replace(
        "\n", ""
    )
    assert "next: ./prep quiz  or ./prep review" in shown and "read ./prep answer" in shown
    assert "see ./prep doctor, or prep-workbench" in shown
    assert "next: ./prep today" in shown


@pytest.mark.parametrize(
    ("number", "next_step"),
    [(errno.ENOSPC, "free some disk space"), (errno.EROFS, "PREP_HOME"), (errno.EACCES, "PREP_HOME")],
)
def test_a_disk_that_takes_nothing_is_an_error_with_a_next_step(
    number: int, next_step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.explain(OSError(number, os.strerror(number)))
    assert next_step in capsys.readouterr().err


def test_a_misspelt_command_gets_a_suggestion() -> None:
    result = prep("generat")
    assert result.returncode == 2
    assert "generate" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told", "example"),
    [
        ("run", "prep run needs EXPERIMENT: a name or a code", "prep run batching.static_vs_continuous"),
        ("trace why", "prep trace why needs FILE: a trace", "prep trace why run.itrace 3 --step 418"),
        ("bank preview", "prep bank preview needs ID", "prep bank preview batching"),
        (
            "judge set http://127.0.0.1",
            "prep judge set needs --model: name of the model",
            "prep judge set http",
        ),
        (
            "state export",
            "prep state export needs FILE: path of a new zip file",
            "prep state export my-answers.zip",
        ),
    ],
)
def test_a_missing_argument_is_told_with_an_example(arguments: str, told: str, example: str) -> None:
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 2
    assert f"error: {told}" in result.stderr and f"next: {example}" in result.stderr
    assert "Usage" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["run", "batching.static_vs_continuous", "--set", "lens=[1000000000,3]"],
            "lens[0]: must be at most 2,000, got 1000000000",
        ),
        (["answer", "batching.static_vs_continuous"], "no spoken answer: its answer is an experiment"),
    ],
)
def test_a_refusal_names_just_what_is_wrong(arguments: list[str], told: str) -> None:
    result = prep(*arguments)
    assert result.returncode == 2 and told in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("sim autoscale --seeds 0", "'--seeds': must be at least 1, got '0'"),
        ("sim autoscale --budget nan", "'--budget': must be at most 10, got 'nan'"),
        ("fleet scale x", "'replicas': must be a whole number, got 'x'"),
    ],
)
def test_a_wrong_number_is_told_with_its_bound_and_the_value(arguments: str, told: str) -> None:
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 2 and told in result.output


def test_an_unknown_option_is_a_usage_error() -> None:
    assert prep("generate", "--no-such-option").returncode == 2


def test_version_names_what_a_bug_report_needs() -> None:
    result = CliRunner().invoke(app, ["version"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["prep", "python", "torch"]


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ConfigError("block_size must be positive"), 2, "error: block_size must be positive"),
        (terminal.Problem("no prompt", next_step="give one"), 2, "next: give one"),
        (OSError(28, "No space left on device", "run.itrace"), 3, "No space left on device"),
        (ModuleNotFoundError("No module named 'torch'"), 3, "No module named 'torch'"),
        (RuntimeError("a bug"), 1, "PREP_DEBUG=1"),
    ],
)
def test_every_error_is_one_clear_line_with_its_exit_code(
    error: BaseException, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = terminal.explain(error)
    assert isinstance(result, typer.Exit)
    assert result.exit_code == code
    assert told in capsys.readouterr().err


def test_error_text_is_shown_as_it_is_not_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.explain(ValueError("expected [bold]x[/] in [0, 1]"))
    assert "expected [bold]x[/] in [0, 1]" in capsys.readouterr().err


def test_debug_shows_the_traceback() -> None:
    quiet = prep("generate", "shop", "-p", "x", "--temperature", "-1")
    loud = prep("--debug", "generate", "shop", "-p", "x", "--temperature", "-1")
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


def test_a_reader_that_leaves_early_causes_no_noise() -> None:
    command = f"{sys.executable} -m app.cli.main generate --help | head -n 1"
    result = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert "Usage" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", ["--help", "--version", "kernels --help", "zoo list"])
def test_an_output_that_cannot_be_written_has_an_exit_code_of_its_own(arguments: str) -> None:
    command = [sys.executable, "-m", "app.cli.main", *arguments.split()]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 3
    assert "error: [Errno 28]" in result.stderr and "Traceback" not in result.stderr
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, "Error" in result.stderr) == (141, False)


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_plain_terminals_get_plain_text(variables: dict[str, str]) -> None:
    result = prep("--help", env={**os.environ, **variables})
    assert "\x1b" not in result.stdout


def test_commands_that_measure_wait_for_the_compiler_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(WAITING) <= set(COMMANDS)
    monkeypatch.delenv("PREP_KERNELS_BUILD")
    CliRunner().invoke(app, ["generate", "--help"])
    assert "PREP_KERNELS_BUILD" not in os.environ
    CliRunner().invoke(app, ["bench", "--help"])
    assert os.environ["PREP_KERNELS_BUILD"] == "wait"
    monkeypatch.setenv("PREP_KERNELS_BUILD", "background")
    CliRunner().invoke(app, ["bench", "--help"])
    assert os.environ["PREP_KERNELS_BUILD"] == "background"


def test_a_home_that_bash_leaves_in_an_option_is_found(tmp_path: Path) -> None:
    prep(
        "plan",
        "--interview",
        "14",
        "--hours",
        "5",
        "--role",
        "sre",
        "--ics=~/plan.ics",
        env={**os.environ, "HOME": str(tmp_path), "PREP_HOME": str(tmp_path)},
    )
    assert (tmp_path / "plan.ics").is_file()
