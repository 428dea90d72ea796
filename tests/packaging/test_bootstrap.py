"""./prep with a stand-in for Python: each test says what a user meets on some machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SHELLS = [name for name in ("sh", "dash", "bash", "busybox", "zsh") if shutil.which(name)]
TOOLS = (
    "sh cat cksum cp cut env grep mkdir mv ps readlink rm rmdir sed sleep stty tail tr uname chmod".split()
)

# Answers as Python, venv and pip would; what it was asked for goes to $FAKE_LOG.
FAKE_PYTHON = r"""#!/bin/sh
case "$*" in
    *'print("%d'*) echo "${FAKE_VERSION:-3.12.1}" ;;
    *'sys.version_info <'*) case "${FAKE_VERSION:-3.12.1}" in 3.1[1-9]*) exit 0 ;; *) exit 1 ;; esac ;;
    *'import ensurepip'*) exit "${FAKE_NO_VENV:-0}" ;;
    *'from kernels.cpu '*) echo "$PREP_KERNELS_BUILD" >"$FAKE_LOG.compile" ;;
    '-c '*) exit 0 ;;
    '-m venv '*)
        echo "venv" >>"$FAKE_LOG"
        mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
        ;;
    '-m pip '*)
        for last; do :; done
        case "$*" in *--index-url*) index=" (own index)" ;; *) index="" ;; esac
        echo "pip $last$index" >>"$FAKE_LOG"
        echo "Collecting $last"
        case "$last$index" in ${FAKE_FAIL:-nothing})
            echo "ERROR: ${FAKE_ERROR:-could not find a version of $last}" >&2
            exit 1 ;;
        esac
        case "$last" in
            /*)
                if [ -n "$FAKE_SLEEP" ]; then sleep "$FAKE_SLEEP"; fi
                printf '#!/bin/sh\necho "prep ran: $*"\nexit "${FAKE_STATUS:-0}"\n' >"${0%/*}/prep"
                chmod +x "${0%/*}/prep"
                ;;
        esac
        ;;
esac
"""

FAKE_UV = r"""#!/bin/sh
for last; do :; done
[ "$1" = --directory ] && shift 2
echo "uv $1 $last" >>"$FAKE_LOG"
case "$1 $2" in
    'venv '*) mkdir -p "$last/bin" && cp "${0%/*}/python" "$last/bin/python" ;;
    'pip install')
        case "$*" in *--index-url*) wanted= ;; *) wanted="--constraint $FAKE_LOCK " ;; esac
        case "$*" in *"${wanted:---python}"*) ;; *) exit 2 ;; esac
        case "$wanted$*" in --python*--constraint*) exit 2 ;; esac
        case "$last" in ${FAKE_FAIL_UV:-nothing} | ${FAKE_FAIL:-nothing})
            echo "error sending request for url" >&2; exit 1 ;;
        esac
        printf '#!/bin/sh\necho "prep ran: $*"\n' >"${4%/*}/prep" && chmod +x "${4%/*}/prep"
        ;;
esac
"""


class Machine:
    """A folder with a checkout's two files, and a PATH on which nothing else is installed."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "a checkout"
        self.bin = folder / "bin"
        self.log = folder / "asked.txt"
        self.checkout.mkdir()
        self.bin.mkdir()
        for name in ("prep", "pyproject.toml", "requirements.lock"):
            shutil.copy(ROOT / name, self.checkout)
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)
        self.env = {"PATH": str(self.bin), "FAKE_LOG": str(self.log), "TERM": "dumb", "PREP_TORCH": "cpu"}

    def add_python(self, name: str = "python3.12") -> None:
        self.add(name, FAKE_PYTHON)

    def add(self, name: str, script: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def prints(self, text: str, code: int = 0) -> None:
        """Let the installed `prep` do nothing else from now on."""
        (self.checkout / ".venv/bin/prep").write_text(f"#!/bin/sh\necho '{text}'; exit {code}\n")

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.bin / "sh"), str(self.checkout / "prep"), *arguments],
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **env)
        stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def asked(self) -> list[str]:
        """Return the requests to the stand-in since the last call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines

    def wait_for(self, text: str) -> None:
        wait_until(lambda: self.log.exists() and text in self.log.read_text())

    @property
    def lock(self) -> Path:
        return self.checkout / ".venv.lock"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.add_python()
    return machine


@pytest.fixture
def with_uv(machine: Machine) -> Machine:
    machine.add_python("python")
    machine.add("uv", FAKE_UV)
    machine.env["FAKE_LOCK"] = str(machine.checkout / "requirements.lock")
    return machine


def test_uv_installs_the_versions_of_the_lock_after_pytorch(with_uv: Machine) -> None:
    result = with_uv.run("test", "x")
    assert result.stdout == "prep ran: test x\n", result.stderr
    checkout = with_uv.checkout
    assert with_uv.asked() == [
        f"uv venv {checkout}/.venv",
        "uv pip torch==2.13.0+cpu",
        f"uv pip {checkout}[test]",
    ]
    with_uv.run("test")
    assert with_uv.asked() == []
    with (checkout / "requirements.lock").open("a") as file:
        file.write("new==1\n")
    assert "updating" in with_uv.run("demo").stderr
    assert with_uv.asked() == ["uv pip torch==2.13.0+cpu", f"uv pip {checkout}"]


def test_uv_needs_no_python_and_no_module_venv(with_uv: Machine) -> None:
    assert with_uv.run("demo", FAKE_NO_VENV="1").stdout == "prep ran: demo\n"
    (with_uv.bin / "python3.12").unlink()
    shutil.rmtree(with_uv.checkout / ".venv")
    assert "Python 3.12 (3.12, uv)" in with_uv.run("demo", FAKE_VERSION="3.9.2").stderr


def test_pip_can_be_asked_for_where_uv_is(with_uv: Machine) -> None:
    with_uv.run("demo", PREP_INSTALLER="pip")
    assert with_uv.asked() == ["venv", "pip torch==2.13.0+cpu", f"pip {with_uv.checkout}"]


def test_pytorch_that_uv_does_not_find_is_asked_of_pip(with_uv: Machine) -> None:
    result = with_uv.run("demo", FAKE_FAIL_UV="torch==*")
    assert result.stdout == "prep ran: demo\n", result.stderr
    assert "4.8 GB" not in result.stderr
    asked = with_uv.asked()
    assert asked[1:3] == ["uv pip torch==2.13.0+cpu"] * 2
    assert asked[3:] == ["pip torch==2.13.0+cpu", f"pip {with_uv.checkout}"]


def test_no_network_is_called_by_its_name_with_uv_too(with_uv: Machine) -> None:
    result = with_uv.run(FAKE_FAIL="*")
    assert result.returncode == 3
    assert "HTTPS_PROXY or UV_DEFAULT_INDEX" in result.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_parses_in_every_shell_that_is_here(shell: str) -> None:
    command = [shell, "sh", "-n"] if shell == "busybox" else [shell, "-n"]
    subprocess.run([*command, str(ROOT / "prep")], check=True)


def test_the_script_is_executable_and_posix() -> None:
    assert os.access(ROOT / "prep", os.X_OK)
    assert (ROOT / "prep").read_text().startswith("#!/bin/sh\n")


def test_the_first_start_sets_up_and_runs_and_the_second_only_runs(machine: Machine) -> None:
    first = machine.run("generate", "shop", "two words", FAKE_STATUS="7")
    assert first.stdout == "prep ran: generate shop two words\n", "messages must not reach stdout"
    assert first.returncode == 7
    assert machine.asked() == ["venv", "pip torch==2.13.0+cpu", f"pip {machine.checkout}"]

    second = machine.run("generate")
    assert second.stdout == "prep ran: generate\n"
    assert second.stderr == ""
    assert machine.asked() == []


def test_the_set_up_compiles_the_kernels_and_does_not_wait_for_them(machine: Machine) -> None:
    compiling = machine.log.with_name("asked.txt.compile")
    os.mkfifo(compiling)  # who writes to it waits until it is read
    assert machine.run("demo").stdout == "prep ran: demo\n"
    assert compiling.read_text() == "background\n"


def test_a_link_to_the_script_finds_its_folder(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "my-prep").symlink_to(machine.checkout / "prep")
    result = subprocess.run([str(tmp_path / "my-prep"), "x"], env=machine.env, capture_output=True, text=True)
    assert result.stdout == "prep ran: x\n"
    assert (machine.checkout / ".venv").is_dir()


def test_only_the_test_command_installs_the_test_tools(machine: Machine) -> None:
    machine.run("demo")
    machine.asked()
    machine.run("test")
    assert machine.asked() == ["pip torch==2.13.0+cpu", f"pip {machine.checkout}[test]"]
    machine.run("test")
    machine.run("demo")
    assert machine.asked() == []


def test_a_changed_pyproject_updates_in_place(machine: Machine) -> None:
    machine.run()
    machine.asked()
    with (machine.checkout / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    result = machine.run()
    assert "updating" in result.stderr
    assert machine.asked() == ["pip torch==2.13.0+cpu", f"pip {machine.checkout}"]


def test_a_moved_folder_keeps_its_environment_and_gets_its_paths_corrected(machine: Machine) -> None:
    machine.run()
    script = machine.checkout / ".venv/bin/tool"
    script.write_text(f"#!{machine.checkout}/.venv/bin/python\nprint('a tool')\n")
    script.chmod(0o755)
    machine.asked()
    machine.checkout = machine.checkout.rename(machine.checkout.with_name("moved"))
    result = machine.run("demo")
    assert result.stdout == "prep ran: demo\n" and "correcting the paths" in result.stderr
    assert machine.asked() == ["pip torch==2.13.0+cpu", f"pip {machine.checkout}"], "no new environment"
    moved = machine.checkout / ".venv/bin/tool"
    assert moved.read_text() == f"#!{machine.checkout}/.venv/bin/python\nprint('a tool')\n"
    assert os.access(moved, os.X_OK)
    assert machine.run("demo").stderr == ""


def test_an_environment_made_again_keeps_its_python(machine: Machine) -> None:
    machine.run()
    machine.add_python("python3.11")
    (machine.bin / "python3.12").rename(machine.bin / "python3.14")
    machine.run(PREP_PYTHON="python3.14")
    (machine.checkout / ".venv/.prep-installing").touch()  # an install that did not finish
    machine.run()
    assert (machine.checkout / ".venv/.prep-python").read_text().strip() == "python3.14"


def test_only_the_export_of_cards_installs_its_libraries(machine: Machine) -> None:
    machine.run("cards", "list")
    machine.asked()
    machine.run("cards", "export")
    assert machine.asked() == ["pip torch==2.13.0+cpu", f"pip {machine.checkout}[cards]"]
    machine.run("cards", "export")
    assert machine.asked() == []


@pytest.mark.parametrize(
    "arguments", [("app", "-h"), ("test", "--help"), ("test", "--all", "-h"), ("cards", "export", "-h")]
)
def test_a_help_page_installs_no_extra(machine: Machine, arguments: tuple[str, ...]) -> None:
    machine.run("demo")
    machine.asked()
    machine.run(*arguments)
    assert machine.asked() == []


def test_hints_can_name_the_command_as_it_was_typed(machine: Machine) -> None:
    machine.run()
    (machine.checkout / ".venv/bin/prep").write_text('#!/bin/sh\necho "$PREP_COMMAND"\n')
    assert machine.run().stdout.strip() == str(machine.checkout / "prep")


def test_no_python_says_how_to_get_one(machine: Machine) -> None:
    (machine.bin / "python3.12").unlink()
    result = machine.run()
    assert result.returncode == 3
    assert "needs Python 3.11 or newer" in result.stderr and "apt-get install python3" in result.stderr


def test_an_old_python_is_named(machine: Machine) -> None:
    machine.bin.joinpath("python3.12").rename(machine.bin / "python3")
    result = machine.run(FAKE_VERSION="3.9.2")
    assert result.returncode == 3
    assert "found only python3 (3.9.2)" in result.stderr
    assert not machine.lock.exists()


def test_a_missing_venv_module_names_the_package_to_install(machine: Machine) -> None:
    result = machine.run(FAKE_NO_VENV="1")
    assert result.returncode == 3
    assert "apt-get install python3.12-venv" in result.stderr


def test_prep_python_chooses_and_a_change_of_it_makes_a_new_environment(
    machine: Machine, tmp_path: Path
) -> None:
    machine.add_python("my python")
    chosen = str(machine.bin / "my python")
    machine.run(PREP_PYTHON=chosen)
    assert (machine.checkout / ".venv/.prep-python").read_text().strip() == chosen
    machine.asked()
    machine.run()
    machine.run(PREP_PYTHON=chosen)
    assert machine.asked() == []
    machine.run(PREP_PYTHON="python3.12")
    assert machine.asked()[0] == "venv"


def test_a_wrong_prep_python_is_named(machine: Machine) -> None:
    result = machine.run(PREP_PYTHON="/nowhere/python")
    assert result.returncode == 3
    assert "PREP_PYTHON=/nowhere/python is not a Python 3.11 or newer" in result.stderr


def test_without_a_driver_the_cpu_build_is_tried_on_two_indexes_before_the_default(machine: Machine) -> None:
    result = machine.run(FAKE_FAIL="torch==2.13.0+cpu*")
    torch = [line for line in machine.asked() if "torch" in line]
    assert torch[:2] == ["pip torch==2.13.0+cpu", "pip torch==2.13.0+cpu (own index)"]
    assert torch[2].startswith("pip torch>=")
    assert "default build" in result.stderr and "4.8 GB" in result.stderr, (
        "it says which build it takes, and its size"
    )
    assert result.returncode == 0


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia/version"), reason="there is a driver here")
def test_the_driver_decides_the_build(machine: Machine) -> None:
    machine.run(PREP_TORCH="")
    machine.add("nvidia-smi", "#!/bin/sh\necho 'GPU 0: a card'\n")
    shutil.rmtree(machine.checkout / ".venv")
    machine.run(PREP_TORCH="")
    builds = [line for line in machine.asked() if "torch" in line]
    assert builds[0] == "pip torch==2.13.0+cpu"
    assert builds[1].startswith("pip torch>=")


def test_macos_takes_the_default_build(machine: Machine) -> None:
    machine.add("uname", "#!/bin/sh\necho Darwin\n")
    machine.run(PREP_TORCH="")
    assert [line for line in machine.asked() if "torch" in line][0].startswith("pip torch>=")


def test_a_failed_install_shows_the_end_of_the_log_and_the_next_start_begins_again(machine: Machine) -> None:
    result = machine.run(FAKE_FAIL="/*", FAKE_ERROR="disk on fire")
    assert result.returncode == 3
    assert "disk on fire" in result.stderr and str(machine.checkout / ".venv.log") in result.stderr
    assert not machine.lock.exists()
    machine.asked()
    assert machine.run("demo").stdout == "prep ran: demo\n"
    assert machine.asked()[0] == "venv"


def test_no_network_is_called_by_its_name(machine: Machine) -> None:
    result = machine.run(FAKE_FAIL="*", FAKE_ERROR="NewConnectionError: Temporary failure in name resolution")
    assert result.returncode == 3
    assert "package index could not be reached" in result.stderr


def test_a_full_disk_is_not_told_as_a_network_error(machine: Machine) -> None:
    error = "WARNING: Retrying after NewConnectionError\nOSError: [Errno 28] No space left on device"
    result = machine.run(FAKE_FAIL="*", FAKE_ERROR=error)
    assert result.returncode == 3
    assert "the disk is full" in result.stderr and "index could not be reached" not in result.stderr


def test_ctrl_c_leaves_nothing_locked_and_the_next_start_begins_again(machine: Machine) -> None:
    process = machine.start(FAKE_SLEEP="30")
    machine.wait_for(f"pip {machine.checkout}")
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert not machine.lock.exists()
    machine.asked()
    assert machine.run("demo").stdout == "prep ran: demo\n"
    assert machine.asked()[0] == "venv"


def test_the_lock_of_a_killed_installer_is_taken_over(machine: Machine) -> None:
    process = machine.start(FAKE_SLEEP="30")
    machine.wait_for(f"pip {machine.checkout}")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert machine.lock.exists()
    result = machine.run("demo")
    assert result.stdout == "prep ran: demo\n"
    assert "did not finish" in result.stderr
    assert not machine.lock.exists()


@pytest.mark.slow
def test_a_lock_without_an_owner_is_taken_over_too(machine: Machine) -> None:
    machine.lock.mkdir()
    assert machine.run("demo").stdout == "prep ran: demo\n"


@pytest.mark.slow
def test_two_starts_at_once_install_once(machine: Machine) -> None:
    starts = [machine.start(str(i), FAKE_SLEEP="2") for i in range(3)]
    answers = [process.communicate(timeout=60) for process in starts]
    assert sorted(stdout for stdout, _ in answers) == [f"prep ran: {i}\n" for i in range(3)]
    assert machine.asked().count("venv") == 1
    assert sum("waiting for it" in stderr for _, stderr in answers) == 2


def test_an_environment_made_by_hand_is_not_deleted(machine: Machine) -> None:
    precious = machine.checkout / ".venv" / "mine.txt"
    precious.parent.mkdir()
    precious.write_text("x")
    result = machine.run()
    assert result.returncode == 3
    assert "was not made by ./prep" in result.stderr
    assert precious.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_checkout_is_named(machine: Machine) -> None:
    machine.checkout.chmod(0o555)
    result = machine.run()
    machine.checkout.chmod(0o755)
    assert result.returncode == 3
    assert "cannot write to" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="Triton and NVRTC exist for Linux")
def test_kernels_explain_installs_the_compilers_once_and_says_how_much(machine: Machine) -> None:
    machine.run("doctor")
    machine.asked()
    machine.prints("triton   kernels/triton_ops/norm.py   117")
    first = machine.run("kernels", "explain", "rms_norm")
    assert first.stdout == "prep ran: kernels explain rms_norm\n"
    assert "installing Triton and NVRTC (once; about 1.3 GB of disk)" in first.stderr
    assert machine.asked() == [f"pip {machine.checkout}[cuda]"]
    assert machine.run("kernels", "explain", "rms_norm").stderr == ""
    assert machine.asked() == []


@pytest.mark.skipif(sys.platform != "linux", reason="Triton and NVRTC exist for Linux")
def test_a_misspelt_operation_installs_no_compilers(machine: Machine) -> None:
    machine.run("doctor")
    machine.asked()
    machine.prints("unknown operation", code=2)
    result = machine.run("kernels", "explain", "nope")
    assert (result.returncode, result.stdout, result.stderr) == (2, "unknown operation\n", "")
    assert machine.asked() == []


def test_an_operation_without_a_form_for_gpus_installs_no_compilers(machine: Machine) -> None:
    machine.run("doctor")
    machine.asked()
    machine.prints("cpu   kernels/cpu/norm_gemm.h   89")
    assert machine.run("kernels", "explain", "norm_linear").stderr == ""
    assert machine.asked() == []


@pytest.mark.parametrize(
    "arguments", ["kernels list", "kernels explain -h", "kernels explain rms_norm --arch none", "explain x"]
)
def test_commands_that_compile_nothing_install_no_compilers(machine: Machine, arguments: str) -> None:
    machine.run(*arguments.split())
    assert f"pip {machine.checkout}[cuda]" not in machine.asked()


@pytest.mark.skipif(sys.platform != "linux", reason="Triton and NVRTC exist for Linux")
def test_without_a_network_kernels_explain_still_runs(machine: Machine) -> None:
    machine.run("doctor")
    machine.prints("cuda   kernels/cuda/norm.cu   90")
    result = machine.run("kernels", "explain", "x", FAKE_FAIL="*cuda*", FAKE_ERROR="NewConnectionError")
    assert result.returncode == 0 and result.stdout == "cuda   kernels/cuda/norm.cu   90\n"
    assert "could not be installed, so no registers are shown" in result.stderr
    assert machine.run("doctor").stderr == "", "the environment itself is complete"
