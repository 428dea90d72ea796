"""`prep zoo`: list, evaluate, train and quantise the shipped models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.engine_options import engine_options
from app.cli.session import open_llm
from app.cli.zoo_adapters import eval_adapter, is_adapter
from app.cli.zoo_quantize import formats, quantize, size

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.zoo.evaluate import EvalReport

app = terminal.command_app(no_args_is_help=True)
app.command()(quantize)
app.command()(size)
app.command()(formats)


@app.callback()
def zoo() -> None:
    """List, evaluate, train and quantise the shipped models of an invented manga shop."""


@app.command("list")
def list_(json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False) -> None:
    """List the shipped models and their sizes."""
    from engine.zoo.registry import list_models

    models = list_models()
    if json:
        terminal.print_json(
            [
                {"name": m.name, "path": str(m.path), "parameters": m.parameters, "megabytes": m.megabytes}
                for m in models
            ]
        )
        return
    if not models:
        raise terminal.Problem("the zoo is empty", next_step="prep zoo train shop", code=terminal.ENVIRONMENT)
    table = terminal.table("model", "parameters", "MB", "folder", left=("folder",))
    for model in models:
        table.add_row(
            model.name, f"{model.parameters / 1e6:.2f} M", f"{model.megabytes:.1f}", _short(model.path)
        )
    terminal.out().print(table)
    terminal.next_command(f"prep chat {models[0].name}", "chat with it; prep zoo eval measures it")


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@app.command("eval")
@engine_options
def eval_(
    model: Annotated[str, typer.Argument(help="A shipped model or a folder.")] = "shop",
    n: Annotated[
        int, typer.Option("-n", min=1, help="Minimum answers to judge; conversations stay whole.")
    ] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the unseen shops.")] = 0,
    split: Annotated[
        str, typer.Option(help="test or validation: titles that training never showed.")
    ] = "test",
    misses: Annotated[int, typer.Option(help="Show this many wrong answers.")] = 0,
    gates: Annotated[
        bool,
        typer.Option(
            "--gates", help="Compare with --reference and decide whether this model may replace it."
        ),
    ] = False,
    reference: Annotated[
        str, typer.Option(help="With --gates: the model to compare with, at its defaults.")
    ] = "shop",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure exact match on unseen shops: an answer counts if every character is right.

    The engine answers greedily with batching, chunked prefill and prefix cache.

    \b
    Examples:
      prep zoo eval shop
      prep zoo eval shop -n 2000 --misses 5
      prep zoo eval shop-lora-support        an adapter beside its base
      prep zoo eval shop --gates --kv-cache-dtype fp8
      prep zoo eval ./shop-awq --gates --reference shop --json

    With --gates the exit code is 0 if all pass, 1 if one fails, 4 if more questions are needed.
    """
    from engine.zoo.evaluate import evaluate
    from engine.zoo.registry import resolve

    try:
        resolve(model)
    except FileNotFoundError as error:
        raise terminal.Problem(str(error), next_step="prep zoo list") from None
    if is_adapter(model):
        eval_adapter(model, engine, n=n, seed=seed, split=split, misses=misses, as_json=json)
        return
    if gates:
        from app.cli.zoo_gates import run_gates

        run_gates(model, reference, engine, n=n, seed=seed, split=split, as_json=json)
        return
    with open_llm(model, engine) as llm:
        report = evaluate(model, n, seed, split, lambda prompts: engine_answers(llm, prompts))
    if json:
        terminal.print_json(report.as_dict())
        return
    terminal.out().print(report.table())
    _show_misses(report, misses)
    terminal.next_command(f"prep zoo eval {model} --misses 5", "show wrong answers")


def engine_answers(llm: LLM, prompts: list[str]) -> list[str]:
    """Return the engine's greedy answers, special tokens included, as `evaluate` compares them."""
    from engine.sampling_params import SamplingParams
    from engine.zoo.evaluate import MAX_NEW_TOKENS

    params = SamplingParams(temperature=0, max_tokens=MAX_NEW_TOKENS, skip_special_tokens=False)
    show_bar = None if terminal.is_live(terminal.err()) else False
    outputs = llm.generate(prompts, params, use_tqdm=show_bar)
    return [output.outputs[0].text for output in outputs]


def _show_misses(report: EvalReport, count: int) -> None:
    from rich.markup import escape

    for case, output in report.misses[:count]:
        question = case.prompt.rsplit("<|im_start|>user\n", 1)[-1].split("<|im_end|>")[0]
        terminal.out().print(
            f"[bold]{escape(question)}[/]\n  want {escape(case.answer)}\n  got  {escape(output)}"
        )


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A name of prep zoo list.")] = "shop",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write.  [default: runs/RECIPE]", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Training time; by default the recipe's.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop after this many steps.")] = None,
) -> None:
    """Train a model from the recipe of a shipped one. The shipped weights stay unchanged.

    Ctrl-C keeps a checkpoint, --resume continues from it, and the folder is written when the training is complete.

    \b
    Examples:
      prep zoo train shop --minutes 10 --out my-shop
      prep zoo train shop --resume
    """
    from engine.zoo.recipes import ADAPTER_RECIPES, RECIPES, AdapterRecipe, Recipe
    from engine.zoo.registry import MODELS
    from engine.zoo.train import TrainingStopped, checkpoint_path
    from engine.zoo.train import train as run

    known: dict[str, Recipe | AdapterRecipe] = {**RECIPES, **ADAPTER_RECIPES}
    if recipe not in known:
        raise terminal.Problem(
            f"no recipe {recipe!r}; there are: {', '.join(known)}",
            next_step=f"prep zoo train {next(iter(RECIPES))}",
        )
    if resume and not checkpoint_path(recipe).exists():
        raise terminal.Problem(
            f"no checkpoint of {recipe} at {checkpoint_path(recipe)}", next_step=f"prep zoo train {recipe}"
        )
    folder = out or Path("runs") / recipe
    if folder.resolve().is_relative_to(MODELS.resolve()):
        raise terminal.Problem(
            f"{folder} is a shipped model, which questions and tests rely on",
            next_step=f"prep zoo train {recipe} --out runs/{recipe}",
        )
    if not max_steps:
        terminal.err().print(
            f"[dim]training {recipe} for {minutes or known[recipe].minutes:g} min into {folder}[/]",
            soft_wrap=True,
        )
    try:
        run(recipe, folder, resume=resume, minutes=minutes, max_steps=max_steps, console=terminal.err())
    except TrainingStopped as stopped:
        terminal.err().print(terminal.literal(stopped), soft_wrap=True)
        limits = {"--minutes": minutes, "--max-steps": max_steps}
        given = "".join(f" {name} {value:g}" for name, value in limits.items() if value is not None)
        terminal.next_command(f"prep zoo train {recipe} --out {folder} --resume{given}")
        raise typer.Exit(terminal.INTERRUPTED) from None
    if folder.exists():
        terminal.next_command(f"prep zoo eval {folder}", "measure its exact match on unseen shops")
