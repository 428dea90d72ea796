"""Cut the solution of a lab down to the file that a learner gets.

The solution has the contract: its docstrings, or its first comment in C++ and CUDA. The stub leaves out the bodies and
what only they use. A line `given up to here` in a comment keeps the lines above it: in a body of Python, and at the top
of a file in C++ and CUDA.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_GIVEN = "given up to here"
_FUNCTION = re.compile(r'^(extern "C" [^{]*?(\w+)\([^{]*\{\n).*?^\}\n', re.MULTILINE | re.DOTALL)

Cut = tuple[int, int, str]
"""First line, last line (from 1), and the text that stands there instead."""


def native_stub(solution: str) -> str:
    """Return the stub of a file in C++ or CUDA: the given top, and the head of each `extern "C"` function."""
    top = solution[: solution.index('extern "C"')].partition(f"// {_GIVEN}")[0]
    functions = [f'{head}#error "write it: {name}"\n}}\n' for head, name in _FUNCTION.findall(solution)]
    return "\n".join([top.rstrip() + "\n", *functions])


def python_stub(solution: str, objects: list[str], *, is_triton: bool = False) -> str:
    """Return the stub of a file in Python: the head of each object and public method, and documented constants.

    A function that is not in `objects` stays, too, if its first lines are given: a Triton kernel. is_triton: keep
    imports.
    """
    stub = _without(solution, _cuts(solution, objects, " and its kernel" if is_triton else ""))
    return stub if is_triton else _without(stub, _unused_imports(stub))


def _without(text: str, cuts: Iterator[Cut]) -> str:
    """Return a text after its cuts, with the blank lines of a formatter."""
    lines = text.splitlines()
    for first, last, instead in sorted(cuts, reverse=True):
        lines[first - 1 : last] = [instead]
    text = re.sub(r"\n{3,}(?=\S)(?!def |class |@)|\n{3,}(?= )", "\n\n", "\n".join(lines).rstrip() + "\n")
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _cuts(solution: str, names: list[str], also: str) -> Iterator[Cut]:
    body = ast.parse(solution).body
    lines = solution.splitlines()
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, _FUNCTIONS):
            cut = _body(node, lines, node.name + also)
            yield cut if node.name in names or not cut[2] else _whole(node, lines)
        elif isinstance(node, ast.ClassDef) and node.name in names:
            for method in (child for child in node.body if isinstance(child, _FUNCTIONS)):
                what = node.name if method.name == "__init__" else method.name
                yield _whole(method, lines) if re.match("_(?!_)", method.name) else _body(method, lines, what)
        elif isinstance(node, ast.ClassDef | ast.Assign | ast.AnnAssign) and not _is_text(below):
            yield _whole(node, lines)


def _whole(node: ast.stmt, lines: list[str]) -> Cut:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return _with_comment(first, lines), node.end_lineno or node.lineno, ""


def _with_comment(first: int, lines: list[str]) -> int:
    """Return the first line of the comment above a line, or the line itself."""
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return first


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str], what: str) -> Cut:
    """Return the cut of a body below its docstring, or below what is given of it."""
    first, last = node.body[0], node.end_lineno or node.lineno
    start = (first.end_lineno or first.lineno) + 1 if _is_text(first) else _with_comment(first.lineno, lines)
    indent = " " * first.col_offset
    while last < len(lines) and lines[last].startswith(f"{indent}#"):
        last += 1
    if (mark := f"{indent}# {_GIVEN}") in lines[start - 1 : last]:
        return lines.index(mark, start - 1) + 1, last, ""
    return start, last, f'{indent}raise NotImplementedError("write {what}")'


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _unused_imports(stub: str) -> Iterator[Cut]:
    tree, lines = ast.parse(stub), stub.splitlines()
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
            if not used & {(alias.asname or alias.name).partition(".")[0] for alias in node.names}:
                yield _whole(node, lines)
