"""`prep zoo quantize`: a float model in, a quantised checkpoint in a public format out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal

if TYPE_CHECKING:
    from engine.quant.quantizer.run import Report

FLOAT = "none"


def quantize(
    model: Annotated[str, typer.Argument(help="A shipped model or a folder of the zoo's layout.")] = "shop",
    method: Annotated[
        str,
        typer.Option(help="rtn, gptq, awq, int8, smoothquant or fp8; none: only --inject-outliers."),
    ] = "awq",
    bits: Annotated[
        int | None,
        typer.Option(help="4 (rtn, gptq, awq) or 8 (all but awq); the method's own by default."),
    ] = None,
    group: Annotated[
        int, typer.Option(help="Columns that share a scale (rtn, gptq, awq); -1: the whole row.")
    ] = 128,
    symmetric: Annotated[
        bool | None,
        typer.Option("--symmetric/--asymmetric", help="Without or with zero points; rtn and gptq: without."),
    ] = None,
    act_order: Annotated[bool, typer.Option("--act-order", help="gptq: important columns first.")] = False,
    activations: Annotated[
        str, typer.Option(help="fp8: dynamic, or static (a calibrated scale).")
    ] = "dynamic",
    alpha: Annotated[
        float, typer.Option(help="smoothquant: how far outliers move into the weights, 0 to 1.")
    ] = 0.5,
    calibration: Annotated[
        str, typer.Option(help="in-domain (conversations of the shop), or a text or JSONL file.")
    ] = "in-domain",
    samples: Annotated[int, typer.Option(min=1, help="Texts to calibrate with.")] = 64,
    output: Annotated[Path | None, typer.Option("--output", help="Folder to write; must not exist.")] = None,
    inject_outliers: Annotated[
        bool,
        typer.Option("--inject-outliers", help="First give the activations outliers, as large models have."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Quantise a model and write it in the format that other engines read.

    \b
    rtn           compressed-tensors, int4 or int8 weights, rounded to nearest
    gptq          GPTQ (AutoGPTQ): errors compensated column by column
    awq           AWQ (AutoAWQ): important channels scaled up first
    int8          compressed-tensors, int8 weights and activations
    smoothquant   the same, outliers moved into the weights first
    fp8           compressed-tensors, e4m3 weights and activations

    \b
    --inject-outliers multiplies a few channels behind every norm by 64 and
    divides the weights that read them: the same function, but int8
    activations now fail as they do in large models.

    \b
    Examples:
      prep zoo quantize shop --method awq --group 64 --output shop-awq
      prep zoo quantize shop --method gptq --act-order --calibration lines.txt
      prep zoo quantize shop --method int8 --inject-outliers --json
    """
    with terminal.loading("the quantiser"):
        from engine.quant.quantizer.calibration import calibration_texts, tokenized
        from engine.quant.quantizer.encode import stored_dtype
        from engine.quant.quantizer.folding import inject_outliers as inject
        from engine.quant.quantizer.recipe import Recipe
        from engine.quant.quantizer.run import Report, load_float_model, quantize, write_checkpoint
        from engine.zoo.registry import resolve
        from engine.zoo.tokenizer import load_tokenizer

    source = resolve(model)
    if method == FLOAT and not inject_outliers:
        raise terminal.Problem(
            "--method none makes nothing", next_step="--method awq, or --inject-outliers with it"
        )
    recipe = None
    if method != FLOAT:
        recipe = Recipe.create(
            method,
            bits=bits,
            group_size=group,
            symmetric=symmetric,
            act_order=act_order,
            activations=activations,
            alpha=alpha,
        )
    folder = output or Path(
        _default_name(source.name, method, group, recipe is not None and recipe.is_grouped)
    )
    if folder.exists():
        raise terminal.Problem(f"{folder} exists", next_step="--output another-folder, or remove it")
    float_model, original = load_float_model(source)
    if inject_outliers:
        inject(float_model)
    if recipe is None:
        tensors = {name: weight.to(original) for name, weight in float_model.state_dict().items()}
        size = write_checkpoint(source, folder, tensors, None, original, None)
        _done(json, folder, {"output": str(folder), "file_bytes": size})
        return
    report = Report(source.name, recipe, original_bytes=(source / "model.safetensors").stat().st_size)
    with terminal.status("quantising", lines_in_pipe=True) as tell:
        tell("reading calibration texts")
        batch = tokenized(calibration_texts(calibration, samples), load_tokenizer(source))
        tensors = quantize(float_model, recipe, batch, original, report, tell)
        write_checkpoint(source, folder, tensors, recipe, stored_dtype(recipe, original), report)
    if not json:
        _show(report)
    _done(json, folder, report.as_dict())


def _default_name(model: str, method: str, group: int, is_grouped: bool) -> str:
    if method == FLOAT:
        return f"{model}-outliers"
    return f"{model}-{method}" + (f"-g{group}" if is_grouped and group != -1 else "")


def _done(json: bool, folder: Path, result: dict[str, object]) -> None:
    if json:
        terminal.print_json(result)
    else:
        terminal.next_command(f"prep zoo eval {folder} --gates", "may it replace the original?")


def _show(report: Report) -> None:
    table = terminal.table("matrix", "shape", "output error", "bits/weight")
    for matrix in sorted(report.matrices, key=lambda each: -each.error)[:5]:
        rows, columns = matrix.shape
        table.add_row(
            matrix.name.removeprefix("model."),
            f"{rows} x {columns}",
            f"{matrix.error:.3%}",
            f"{matrix.bits_per_weight:.2f}",
        )
    table.add_section()
    table.add_row(
        f"mean of {len(report.matrices)}", "", f"{report.error:.3%}", f"{report.bits_per_weight:.2f}"
    )
    terminal.show(f"{report.output}: {report.recipe.method}, worst matrices first", table)
    terminal.out().print(
        f"calibrated with {report.num_samples} samples, {report.num_tokens:,} tokens\n"
        f"{report.file_bytes / 1e6:.2f} MB instead of {report.original_bytes / 1e6:.2f}, of which "
        f"{report.float_bytes / 1e6:.2f} MB stay float (embedding and norms)"
    )


def size(
    model: Annotated[str, typer.Argument(help="A shipped model, a folder, or a Hugging Face id.")] = "shop",
    method: Annotated[
        str,
        typer.Option(help="rtn, gptq, awq, int8, smoothquant, fp8, mxfp4, nvfp4, or none: as it is."),
    ] = "awq",
    bits: Annotated[
        int | None, typer.Option(help="4 or 8, of rtn and gptq; the method's own by default.")
    ] = None,
    group: Annotated[int, typer.Option(help="Columns that share a scale; -1: the whole row.")] = 128,
    dtype: Annotated[
        str, typer.Option(help="Of what stays float: bfloat16, float16 or float32.")
    ] = "bfloat16",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """How large a model is once it is quantised, from its config.json alone.

    \b
    The matrices get what the method says; embedding and output head stay float
    and are counted. So the effective bits are more than the method's. mxfp4 and
    nvfp4 are only emulated here: this is what hardware that has them would hold.

    \b
    Examples:
      prep zoo size shop --method awq --group 64
      prep zoo size ./Llama-3.1-8B --method gptq --json
    """
    with terminal.loading("shapes"):
        from engine.config import EngineArgs
        from engine.models.hf_config import load_model_config
        from engine.models.loader import checkpoint_tensors
        from engine.models.registry import create_model
        from engine.quant.fp4 import FP4_BLOCKS
        from engine.quant.quantizer.recipe import METHODS, Recipe
        from engine.quant.size import FLOAT_BYTES, estimate_size

    if method not in (*METHODS, *FP4_BLOCKS, FLOAT) or dtype not in FLOAT_BYTES:
        raise terminal.Problem(
            f"--method {method} --dtype {dtype}: methods are {', '.join((*METHODS, *FP4_BLOCKS))} and "
            f"{FLOAT}; types "
            f"{', '.join(FLOAT_BYTES)}",
            next_step="--method awq --dtype float16",
        )
    if group != -1 and group < 1:
        raise terminal.Problem(
            f"--group must be at least 1, or -1 for the whole row, got {group}", next_step="--group 128"
        )
    if method in FP4_BLOCKS:
        if bits not in (None, 4):
            raise terminal.Problem(f"{method} has 4 bits, not {bits}", next_step="leave --bits out")
        group = FP4_BLOCKS[method]
    elif method != FLOAT:
        Recipe.create(method, bits=bits)
    config = load_model_config(EngineArgs(model=model, load_format="dummy", device="cpu"))
    shapes = {
        name: tuple(tensor.shape) for name, tensor in checkpoint_tensors(create_model(config, "meta")).items()
    }
    found = estimate_size(shapes, method, bits=bits, group_size=group, dtype=dtype)
    if json:
        terminal.print_json(
            {
                "total_bytes": found.total_bytes,
                "matrix_bytes": found.matrix_bytes,
                "float_bytes": found.float_bytes,
                "num_weights": found.num_weights,
                "bits_per_matrix_weight": found.bits_per_matrix_weight,
                "bits_per_weight": found.bits_per_weight,
            }
        )
        return
    table = terminal.table("", "weights", "MB", "bits/weight")
    num_floats = found.num_weights - found.num_matrix_weights
    rows = (
        ("quantised matrices", found.num_matrix_weights, found.matrix_bytes),
        ("embedding, head, norms", num_floats, found.float_bytes),
        ("all", found.num_weights, found.total_bytes),
    )
    for name, count, num_bytes in rows:
        per_weight = f"{8 * num_bytes / count:.2f}" if count else ""
        table.add_row(name, f"{count:,}", f"{num_bytes / 1e6:,.2f}", per_weight)
    terminal.show(f"{model}: {method}" + ("" if method == FLOAT else f", groups of {group}"), table)
    if method in FP4_BLOCKS:
        terminal.next_command(f"prep zoo formats {model}", "what it does to the matrices' outputs")
    else:
        terminal.next_command(f"prep zoo quantize {model}", "make it")


def formats(
    model: Annotated[str, typer.Argument(help="A shipped model or a folder of the zoo's layout.")] = "shop",
    samples: Annotated[int, typer.Option(min=1, help="Conversations that the matrices see.")] = 8,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """What rounding to each format does to the outputs of a model's own matrices.

    \b
    Every matrix is rounded to nearest, without calibration, and multiplies what
    the model feeds it; the error is that of the outputs, relative to their size.
    Three times: the model as it is; with outlying activations (a few channels
    behind every norm 64 times as large, their weights as much smaller: the same
    function); and with one weight of every row 32 times as large.

    \b
    int8 and fp8 round activations too; the others are weight-only. mxfp4 and
    nvfp4 are emulated: rounded to the format, multiplied in floats. Formats whose
    blocks do not divide the model's rows are left out.

    \b
    Examples:
      prep zoo formats shop
      prep zoo formats shop --samples 2 --json
    """
    with terminal.loading("the formats"):
        from engine.quant.format_errors import format_errors, with_large_weights
        from engine.quant.quantizer.calibration import calibration_texts, tokenized
        from engine.quant.quantizer.folding import inject_outliers as inject
        from engine.quant.quantizer.run import load_float_model
        from engine.zoo.registry import resolve
        from engine.zoo.tokenizer import load_tokenizer

    source = resolve(model)
    float_model, _ = load_float_model(source)
    with terminal.status("quantising", lines_in_pipe=True) as tell:
        batch = tokenized(calibration_texts("in-domain", samples), load_tokenizer(source))
        plain = format_errors(float_model, batch, tell)
        weights = {row.name: row.error for row in format_errors(float_model, batch, tell, with_large_weights)}
        inject(float_model)
        activations = {row.name: row.error for row in format_errors(float_model, batch, tell)}
    if json:
        rows = [
            {
                **asdict(row),
                "error_outlying_activations": activations[row.name],
                "error_outlying_weights": weights[row.name],
            }
            for row in plain
        ]
        terminal.print_json({"model": source.name, "samples": len(batch), "formats": rows})
        return
    table = terminal.table(
        "format", "bits/weight", "inputs", "error", "outlying inputs", "outlying weights", left=("inputs",)
    )
    for row in plain:
        bits = f"{row.bits_per_weight:.2f}"
        errors = (row.error, activations[row.name], weights[row.name])
        table.add_row(row.name, bits, row.activations, *(f"{error:.2%}" for error in errors))
    terminal.show(f"{source.name}: mean relative error of the matrices' outputs", table)
    terminal.next_command(
        f"prep generate --model {model} --quantization nvfp4 -p x", "hear it speak (emulated)"
    )
