"""The same adapter in the peft library on transformers: the yardstick for what a PEFT folder means."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import LoRARequest, SamplingParams
from tests.lora.conftest import OpenLLM
from tests.lora.peft_files import ATTENTION, SHOP, random_tensors, write_adapter

peft = pytest.importorskip("peft")
PROMPT = list(range(200, 240))


def adapters(folder: Path) -> list[Path]:
    mixed = random_tensors(2, 8, ["q_proj"]) | random_tensors(3, 4, ["v_proj", "o_proj"])
    return [
        write_adapter(folder / "plain", seed=1, rank=16, targets=[*ATTENTION, "up_proj", "down_proj"]),
        write_adapter(
            folder / "patterns",
            tensors=mixed,
            targets=["q_proj", "v_proj", "o_proj"],
            rank_pattern={"v_proj": 4, "o_proj": 4},
            alpha_pattern={"o_proj": 32},
            use_rslora=True,
        ),
    ]


@torch.no_grad()
def test_logits_are_those_of_peft(tmp_path: Path, open_llm: OpenLLM) -> None:
    from transformers import AutoModelForCausalLM

    llm = open_llm(enable_lora=True, max_loras=2)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, logprobs=5)
    for number, folder in enumerate(adapters(tmp_path), start=1):
        base = AutoModelForCausalLM.from_pretrained(SHOP, dtype=torch.float32)
        theirs = peft.PeftModel.from_pretrained(base, str(folder)).eval()
        expected = theirs(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
        lora = LoRARequest(folder.name, number, str(folder))
        [output] = llm.generate(PROMPT, params, lora_request=lora, use_tqdm=False)
        for position, entry in enumerate(output.prompt_logprobs[1:]):
            [(token_id, logprob)] = entry.items()
            assert logprob.logprob == pytest.approx(float(expected[position, token_id]), abs=1e-3)
        for token_id, logprob in output.outputs[0].logprobs[0].items():
            assert logprob.logprob == pytest.approx(float(expected[-1, token_id]), abs=1e-3)


def test_what_the_zoo_saves_peft_reads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from engine.zoo.export import load_model
    from engine.zoo.low_rank import attach, save_adapter

    targets = ("q_proj", "down_proj")
    torch.manual_seed(1)
    model = load_model(SHOP)
    trained = attach(model, targets, 8, 16)
    for weight in trained.values():
        weight.data.normal_(std=0.05)
        weight.data = weight.data.bfloat16().float()
    folder = save_adapter(tmp_path / "adapter", trained, "shop", targets, 8, 16)
    base = AutoModelForCausalLM.from_pretrained(SHOP, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(base, str(folder)).eval()
    with torch.no_grad():
        hidden, _ = model.hidden(torch.tensor([PROMPT]))
        torch.testing.assert_close(
            model.logits(hidden), theirs(torch.tensor([PROMPT])).logits, rtol=1e-3, atol=1e-3
        )
