"""Adapters on the command line: generating, judging and measuring with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli.main import app
from engine import LoRARequest, SamplingParams
from tests.lora.conftest import OpenLLM
from tests.lora.peft_files import write_adapter

QUESTION = "How much is shipping?"
SMALL = ["--num-gpu-blocks-override", "128"]
GREEDY = ["--temperature", "0", "--max-tokens", "16", "--json", *SMALL]


def prep(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def generated(*arguments: str) -> list[int]:
    result = prep("generate", "shop", "-p", QUESTION, *arguments, *GREEDY)
    assert result.exit_code == 0, result.output
    [output] = json.loads(result.stdout)
    token_ids: list[int] = output["outputs"][0]["token_ids"]
    return token_ids


def test_generate_answers_with_the_adapter_that_lora_names(open_llm: OpenLLM) -> None:
    llm = open_llm(enable_lora=True)
    params = SamplingParams(temperature=0, max_tokens=16)
    support = LoRARequest("support", 1, "shop-lora-support")
    [expected] = llm.generate(QUESTION, params, lora_request=support, use_tqdm=False)
    with_adapter = generated("--lora", "shop-lora-support")
    assert with_adapter == expected.outputs[0].token_ids
    assert with_adapter != generated()


def test_generate_loads_adapters_by_path_and_uses_them_only_when_asked(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "mine", seed=1, rank=8)
    loaded = ["--lora-modules", f"mine={folder}"]
    base = generated()
    assert generated(*loaded) == base
    assert generated(*loaded, "--lora", "mine") != base


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--lora", "shop-lora-suport"], "shop-lora-support"),
        (["--lora", "shop"], "shop-lora-support"),
        (["--lora-modules", "mine"], "NAME=PATH"),
        (["--lora-modules", "mine=/nowhere"], "/nowhere"),
    ],
)
def test_an_adapter_that_is_not_there_is_a_usage_error(arguments: list[str], told: str) -> None:
    result = prep("generate", "shop", "-p", QUESTION, *arguments, *SMALL)
    assert result.exit_code == 2, result.output
    assert told in " ".join(result.stderr.split())
    assert result.stdout == ""


@pytest.mark.slow
def test_zoo_eval_of_an_adapter_asks_its_base_the_same_questions() -> None:
    result = prep("zoo", "eval", "shop-lora-support", "-n", "20", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    adapter, base = report["adapter"]["overall"], report["base"]["overall"]
    assert adapter["total"] == base["total"] >= 20
    assert adapter["right"] > 0.8 * adapter["total"] > base["right"]


def test_bench_lora_measures_none_one_and_several_in_one_engine() -> None:
    small = ["--adapters", "2", "--batch-size", "3", "--output-len", "4", "--rank", "8", "--rounds", "1"]
    result = prep("bench", "lora", *small, *SMALL, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [row["num_adapters"] for row in report["variants"]] == [0, 1, 2]
    assert report["variants"][0]["relative"] == 1
    assert all(row["tokens_per_s"] > 0 and row["relative"] > 0 for row in report["variants"])
    assert report["load_ms"] > 0


def test_slots_in_bf16_take_half_the_bytes() -> None:
    small = ["--adapters", "2", "--output-len", "2", "--rounds", "1", *SMALL, "--json"]
    sizes = []
    for lora_dtype in ("float32", "bfloat16"):
        result = prep("bench", "lora", *small, "--lora-dtype", lora_dtype)
        assert result.exit_code == 0, result.output
        sizes.append(json.loads(result.stdout)["adapter_bytes"])
    assert sizes[0] == 2 * sizes[1]
