"""`prep zoo quantize`, `size` and `formats`: quantised checkpoints in public formats."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from app.cli import terminal
from app.cli.engine_options import model_folder
from app.cli.options import JsonOption, ModelArgument, argument, option, option_groups
from engine.config import EngineArgs
from engine.models.hf_config import load_model_config
from engine.quant.quantizer.recipe import METHODS, Recipe
from prep_common.text import counted

if TYPE_CHECKING:
    import torch

    from engine.quant.quantizer.run import Report
    from engine.quant.size import ModelSize
    from engine.zoo.model import ShopModel

FLOAT = "none"


@dataclass(frozen=True)
class MethodOptions:
    """The arguments of `Recipe.create` as options."""

    method: Annotated[
        str, option("rtn, gptq, awq, int8, smoothquant or fp8; none: only --inject-outliers.")
    ] = "awq"
    bits: Annotated[
        int | None, option("4 (rtn, gptq, awq) or 8 (all but awq); the method's own by default.")
    ] = None
    group: Annotated[int, option("Columns that share a scale (rtn, gptq, awq); -1: the whole row.")] = 128
    symmetric: Annotated[
        bool | None, option("Without or with zero points; rtn and gptq: without.", "--symmetric/--asymmetric")
    ] = None
    act_order: Annotated[bool, option("gptq: important columns first.", "--act-order")] = False
    activations: Annotated[str, option("fp8: dynamic, or static (a calibrated scale).")] = "dynamic"
    alpha: Annotated[float, option("smoothquant: share of the outliers moved into the weights, 0 to 1.")] = (
        0.5
    )

    def recipe(self) -> Recipe | None:
        """Return the recipe; None for --method none. Raises ValueError if the options do not fit the method."""
        if self.method == FLOAT:
            return None
        arguments = asdict(self)
        return Recipe.create(arguments.pop("method"), group_size=arguments.pop("group"), **arguments)


@option_groups
def quantize(
    options: MethodOptions,
    model: Annotated[str, argument("A shipped model or a folder of the zoo's layout.")] = "shop",
    calibration: Annotated[
        str, option("in-domain (conversations of the shop), or a text or JSONL file.")
    ] = "in-domain",
    samples: Annotated[int, option("Texts to calibrate with.", min=1)] = 64,
    output: Annotated[Path | None, option("Folder to write; must not exist.")] = None,
    inject_outliers: Annotated[
        bool, option("First create activation outliers, as in large models.", "--inject-outliers")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Quantise a model and write it in a format that other engines read.

    \b
    rtn           compressed-tensors, int4 or int8 weights, rounded to nearest
    gptq          GPTQ (AutoGPTQ): errors compensated column by column
    awq           AWQ (AutoAWQ): important channels scaled up first
    int8          compressed-tensors, int8 weights and activations
    smoothquant   the same, outliers moved into the weights first
    fp8           compressed-tensors, e4m3 weights and activations

    \b
    --inject-outliers multiplies a few channels after every norm by 64 and
    divides the weights that read them: the same function, but int8
    activations now fail as they do in large models.

    \b
    Examples:
      prep zoo quantize shop --method awq --group 64 --output shop-awq
      prep zoo quantize shop --method gptq --act-order --calibration lines.txt
      prep zoo quantize shop --method int8 --inject-outliers --json
    """
    with terminal.loading("the quantiser"):
        from engine.quant.quantizer.folding import inject_outliers as inject
        from engine.quant.quantizer.run import load_float_model
    source = model_folder(model)
    if options.method == FLOAT and not inject_outliers:
        raise terminal.Problem("--method none changes nothing", "--method awq, or add --inject-outliers")
    recipe = options.recipe()
    folder = output or Path(_default_name(source.name, options, recipe is not None and recipe.is_grouped))
    if folder.exists():
        raise terminal.Problem(f"{folder} exists", "--output another-folder, or remove it")
    try:  # before minutes of work
        folder.mkdir(parents=True)
        folder.rmdir()
    except OSError as error:
        raise terminal.Problem(
            f"cannot create the folder {folder}: {error.strerror}", "--output another-folder"
        ) from None
    float_model, dtype = load_float_model(source)
    if inject_outliers:
        inject(float_model)
    if recipe is None:
        tensors = {name: weight.to(dtype) for name, weight in float_model.state_dict().items()}
        result = {
            "output": str(folder),
            "file_bytes": _write(source, folder, tensors, None, dtype, None),
        }
    else:
        report = _quantize(source, folder, float_model, dtype, recipe, calibration, samples)
        result = report.as_dict()
        if not json:
            _show(report)
    if json:
        return terminal.print_json(result)
    terminal.next_command(f"prep zoo eval {folder} --gates", "decide whether it may replace the original")


def _quantize(
    source: Path,
    folder: Path,
    float_model: ShopModel,
    dtype: torch.dtype,
    recipe: Recipe,
    calibration: str,
    samples: int,
) -> Report:
    """Calibrate, quantise and write the folder."""
    from engine.quant.quantizer.calibration import calibration_texts, tokenized
    from engine.quant.quantizer.encode import stored_dtype
    from engine.quant.quantizer.run import Report, quantize
    from engine.zoo.tokenizer import load_tokenizer

    report = Report(source.name, recipe, original_bytes=(source / "model.safetensors").stat().st_size)
    with terminal.status("quantising", lines_in_pipe=True) as tell:
        tell("reading calibration texts")
        batch = tokenized(calibration_texts(calibration, samples), load_tokenizer(source))
        tensors = quantize(float_model, recipe, batch, dtype, report, tell)
        _write(source, folder, tensors, recipe, stored_dtype(recipe, dtype), report)
    return report


def _write(source: Path, folder: Path, *what: Any) -> int:
    """Write the folder as `write_checkpoint` does. Raises Problem with the reason if that is impossible."""
    from engine.quant.quantizer.run import write_checkpoint

    try:
        return write_checkpoint(source, folder, *what)
    except OSError as error:
        raise terminal.Problem(
            f"cannot write the folder {folder}: {error.strerror or error}; nothing of it is left",
            "free disk space, or --output FOLDER on another disk",
            code=terminal.ENVIRONMENT,
        ) from error


def _default_name(model: str, options: MethodOptions, is_grouped: bool) -> str:
    if options.method == FLOAT:
        return f"{model}-outliers"
    return f"{model}-{options.method}" + (f"-g{options.group}" if is_grouped and options.group != -1 else "")


def _show(report: Report) -> None:
    table = terminal.table("matrix", "shape", "output error", "bits/weight")
    for matrix in sorted(report.matrices, key=lambda m: -m.error)[:5]:
        name, (rows, columns) = matrix.name.removeprefix("model."), matrix.shape
        table.add_row(name, f"{rows} x {columns}", f"{matrix.error:.3%}", f"{matrix.bits_per_weight:.2f}")
    table.add_section()
    mean = (f"{report.error:.3%}", f"{report.bits_per_weight:.2f}")
    table.add_row(f"mean of {len(report.matrices)}", "", *mean)
    terminal.show(f"{report.output}: {report.recipe.method}, worst matrices first", table)
    terminal.out().print(
        f"calibrated with {counted(report.num_samples, 'sample')}, {report.num_tokens:,} tokens\n"
        f"{report.file_bytes / 1e6:.2f} MB instead of {report.original_bytes / 1e6:.2f}, of which "
        f"{report.float_bytes / 1e6:.2f} MB stay float (embedding and norms)"
    )


def size(
    model: ModelArgument = "shop",
    method: Annotated[
        str, option("rtn, gptq, awq, int8, smoothquant, fp8, mxfp4, nvfp4, or none: unquantised.")
    ] = "awq",
    bits: Annotated[int | None, option("4 or 8 (rtn, gptq); the method's own by default.")] = None,
    group: Annotated[int, option("Columns that share a scale; -1: the whole row.")] = 128,
    dtype: Annotated[str, option("Type of the float tensors: bfloat16, float16 or float32.")] = "bfloat16",
    json: JsonOption = False,
) -> None:
    """Calculate the size of a model after quantisation, from its config.json alone.

    \b
    The method applies to the matrices; embedding and output head stay float and
    count too, so the effective bits exceed the method's. mxfp4 and nvfp4 are
    only emulated here: the size is that on hardware with these formats.

    \b
    Examples:
      prep zoo size shop --method awq --group 64
      prep zoo size ./Llama-3.1-8B --method gptq --json
    """
    with terminal.loading("shapes"):
        from engine.models.loader import checkpoint_tensors, create_model
        from engine.quant.fp4 import FP4_BLOCKS
        from engine.quant.size import estimate_size

    group = _checked_group(method, bits, group, dtype)
    config = load_model_config(EngineArgs(model=model, load_format="dummy", device="cpu"))
    tensors = checkpoint_tensors(create_model(config, "meta"))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    estimate = estimate_size(shapes, method, bits=bits, group_size=group, dtype=dtype)
    if json:
        sizes = "total_bytes matrix_bytes float_bytes num_weights bits_per_matrix_weight bits_per_weight"
        return terminal.print_json(terminal.pick(estimate, sizes))
    _show_size(model, method, group, estimate)
    if method in FP4_BLOCKS:
        terminal.next_command(f"prep zoo formats {model}", "its effect on the matrices' outputs")
    else:
        terminal.next_command(f"prep zoo quantize {model}", "write the checkpoint")


def _checked_group(method: str, bits: int | None, group: int, dtype: str) -> int:
    """Return the group size. Raises Problem or ValueError if the options do not fit together."""
    from engine.quant.fp4 import FP4_BLOCKS
    from engine.quant.size import FLOAT_BYTES

    if method not in (*METHODS, *FP4_BLOCKS, FLOAT) or dtype not in FLOAT_BYTES:
        raise terminal.Problem(
            f"--method {method} --dtype {dtype}: methods are {', '.join((*METHODS, *FP4_BLOCKS))} and {FLOAT}; "
            f"types {', '.join(FLOAT_BYTES)}",
            "--method awq --dtype float16",
        )
    if group != -1 and group < 1:
        raise terminal.Problem(
            f"--group must be at least 1, or -1 for the whole row, got {group}", "--group 128"
        )
    if method in FP4_BLOCKS:
        if bits not in (None, 4):
            raise terminal.Problem(f"{method} has 4 bits, not {bits}", "leave --bits out")
        group = FP4_BLOCKS[method]
    elif method != FLOAT:
        Recipe.create(method, bits=bits)
    return group


def _show_size(model: str, method: str, group: int, estimate: ModelSize) -> None:
    table = terminal.table("", "weights", "MB", "bits/weight")
    num_floats = estimate.num_weights - estimate.num_matrix_weights
    rows = (
        ("quantised matrices", estimate.num_matrix_weights, estimate.matrix_bytes),
        ("embedding, head, norms", num_floats, estimate.float_bytes),
        ("all", estimate.num_weights, estimate.total_bytes),
    )
    for name, count, num_bytes in rows:
        per_weight = f"{8 * num_bytes / count:.2f}" if count else ""
        table.add_row(name, f"{count:,}", f"{num_bytes / 1e6:,.2f}", per_weight)
    terminal.show(f"{model}: {method}" + ("" if method == FLOAT else f", groups of {group}"), table)


def formats(
    model: Annotated[str, argument("A shipped model or a folder of the zoo's layout.")] = "shop",
    samples: Annotated[int, option("Conversations that produce the matrices' inputs.", min=1)] = 8,
    json: JsonOption = False,
) -> None:
    """Measure the output error of a model's matrices in each format.

    \b
    Every matrix is rounded to nearest, without calibration, and multiplies its
    real inputs; the error is that of the outputs, relative to their size.
    Three variants: the model unchanged; with activation outliers (a few channels
    after every norm 64 times as large, their weights 64 times smaller: the same
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
        from engine.zoo.tokenizer import load_tokenizer

    source = model_folder(model)
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
        return terminal.print_json({"model": source.name, "samples": len(batch), "formats": rows})
    headings = ("format", "bits/weight", "inputs", "error", "outlying inputs", "outlying weights")
    table = terminal.table(*headings, left=("inputs",))
    for row in plain:
        bits = f"{row.bits_per_weight:.2f}"
        errors = (row.error, activations[row.name], weights[row.name])
        table.add_row(row.name, bits, row.activations, *(f"{error:.2%}" for error in errors))
    terminal.show(f"{source.name}: mean relative error of the matrices' outputs", table)
    terminal.next_command(
        f"prep generate {model} --quantization nvfp4 --chat -p 'What do you recommend?'",
        "generate with it (emulated)",
    )
