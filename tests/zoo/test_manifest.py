"""The checksum manifest of a model, and the command that compares a folder with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from engine.zoo.manifest import ManifestError, check_manifest, manifest_of, read_manifest
from engine.zoo.registry import resolve


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "weights.bin").write_bytes(bytes(range(256)) * 40)
    (folder / ".cache").write_text("a hidden file is no part of the model")
    return folder


def test_one_flipped_bit_is_named(model: Path) -> None:
    manifest = manifest_of(model)
    assert check_manifest(model, manifest) == 2
    weights = model / "sub" / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[5000] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ManifestError, match=r"sub/weights\.bin has sha256 \w{12}…, expected \w{12}…$"):
        check_manifest(model, manifest)


def test_missing_and_additional_files_are_named(model: Path) -> None:
    manifest = manifest_of(model)
    (model / "config.json").rename(model / "chat_template.jinja")
    with pytest.raises(
        ManifestError, match=r"config\.json is missing; chat_template\.jinja is not in the man"
    ):
        check_manifest(model, manifest)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no files"),
        ("abc  config.json\n", "line 1 is not `SHA256  FILE`"),
        (f"{'0' * 64}  ../secret\n", "line 1 names a file outside"),
        (f"{'0' * 64}  /etc/passwd\n", "line 1 names a file outside"),
        (f"{'0' * 64}  a\n{'1' * 64}  a\n", "line 2 names 'a' again"),
    ],
)
def test_a_malformed_manifest_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read_manifest(text)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum of coreutils")
def test_sha256sum_reads_the_same_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest").write_text(manifest_of(model))
    ended = subprocess.run(
        ["sha256sum", "--check", "--strict", tmp_path / "manifest"], cwd=model, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr


def test_the_command_checks_a_copy_and_refuses_a_changed_one(tmp_path: Path) -> None:
    copy, file = tmp_path / "shop", tmp_path / "shop.sha256"
    shutil.copytree(resolve("shop"), copy)
    run = CliRunner().invoke
    file.write_text(run(app, ["zoo", "manifest", "shop"]).stdout)
    assert run(app, ["zoo", "manifest", str(copy), "--check", str(file)]).exit_code == 0
    (copy / "tokenizer.json").write_bytes((copy / "tokenizer.json").read_bytes() + b" ")
    refused = run(app, ["zoo", "manifest", str(copy), "--check", str(file)])
    assert refused.exit_code == 1 and "tokenizer.json has sha256" in refused.output
