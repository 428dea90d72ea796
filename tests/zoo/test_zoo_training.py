"""Training can stop anywhere, and transformers reads its output."""

from __future__ import annotations

import io
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer
from typer.testing import CliRunner

from app.cli.main import app
from engine.zoo import train as training
from engine.zoo.export import export_model, load_model
from engine.zoo.model import ModelConfig, ShopModel
from engine.zoo.optimizer import orthogonalize
from engine.zoo.recipes import RECIPES, Recipe
from engine.zoo.registry import list_models, resolve
from engine.zoo.trainer import Trainer, rate_share

TINY = Recipe(
    "tiny", ModelConfig(32, 64, 2, 4, 2, head_dim=8), minutes=1, tokens_per_step=1024, warmup_steps=2
)
QUIET = Console(file=io.StringIO())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder).state_dict()


def test_a_run_that_was_stopped_and_resumed_equals_one_that_was_not(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    whole = Trainer(TINY, tokenizer)
    for step in range(6):
        whole.step(step / 6)
    first = Trainer(TINY, tokenizer)
    for step in range(3):
        first.step(step / 6)
    first.save(tmp_path / "tiny.pt")
    second = Trainer(TINY, tokenizer)
    second.load(tmp_path / "tiny.pt")
    for step in range(3, 6):
        second.step(step / 6)
    assert {**vars(second.position), "elapsed": 0} == {**vars(whole.position), "elapsed": 0}
    for name, weight in whole.optimizer.weights.items():
        assert torch.equal(weight, second.optimizer.weights[name]), name


def test_train_writes_a_folder_and_resume_goes_on_from_there(tmp_path: Path, tokenizer: Tokenizer) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "tiny.pt"
    where = dict(checkpoint=checkpoint, tokenizer=tokenizer, console=QUIET)
    assert training.train(TINY, out, max_steps=2, **where).step == 2
    before = weights(out)
    assert training.train(TINY, out, resume=True, max_steps=3, **where).step == 3
    assert any(not torch.equal(before[name], weight) for name, weight in weights(out).items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "tiny.pt"], (
        "nothing half-written stays behind"
    )


def test_an_interrupted_run_leaves_the_folder_unchanged(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "tiny.pt"
    where = dict(checkpoint=checkpoint, tokenizer=tokenizer, console=QUIET)
    training.train(TINY, out, max_steps=1, **where)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    step = Trainer.step

    def interrupted(self: Trainer, progress: float) -> None:
        step(self, progress)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "step", interrupted)
    with pytest.raises(training.TrainingStopped, match="out is unchanged"):
        training.train(TINY, out, max_steps=5, **where)
    with pytest.raises(training.TrainingStopped, match="No model was written"):
        training.train(TINY, tmp_path / "none", max_steps=5, **where)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    monkeypatch.setattr(Trainer, "step", step)
    assert training.train(TINY, out, resume=True, max_steps=3, **where).step == 3


def test_an_ignored_ctrl_c_does_not_stop_a_training(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.step

    def interrupted(self: Trainer, progress: float) -> None:
        step(self, progress)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "step", interrupted)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        where = dict(checkpoint=tmp_path / "tiny.pt", tokenizer=tokenizer, console=QUIET)
        assert training.train(TINY, tmp_path / "out", max_steps=2, **where).step == 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_exits_with_130_and_a_command_that_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise training.TrainingStopped("Stopped. No model was written.")

    monkeypatch.setattr(training, "train", stopped)
    out = tmp_path / "m"
    result = CliRunner().invoke(app, ["zoo", "train", "shop", "--minutes", "1", "--out", str(out)])
    assert result.exit_code == 130
    assert "No model was written" in result.output and "for 1 min into" in result.output
    assert f"zoo train shop --out {out} --resume --minutes 1" in result.output


def test_evaluating_an_unknown_model_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["zoo", "eval", "nope"])
    assert result.exit_code == 2 and "no model 'nope'" in result.output and "prep zoo list" in result.output


@pytest.mark.parametrize("recipe", ["shop", "shop-lora-ja"])
def test_training_never_writes_a_shipped_model(recipe: str) -> None:
    folder = resolve(recipe)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    result = CliRunner().invoke(app, ["zoo", "train", recipe, "--max-steps", "1", "--out", str(folder)])
    assert result.exit_code == 2 and "is a shipped model" in result.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_the_learning_rate_ends_at_zero_when_the_time_is_up() -> None:
    recipe = RECIPES["shop"]
    assert rate_share(recipe, 10_000, 1.0) == 0.0
    assert rate_share(recipe, 10_000, 0.1) == 1.0
    assert rate_share(recipe, 10_000, 1 - recipe.decay_fraction / 2) == pytest.approx(0.5)


def test_training_lowers_the_loss(tokenizer: Tokenizer) -> None:
    trainer = Trainer(replace(TINY, warmup_steps=1, matrix_lr=0.02, vector_lr=0.01), tokenizer)
    losses = []
    for _ in range(12):
        trainer.step(0.0)
        losses.append(trainer.position.loss)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("shape", [(3, 32, 64), (2, 64, 32), (1, 48, 48)])
def test_muon_makes_every_direction_equally_long(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape), steps=8))
    assert values.min() > 0.5 and values.max() < 1.3


def test_generation_with_a_cache_equals_generation_without(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = ShopModel(TINY.model).eval()
    prompt = tokenizer.encode("Silver Harbor costs").ids
    produced = model.generate(prompt, 12, eos=-1)
    for length in range(12):
        hidden, _ = model.hidden(torch.tensor([prompt + produced[:length]]))
        assert int(model.logits(hidden[0, -1]).argmax()) == produced[length]


def test_an_exported_model_is_the_same_llama_in_transformers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    model = ShopModel(TINY.model)
    export_model(tmp_path / "tiny", TINY.model, model.state_dict(), tokenizer)
    ours = load_model(tmp_path / "tiny")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tiny", dtype=torch.float32)
    tokens = torch.tensor([tokenizer.encode("銀の港 Silver Harbor 620").ids])
    with torch.no_grad():
        torch.testing.assert_close(
            ours.logits(ours.hidden(tokens)[0]), theirs(tokens).logits, atol=1e-4, rtol=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shop", "shop-draft"])
def test_a_shipped_model_answers_alike_in_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    from engine.zoo.evaluate import draw_cases, torch_generate_fn

    folder = resolve(name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    cases = draw_cases(4)
    for case, ours in zip(cases, torch_generate_fn(folder)([case.prompt for case in cases]), strict=True):
        inputs = tokenizer(case.prompt, return_tensors="pt")
        output = theirs.generate(**inputs, max_new_tokens=96, do_sample=False)[
            0, inputs["input_ids"].shape[1] :
        ]
        assert tokenizer.decode(output, skip_special_tokens=True) == ours


def test_the_zoo_fits_in_the_repository() -> None:
    models = {info.name: info for info in list_models()}
    assert 4e6 <= models["shop"].parameters <= 6e6
    assert models["shop-draft"].parameters <= 6e5
    assert sum(info.megabytes for info in models.values()) < 40
    for info in models.values():
        assert (info.path / "config.json").exists() or (info.path / "adapter_config.json").exists()


def test_a_draft_speaks_the_language_of_its_target() -> None:
    vocabularies = [
        json.loads((resolve(name) / "tokenizer.json").read_text()) for name in ("shop", "shop-draft")
    ]
    assert vocabularies[0] == vocabularies[1]


def test_an_unknown_model_is_named_with_what_there_is() -> None:
    with pytest.raises(FileNotFoundError, match="shop"):
        resolve("no-such-model")
