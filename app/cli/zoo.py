"""`prep zoo`: list, check, evaluate, train and quantise the shipped models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli import terminal
from app.cli.engine_options import model_folder
from app.cli.options import JsonOption, argument, option
from app.cli.zoo_eval import eval_
from app.cli.zoo_quantize import formats, quantize, size
from engine.zoo.manifest import ManifestError, check_manifest, manifest_of
from engine.zoo.registry import MODELS, list_models
from prep_common.text import counted
from prep_common.text_file import read_text

HEADS = {"shop-eagle": "eagle", "shop-medusa": "medusa"}
"""Recipes of heads, which draft for `shop` and answer nothing themselves, and their speculative methods."""


def list_(json: JsonOption = False) -> None:
    """List the shipped models and their sizes."""
    models = list_models()
    if json:
        return terminal.print_json(
            [
                {"name": m.name, "path": str(m.path), **terminal.pick(m, "parameters megabytes")}
                for m in models
            ]
        )
    if not models:
        raise terminal.Problem("the zoo is empty", "prep zoo train shop", code=terminal.ENVIRONMENT)
    rows = [
        (m.name, f"{m.parameters / 1e6:.2f} M", f"{m.megabytes:.1f}", terminal.shown(m.path)) for m in models
    ]
    table = terminal.table("model", "parameters", "MB", "folder", left=("folder",), rows=rows)
    terminal.out().print(table)
    terminal.next_command(f"prep chat {models[0].name}", "chat with it; prep zoo eval measures it")


def manifest(
    model: Annotated[str, argument("A shipped model or a folder.")],
    check: Annotated[
        Path | None, option("Compare with this manifest; exit code 1 if a file differs.", metavar="FILE")
    ] = None,
) -> None:
    """Print the checksums of a model's files, or compare them with a manifest.

    The format is that of sha256sum. A changed, missing or additional file is a difference.

    \b
    Examples:
      prep zoo manifest shop > shop.sha256
      prep zoo manifest shop --check shop.sha256
    """
    folder = model_folder(model)
    if check is None:
        print(manifest_of(folder), end="")
        return
    text = read_text(check)
    try:
        count = check_manifest(folder, text)
    except ManifestError as error:
        raise terminal.Problem(
            str(error),
            f"restore the files, or write a new manifest: prep zoo manifest {model}",
            code=terminal.CHECKS_FAILED,
        ) from None
    terminal.note(f"{model}: {counted(count, 'file')} as in {check}")


def train(
    recipe: Annotated[str, argument("A name of prep zoo list.")] = "shop",
    out: Annotated[
        Path | None, option("Folder to write.  [default: runs/RECIPE]", show_default=False)
    ] = None,
    resume: Annotated[bool, option("Continue from the last checkpoint.", "--resume")] = False,
    minutes: Annotated[float | None, option("Training time; by default the recipe's.")] = None,
    max_steps: Annotated[int | None, option("Stop after this many steps.")] = None,
) -> None:
    """Train a model from the recipe of a shipped one. The shipped weights stay unchanged.

    Ctrl-C keeps a checkpoint, --resume continues from it, and the folder is written when the training is complete.

    \b
    Examples:
      prep zoo train shop --minutes 10 --out my-shop
      prep zoo train shop --resume
    """
    from engine.zoo.recipes import ALL_RECIPES
    from engine.zoo.train import TrainingStopped, checkpoint_path
    from engine.zoo.train import train as run

    if recipe not in ALL_RECIPES:
        raise terminal.Problem(
            f"no recipe {recipe!r}; there are: {', '.join(ALL_RECIPES)}",
            f"prep zoo train {next(iter(ALL_RECIPES))}",
        )
    if resume and not checkpoint_path(recipe).exists():
        raise terminal.Problem(
            f"no checkpoint of {recipe} at {checkpoint_path(recipe)}", f"prep zoo train {recipe}"
        )
    folder = out or Path("runs") / recipe
    if folder.resolve().is_relative_to(MODELS.resolve()):
        raise terminal.Problem(
            f"{folder} is a shipped model, which questions and tests rely on",
            f"prep zoo train {recipe} --out runs/{recipe}",
        )
    if not max_steps:
        terminal.note(
            f"[dim]training {recipe} for {minutes or ALL_RECIPES[recipe].minutes:g} min into {folder}[/]"
        )
    try:
        run(recipe, folder, resume=resume, minutes=minutes, max_steps=max_steps, console=terminal.err())
    except TrainingStopped as stopped:
        terminal.note(terminal.literal(stopped))
        limits = {"--minutes": minutes, "--max-steps": max_steps}
        given = "".join(f" {name} {value:g}" for name, value in limits.items() if value is not None)
        terminal.next_command(f"prep zoo train {recipe} --out {folder} --resume{given}")
        raise typer.Exit(terminal.INTERRUPTED) from None
    if not folder.exists():
        return
    if (method := HEADS.get(recipe)) is not None:
        config = f'{{"method": "{method}", "model": "{folder}"}}'
        terminal.next_command(
            f"prep bench speculation --speculative-config '{config}'", "measure its acceptance"
        )
    else:
        terminal.next_command(f"prep zoo eval {folder}", "measure its exact match on unseen shops")


zoo = terminal.command_app(
    quantize,
    size,
    formats,
    list_,
    eval_,
    manifest,
    train,
    help="List, evaluate, train and quantise the shipped models of an invented manga shop.",
)
