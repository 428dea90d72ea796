"""The steps of the image as they are, in a clean folder: build, check the model, serve, drain, end.

Two things differ from `docker build`: the libraries are those of this environment, and so are the compiled kernels.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from engine.server.child_server import ChildServer
from prep_common.child_process import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build what the Dockerfile builds: `source` is the build context, `opt/prep` the environment."""
    folder = tmp_path_factory.mktemp("image")
    sent = re.findall(r"^!(\S+)$", (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    listed = subprocess.run(["git", "ls-files", "-z", *sent], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    build = [folder / "source/deploy/build.sh", folder / "opt/prep", "cpu", sys.executable]
    ended = subprocess.run(build, cwd=folder, capture_output=True, text=True, env=environment(folder))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shutil.copytree(folder / "source" / "deploy", folder / "opt" / "deploy")
    shutil.rmtree(folder / "source")  # the second stage of the image has no sources
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that the image sets."""
    kept = {name: os.environ[name] for name in ("HOME", "PREP_CACHE", "TMPDIR", "LANG") if name in os.environ}
    path = f"{folder / 'opt/prep/bin'}:/usr/local/bin:/usr/bin:/bin"
    return {**kept, "PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def start(image: Path, *words: str) -> list[str]:
    return [str(image / "opt/deploy/start.sh"), *words]


def test_the_built_environment_serves_drains_and_ends_with_exit_code_0(image: Path) -> None:
    command = start(image, "shop", str(image / "opt/deploy/shop.sha256"), "--drain-timeout", "30")
    log = image / "log"
    server = ChildServer(
        command,
        name="start.sh",
        log=log,
        cwd=image,
        environment=environment(image),
        inherit_environment=False,
    )
    with server:
        body = {"model": "shop", "prompt": "The price is", "max_tokens": 700, "ignore_eos": True}
        short = httpx.post(f"{server.url}/v1/completions", json={**body, "max_tokens": 4}, timeout=60)
        assert short.status_code == 200 and short.json()["usage"]["completion_tokens"] == 4
        with httpx.stream("POST", f"{server.url}/v1/completions", json={**body, "stream": True}) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(server.pid, signal.SIGTERM)  # exec: the script's process is the server
            events = [line for line in lines if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]" and len(events) > 100, "the running request was finished"
        assert server.exit_code(60) == 0
    said = log.read_text()
    assert "6 files as in" in said
    stages = re.search(r"started in [\d.]+ s: (.*)", said)
    assert stages is not None
    assert [part.rsplit(" ", 2)[0] for part in stages[1].split(", ")] == [
        "imports", "engine's imports", "weights", "KV cache", "rest of the engine", "adapters and warm-up",
    ]  # fmt: skip


def test_one_flipped_byte_of_the_weights_is_refused_at_the_start(image: Path) -> None:
    copy = image / "model"
    [shipped] = (image / "opt/prep/lib").glob("*/site-packages/engine/zoo/models/shop")
    shutil.copytree(shipped, copy)
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    command = start(image, str(copy), str(image / "opt/deploy/shop.sha256"), "--port", "0")
    refused = subprocess.run(command, env=environment(image), capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "model.safetensors has sha256" in refused.stderr and "refusing to serve" in refused.stderr


def test_a_start_without_a_manifest_or_a_build_of_an_unknown_target_is_a_usage_error(tmp_path: Path) -> None:
    for command in (["start.sh", "shop"], ["build.sh", str(tmp_path / "venv"), "tpu"], ["build.sh"]):
        ended = subprocess.run([ROOT / "deploy" / command[0], *command[1:]], capture_output=True, text=True)
        assert ended.returncode == 2 and re.search(r"usage:|use cpu or cuda", ended.stderr)
    assert not (tmp_path / "venv").exists()
