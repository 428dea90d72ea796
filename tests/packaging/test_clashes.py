"""A user's file or another distribution has the name of a package of ours: what works, and what Python says else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

from prep_common.own_packages import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
PREP = Path(sys.executable).with_name("prep")
OTHERS = tuple(name for name in PACKAGES if name != "engine")
HUB_VERSION = "0.18.2"
HUB_NAMES = """
    CUDAProperties Device KernelizeFallback LayerRepository LocalLayerRepository ROCMProperties get_kernel kernelize
    register_kernel_mapping replace_kernel_forward_from_hub use_kernel_mapping
"""
"""Names that transformers imports from Hugging Face's package `kernels`."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of every name that ours have; each fails if it is imported."""
    for name in ("engine", *OTHERS):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the user was imported')\n")
    return tmp_path


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A folder for sys.path in which a distribution like Hugging Face's `kernels` is installed."""
    site = tmp_path / "site"
    package = site / "kernels"
    (package / "layer").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import importlib.metadata\n"
        "__version__ = importlib.metadata.version('kernels')\n"
        "from kernels.layer import Mode\n"
        "from kernels._versions import latest\n"
        + "".join(f"class {name}:\n    __init__ = lambda self, *a, **k: None\n" for name in HUB_NAMES.split())
        + "def use_kernel_forward_from_hub(name): return lambda cls: cls\n"
        "def use_kernelized_func(*names): return lambda cls: cls\n"
    )
    (package / "layer" / "__init__.py").write_text("from kernels.layer.mode import Mode\n")
    (package / "layer" / "mode.py").write_text("class Mode:\n    INFERENCE = 1\n")
    (package / "_versions.py").write_text("from kernels import __version__ as latest\n")
    metadata = site / f"kernels-{HUB_VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.4\nName: kernels\nVersion: {HUB_VERSION}\n")
    return site


def run(*command: object, cwd: Path, path: str = "", **env: str) -> str:
    """Return what a program writes; `path`: its PYTHONPATH."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "PREP_HOME": str(cwd / "home"), **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def script(folder: Path, text: str) -> Path:
    path = folder / "my_script.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_a_script_beside_files_of_our_names_runs_the_engine(folder: Path) -> None:
    (folder / "engine.py").unlink()
    program = """
        from engine import LLM, SamplingParams
        print(len(LLM("shop").generate(["Hello"], SamplingParams(max_tokens=3))[0].outputs[0].token_ids))
    """
    assert run(sys.executable, script(folder, program), cwd=folder.parent) == "3\n"


@pytest.mark.parametrize("package", PACKAGES)
def test_only_a_file_with_the_imported_packages_own_name_hides_it(package: str, folder: Path) -> None:
    """Python names that file: nothing of ours has run yet."""
    program = f"import {package}, {', '.join(PACKAGES[: PACKAGES.index(package)] or ['sys'])}"
    with pytest.raises(AssertionError, match=f"{package}.py of the user was imported"):
        run(sys.executable, script(folder, program), cwd=folder)
    (folder / f"{package}.py").unlink()
    run(sys.executable, script(folder, program), cwd=folder)


@pytest.mark.parametrize(
    "imports", ["import engine; from kernels import mine", "from kernels import mine; import engine"]
)
def test_a_users_kernels_and_the_engines_work_in_one_program(imports: str, tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("import engine\ndef mine(): return 'of the user'\n")
    program = script(tmp_path, f"{imports}\nfrom kernels import ops, mine\nprint(mine(), ops.__file__)")
    assert run(sys.executable, program, cwd=tmp_path).split() == [
        "of",
        "the",
        "user",
        str(ROOT / "kernels/ops.py"),
    ]


def test_a_module_imported_under_a_name_of_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    for name in ("__init__.py", "ops.py"):
        (tmp_path / "kernels" / name).write_text("")
    program = script(tmp_path, "import kernels.ops\nimport engine")
    with pytest.raises(
        AssertionError, match="has imported .*/kernels/ops.py under this name. Rename that file"
    ):
        run(sys.executable, program, cwd=tmp_path)


def test_a_plain_folder_with_the_name_of_a_package_hides_nothing(tmp_path: Path) -> None:
    for name in PACKAGES:
        (tmp_path / name).mkdir()
    program = script(
        tmp_path, f"import {', '.join(PACKAGES)}\nprint({', '.join(f'{x}.__file__' for x in PACKAGES)})"
    )
    assert run(sys.executable, program, cwd=tmp_path).split() == [
        str(ROOT / x / "__init__.py") for x in PACKAGES
    ]


@pytest.mark.parametrize("path", ["", "."], ids=["", "PYTHONPATH=."])
def test_commands_run_in_a_folder_with_files_of_our_names(path: str, folder: Path) -> None:
    assert "paged_attention" in run(PREP, "kernels", "list", cwd=folder, path=path)
    assert "prep 0.1.0" in run(sys.executable, "-P", "-m", "app.cli.main", "--version", cwd=folder)


@pytest.mark.parametrize("path", ["", "."], ids=["", "PYTHONPATH=."])
def test_what_commands_start_does_not_import_files_of_the_current_folder(path: str, folder: Path) -> None:
    program = """
        from prep_common.own_packages import PACKAGES, claim
        claim(*PACKAGES)
        from prep_common.child_process import ChildProcess, JsonChild, PipeChild
        with ChildProcess("app.cli.main", name="a command", args=["--version"]) as child:
            assert child.exit_code(None) == 0
        with PipeChild("engine.exec.core_process", name="the engine's process", keep_stderr=True) as child:
            child.write((None, None))
            print(child.read())
    """
    shown = run(sys.executable, "-P", "-c", textwrap.dedent(program), cwd=folder, path=path)
    assert "'NoneType' object" in shown, shown  # of the engine's process, to which None is no configuration


@pytest.mark.slow
def test_workers_of_a_command_run_in_a_folder_with_files_of_our_names(folder: Path) -> None:
    command = ["generate", "shop", "-p", "Hello", "--max-tokens", "3", "--tensor-parallel-size", "2"]
    run(PREP, *command, cwd=folder, path=".")


@pytest.mark.slow
def test_a_notebook_beside_files_of_our_names_runs_the_engine(folder: Path) -> None:
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    (folder / "engine.py").unlink()
    (folder / "kernels.py").write_text("def mine(): return 3\n")
    cells = ["from engine import LLM, SamplingParams", "import kernels; assert kernels.mine() == 3",
             "LLM('shop').generate(['Hello'], SamplingParams(max_tokens=3))"]  # fmt: skip
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}).execute()


def test_every_command_of_ours_for_python_leaves_the_current_folder_out() -> None:
    """-P, or a current folder that is ours: then nothing of the user's can lie there."""
    ours = {"app/cli/test.py", "app/bench/upgrade_sides.py", "interview/drills/running.py", "kernels/cpu/background.py",
            "lessons/l01_generate/lesson.py", "lessons/l08_paged_attention/lesson.py"}  # fmt: skip
    for path in (path for name in ("prep_common", *PACKAGES) for path in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            words = [ast.unparse(word) for word in getattr(node, "elts", [])]
            if "sys.executable" in words and {"'-m'", "'-c'"} & set(words):
                name = str(path.relative_to(ROOT))
                is_ours = name in ours or "NEIGHBOUR" in words  # a program without imports of ours
                assert is_ours or "'-P'" in words, f"{name}:{node.lineno}: {words}"


def test_commands_and_the_engine_run_beside_hugging_faces_kernels(hub: Path, tmp_path: Path) -> None:
    assert "paged_attention" in run(PREP, "kernels", "list", cwd=tmp_path, path=str(hub))
    run(sys.executable, "-c", "from engine import LLM; LLM('shop')", cwd=tmp_path, path=str(hub))


@pytest.mark.parametrize("first", ["import engine", "import transformers.integrations.hub_kernels"])
def test_transformers_gets_hugging_faces_kernels_where_they_are_installed(
    first: str, hub: Path, tmp_path: Path
) -> None:
    program = f"""
        {first}
        from transformers import LlamaForCausalLM
        from transformers.utils import is_kernels_available
        import engine
        from kernels import Device, __version__, get_kernel, ops
        from transformers.integrations import hub_kernels
        print(is_kernels_available(), __version__, ops.__file__, hub_kernels.get_kernel is not None)
    """
    shown = run(sys.executable, script(tmp_path, program), cwd=tmp_path, path=str(hub))
    assert shown.split() == ["True", HUB_VERSION, str(ROOT / "kernels/ops.py"), "True"]


def test_transformers_does_not_import_our_kernels_to_learn_that_they_are_not_hugging_faces(
    tmp_path: Path,
) -> None:
    program = """
        import sys
        from transformers.utils import is_kernels_available
        print(is_kernels_available(), "kernels" in sys.modules)
    """
    assert run(sys.executable, script(tmp_path, program), cwd=tmp_path).split() == ["False", "False"]


def test_another_checkout_on_the_path_lends_no_module(tmp_path: Path) -> None:
    copytree(ROOT / "prep_common", tmp_path / "prep_common", ignore=ignore_patterns("__pycache__"))
    (tmp_path / "kernels").mkdir()
    copy(ROOT / "kernels" / "__init__.py", tmp_path / "kernels")
    program = "import kernels; print(len(list(kernels.__path__)), hasattr(kernels, 'nothing'))"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1 False\n", "")


def test_threads_import_our_packages_at_the_same_time() -> None:
    program = """
from importlib import import_module
from threading import Thread

threads = [Thread(target=import_module, args=[name]) for name in ("engine", "kernels", "quizzes", "lessons", "app")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""
