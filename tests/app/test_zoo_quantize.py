"""`prep zoo quantize` and `prep zoo size`: what they write, say and refuse."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from app.cli.main import app
from engine.zoo.registry import resolve


def prep(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_quantised_folder_is_whole_and_says_how_good_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "draft-gptq"
    command = (
        "zoo",
        "quantize",
        "shop-draft",
        "--method",
        "gptq",
        "--group",
        16,
        "--act-order",
        "--samples",
        2,
    )
    result = prep(*command, "--output", folder, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["num_samples"] == 2 and len(report["matrices"]) == 21
    assert 0 < report["error"] < 0.02 and 4 < report["bits_per_weight"] < 6
    assert json.loads((folder / "quantization_report.json").read_text()) == report
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["desc_act"], config["group_size"]) == ("gptq", True, 16)
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (folder / name).read_bytes() == (resolve("shop-draft") / name).read_bytes()
    again = prep(*command, "--output", folder)
    assert again.exit_code == 2 and "exists" in again.output


@pytest.mark.parametrize("fits", ["nothing", "all but the weights"])
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, fits: str) -> None:
    """A limit on the size of files fails as a full disk does."""
    copied = [
        file.stat().st_size for file in resolve("shop-draft").iterdir() if file.suffix != ".safetensors"
    ]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 if fits == "nothing" else max(copied) + 1000, limits[1]))
    try:
        command = ("zoo", "quantize", "shop-draft", "--method", "rtn", "--group", 16, "--samples", 1)
        result = prep(*command, "--output", tmp_path / "q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.exit_code == 3 and f"cannot write the folder {tmp_path / 'q'}" in result.output
    assert "File too large" in result.output and "another disk" in result.output
    assert list(tmp_path.iterdir()) == []


def test_outliers_alone_leave_the_checkpoint_float(tmp_path: Path) -> None:
    folder = tmp_path / "outliers"
    result = prep(
        "zoo", "quantize", "shop-draft", "--method", "none", "--inject-outliers", "--output", folder
    )
    assert result.exit_code == 0, result.output
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, resolve("shop-draft")))
    name = "model.layers.0.input_layernorm.weight"
    changed = (ours[name] / theirs[name]).unique().tolist()
    assert changed == [1.0, 64.0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--method", "nf4"), "there are rtn, gptq"),
        (("--method", "awq", "--bits", "8"), "awq has 4 bits"),
        (("--method", "none"), "changes nothing"),
        (("--calibration", "nowhere.txt"), "cannot read nowhere.txt: it does not exist"),
        (("--output", "/proc/x"), "cannot create the folder /proc/x"),
        (("--output", "README.md/x"), "cannot create the folder README.md/x"),
        (("--group", "96"), "do not divide"),
    ],
)
def test_what_cannot_be_made_is_a_usage_error(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = prep("zoo", "quantize", "shop-draft", "--output", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [("quantize",), ("formats",), ("eval",), ("eval", "shop", "--gates", "--reference")]
)
def test_an_unknown_model_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    result = prep("zoo", *arguments, "nope")
    assert result.exit_code == 2
    assert "error: no model 'nope'" in result.stderr and "next: prep zoo list" in result.stderr


def test_size_counts_what_stays_float() -> None:
    sizes = {}
    for method in ("none", "awq"):
        result = prep("zoo", "size", "shop", "--method", method, "--json")
        assert result.exit_code == 0, result.output
        sizes[method] = json.loads(result.stdout)
    stored = sum(tensor.nbytes for tensor in load_file(resolve("shop") / "model.safetensors").values())
    assert sizes["none"]["total_bytes"] == stored
    assert sizes["awq"]["bits_per_matrix_weight"] == 4.15625 < sizes["awq"]["bits_per_weight"] < 6
    assert prep("zoo", "size", "shop", "--method", "nf4").exit_code == 2


@pytest.mark.slow
def test_the_formats_are_compared_on_the_model_s_own_matrices() -> None:
    result = prep("zoo", "formats", "shop", "--samples", 1, "--json")
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)["formats"]}
    assert rows["mxfp4"]["bits_per_weight"] == 4.25 and 4.5 < rows["nvfp4"]["bits_per_weight"] < 4.51
    assert (
        rows["int8 weights"]["error"] < rows["fp8"]["error"] < rows["nvfp4"]["error"] < rows["mxfp4"]["error"]
    )
    assert rows["int8"]["error_outlying_activations"] > 5 * rows["int8"]["error"]
    assert rows["nvfp4"]["error_outlying_weights"] < rows["mxfp4"]["error_outlying_weights"]


def test_the_size_of_an_fp4_model_is_that_of_hardware_which_holds_it() -> None:
    for method, bits in (("mxfp4", 4.25), ("nvfp4", 4.5)):
        result = prep("zoo", "size", "shop", "--method", method, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["bits_per_matrix_weight"] == pytest.approx(bits, abs=1e-2)
    refused = prep("zoo", "size", "shop", "--method", "nvfp4", "--bits", 8)
    assert refused.exit_code == 2 and "nvfp4 has 4 bits, not 8" in refused.output
