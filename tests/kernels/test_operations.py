"""Every operation has every part, and everything in the code has an entry: what is missing fails by its name."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import ops, registry
from kernels.check.case import Case, copy_of, widened
from kernels.check.cases import cases
from kernels.check.compare import Mismatch
from kernels.check.invariance import Rows
from kernels.check.run import _result, _same_alone
from kernels.operation import BACKENDS, MissingPart, Operation
from kernels.operations import OPERATIONS
from tests.unfilled import left_to_fill

KERNELS = Path(registry.__file__).parent
PARTS = {
    "cases": "a function that yields random calls, such as `def _cases(draw: Draw) -> Made`",
    "rows": 'Rows("x"), the arguments with rows, or a sentence that says why it has none',
    "work": "a function of its arguments that returns Work(bytes read, bytes written, FLOPs)",
    "workloads": "a function that yields calls to measure, such as `def _workloads(maker: Maker) -> Calls`",
    "mutants": "(what is wrong, text of the reference, what it becomes) of a fault that the cases catch",
}
"""Parts of an entry, and what to write."""
SHARED = {"graph.cpp", "threads.cpp"}
"""C++ files that belong to no operation."""
SOURCES = (".py", ".cpp", ".cu")


def contracts() -> dict[str, str]:
    """Operations that `ops.py` calls, with the docstrings of their functions."""
    found = {}
    for function in ast.parse(Path(ops.__file__).read_text()).body:
        for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "call":
                found[ast.literal_eval(node.args[0])] = ast.get_docstring(function) or ""
    return found


@functools.cache
def functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def is_unwritten(function: ast.FunctionDef) -> bool:
    """Whether a function only raises NotImplementedError, as `prep new operation` leaves it."""
    return any(
        isinstance(line, ast.Raise) and "NotImplementedError" in ast.unparse(line) for line in function.body
    )


def row_of_readme(entry: Operation) -> str:
    """Return the row of the table in kernels/README.md: kernels, and the Python files of forms without any."""
    cells = []
    for backend in BACKENDS:
        files = entry.forms.get(backend, "").split()
        kernels = [file for file in files if not file.endswith(".py")] or files
        cells.append(", ".join(f"`{kernel}`" for kernel in kernels))
    return f"| `{entry.name}` | {' | '.join(cells)} |"


def missing(
    entry: Operation, documented: dict[str, str] | None = None, readme: str | None = None
) -> Iterator[str]:
    """Yield a sentence for each part that an operation lacks; `documented` and `readme` as if they were ours."""
    documented = contracts() if documented is None else documented
    readme = (KERNELS / "README.md").read_text() if readme is None else readme
    if not documented.get(entry.name):
        yield f"{entry.name} has no contract: a function in kernels/ops.py with a docstring and call(...)"
    if "reference" not in entry.forms:
        yield f"{entry.name} has no reference: a function in kernels/reference/, in `forms` of its entry"
    for backend, files in entry.forms.items():
        yield from _missing_form(entry.name, backend, files)
    yield from unnamed_forms(entry.name, entry.forms)
    own = KERNELS / "operations" / f"{entry.name}.py"
    where = f" (kernels/operations/{own.name})" if own.is_file() else ""
    for part, what in PARTS.items():
        if not getattr(entry, part):
            yield f"{entry.name} has no {part} in its entry{where}: {what}"
    texts = {
        KERNELS / registry.FOLDERS[backend] / file
        for backend in entry.forms
        for file in entry.forms[backend].split()
    }
    yield from left_to_fill(*sorted(path for path in {own, *texts} if path.is_file()))
    if row_of_readme(entry) not in readme.splitlines():
        yield f"{entry.name} has no row in kernels/README.md: {row_of_readme(entry)}"


def _missing_form(op: str, backend: str, files: str) -> Iterator[str]:
    folder = KERNELS / registry.FOLDERS[backend]
    for file in files.split():
        if not (folder / file).is_file():
            yield f"{op} has no file {folder.name}/{file}, which its entry names for {backend}"
    modules = [folder / file for file in files.split() if file.endswith(".py")]
    found = functions(modules[0]) if modules and modules[0].is_file() else {}
    if not modules or modules[0].is_file() and op not in found:
        yield f"{op} has no function in the first .py that its entry names for {backend} ({files})"
    elif op in found and is_unwritten(found[op]):
        yield f"{op} has no {backend}: kernels/{folder.name}/{modules[0].name} raises NotImplementedError"
    if backend == "triton" and op in found and "compile_cases" not in found:
        yield f"{op} has no compile_cases in kernels/triton_ops/{modules[0].name}: the calls to compile for a GPU"


def unnamed_forms(op: str, forms: dict[str, str]) -> Iterator[str]:
    """Yield a sentence for each file with a form of an operation that `forms` does not name."""
    for backend, folder in registry.FOLDERS.items():
        for path in sorted((KERNELS / folder).glob("*.*")):
            holds = path.suffix in SOURCES and (
                path.stem == op or path.suffix == ".py" and op in functions(path)
            )
            if holds and path.name not in forms.get(backend, "").split():
                yield f"{folder}/{path.name} has a form of {op}: name it in `forms` of its entry"


def strays(entries: dict[str, Operation] = OPERATIONS) -> Iterator[str]:
    """Yield a sentence for each operation without an entry, its files, and C++ or CUDA files that no entry names."""
    known = entries.keys() | contracts().keys()
    for op in sorted(known - entries.keys()):
        yield f"{op} is in kernels/ops.py and has no entry: add it to a module of kernels/operations/"
        yield from unnamed_forms(op, {})
    for backend, folder in registry.FOLDERS.items():
        named = {file for entry in entries.values() for file in entry.forms.get(backend, "").split()}
        for path in sorted((KERNELS / folder).glob("*.*")):
            if path.suffix in (".cpp", ".cu") and path.name not in named | SHARED:
                yield f"{folder}/{path.name} is in no entry"


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_has_every_part(op: str) -> None:
    if absent := list(missing(OPERATIONS[op])):
        pytest.fail("\n".join(absent), pytrace=False)


def test_everything_in_the_code_has_an_entry() -> None:
    if unnamed := list(strays()):
        pytest.fail("\n".join(unnamed), pytrace=False)


NORM = OPERATIONS["rms_norm"]
BROKEN = {
    "a contract": (NORM, {"documented": {}}, "rms_norm has no contract: a function in kernels/ops.py"),
    "a docstring": (NORM, {"documented": {"rms_norm": ""}}, "rms_norm has no contract"),
    "a reference": (replace(NORM, forms={}), {}, "rms_norm has no reference"),
    "a file": (replace(NORM, forms=NORM.forms | {"cpu": "rms.cpp norm.py"}), {}, "rms_norm has no file cpu/rms.cpp"),
    "a function": (
        replace(NORM, forms=NORM.forms | {"cpu": "linear.py"}), {}, "rms_norm has no function in the first .py",
    ),
    "calls to compile": (
        replace(NORM, name="num_splits", forms={"triton": "split_k.py"}), {}, "num_splits has no compile_cases",
    ),
    "a form that is there": (
        replace(NORM, forms={"reference": "norm.py"}), {}, "triton_ops/norm.py has a form of rms_norm: name it in",
    ),
    **{part: (replace(NORM, **{part: None}), {}, f"rms_norm has no {part} in its entry") for part in PARTS},
    "a row of the README": (NORM, {"readme": ""}, "rms_norm has no row in kernels/README.md: | `rms_norm` | `norm.py`"),
}  # fmt: skip


@pytest.mark.parametrize(("entry", "texts", "sentence"), BROKEN.values(), ids=BROKEN)
def test_a_missing_part_is_named(entry: Operation, texts: dict[str, Any], sentence: str) -> None:
    assert any(each.startswith(sentence) for each in missing(entry, **texts)), list(missing(entry, **texts))


@pytest.mark.parametrize("part", ["cases", "rows", "work", "workloads"])
def test_what_needs_a_missing_part_says_which(part: str) -> None:
    with pytest.raises(MissingPart, match=f"entry of rms_norm in kernels/operations has no {part}"):
        replace(NORM, **{part: None}).part(part)


def test_what_no_entry_names_is_named() -> None:
    gone = strays({op: entry for op, entry in OPERATIONS.items() if op != "rms_norm"})
    assert list(gone) == [
        "rms_norm is in kernels/ops.py and has no entry: add it to a module of kernels/operations/",
        *(
            f"{folder}/norm.py has a form of rms_norm: name it in `forms` of its entry"
            for folder in registry.FOLDERS.values()
        ),
    ]
    fewer = OPERATIONS | {"copy_blocks": replace(OPERATIONS["copy_blocks"], forms={"reference": "copy.py"})}
    assert list(strays(fewer)) == ["cuda/copy.cu is in no entry"]


WITH_ROWS = [op for op, entry in OPERATIONS.items() if isinstance(entry.rows, Rows)]


def several(op: str) -> Iterator[tuple[Case, int]]:
    """Cases of more than one row, with the number of rows."""
    for case in cases(op, seed=1):
        if (count := OPERATIONS[op].rows.count(case)) > 1 and not case.free_rows:
            yield case, count


@pytest.mark.parametrize("op", WITH_ROWS)
def test_the_rows_of_an_entry_can_be_computed_alone(op: str) -> None:
    rows, reference = OPERATIONS[op].rows, registry.get(op, "reference").load()
    tested = list(several(op))
    for case, count in tested:
        batch = _result(one := widened(case), reference)
        single = _result(copy_of(rows.alone(widened(case), count - 1)), reference)
        single = single if isinstance(single, tuple) else (single,)
        for got, wanted in zip(single, rows.of(one, count - 1, batch), strict=True):
            torch.testing.assert_close(
                got, wanted, equal_nan=True, msg=f"{case.name}: the rows are not {rows}"
            )
    assert tested


@pytest.mark.parametrize("op", WITH_ROWS)
def test_a_form_whose_rows_depend_on_the_batch_is_caught(op: str) -> None:
    entry, reference = OPERATIONS[op], registry.get(op, "reference").load()
    case, count = next(several(op))

    def depends(*args: Any, **kwargs: Any) -> Any:
        result = reference(*args, **kwargs)
        call = Case(op, "", args, kwargs)
        written = call.arguments()[entry.in_place[0]] if entry.in_place else result
        if entry.rows.count(call) > 1:
            for each in (written,) if isinstance(written, Tensor) else written:
                each += 1
        return result

    with pytest.raises(Mismatch, match="row 1 alone differs"):
        _same_alone(case, count + 1, depends)
