"""Workflows, version, URLs, citation and templates: valid, and in agreement with each other and the tree."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.test_commands_on_pages import parse

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
URLS = PROJECT["urls"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(
    set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"}
)
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)


def workflow(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    return read


def commands(read: dict[str, Any]) -> list[str]:
    """Return the lines that the steps of a workflow run."""
    steps = [step for job in read["jobs"].values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_the_host_of_the_project_are_valid(schema: str) -> None:
    assert SCHEMAS[schema]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *map(str, SCHEMAS[schema])], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_pass_actionlint() -> None:
    if shutil.which("actionlint") is None:
        pytest.skip("actionlint is not installed: https://github.com/rhysd/actionlint")
    done = subprocess.run(["actionlint", *map(str, WORKFLOWS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_of_workflows_exist(path: Path) -> None:
    listed = commands(workflow(path.stem))
    assert listed
    for line in listed:
        words = re.sub(r"\$\{\w+:\+[^}]*\}|<\S+", "", line)
        program = ROOT / shlex.split(words)[0]
        assert program.is_file() and program.stat().st_mode & 0o100, line
        if program.name == "prep":
            parse(words)


def test_a_push_runs_what_ci_runs_and_a_night_runs_everything() -> None:
    push, nightly = workflow("push"), workflow("nightly")
    assert ".ci/run" in commands(push)
    [everything] = commands(nightly)
    assert everything.startswith("./prep test --all")
    assert {"schedule", "workflow_dispatch"} == set(nightly[True])  # YAML 1.1 reads `on` as true
    for read, job in ((push, "test"), (nightly, "all")):
        matrix = read["jobs"][job]["strategy"]["matrix"]
        assert matrix["python"] == ["3.11", "3.12", "3.13"]
        assert {re.sub(r"-[\d.]+", "", system) for system in matrix["system"]} == {
            "ubuntu",
            "ubuntu-arm",
            "macos",
        }
        assert read["permissions"] == {"contents": "read"}
        for each in read["jobs"].values():
            assert each["timeout-minutes"] <= 240


def test_one_place_has_the_urls_of_the_project() -> None:
    repository = URLS["Repository"]
    host = repository.split("/")[2]
    assert all(url.startswith(repository) for url in URLS.values())
    listed = subprocess.run(["git", "grep", "-lF", host], cwd=ROOT, capture_output=True, text=True).stdout
    files = set(listed.split())
    assert {"README.md", "CITATION.cff", "SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"} <= files
    for name in files:
        used = re.findall(rf"https://{re.escape(host)}[^\s)>\"'`]*", (ROOT / name).read_text())
        assert set(used) <= set(URLS.values()), name
    assert f"git clone {repository} prep" in (ROOT / "README.md").read_text()


def test_version_citation_and_changelog_agree() -> None:
    version = PROJECT["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version and citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == URLS["Repository"]
    headings = HEADING.findall((ROOT / "CHANGELOG.md").read_text())
    matches = [
        re.fullmatch(r"(\d+\.\d+\.\d+), (not released yet|\d{4}-\d\d-\d\d)", heading) for heading in headings
    ]
    assert all(matches), headings
    versions = [tuple(map(int, match[1].split("."))) for match in matches if match]
    assert versions == sorted(set(versions), reverse=True)
    assert versions[-1] == (0, 1, 0) and headings[0].split(",")[0] == version
    released = [match for match in matches if match and match[2] != "not released yet"]
    assert len(matches) - len(released) <= 1, "only the newest may wait for its release"
    tags = subprocess.run(
        ["git", "tag", "--list", "v*"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    assert set(tags) <= {f"v{match[1]}" for match in released if match}
