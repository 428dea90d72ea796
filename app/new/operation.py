"""`prep new operation NAME`: a reference, and an entry whose parts are missing."""

from __future__ import annotations

from app.new import Taken

NEXT = """\
kernels/ops.py  the contract: def NAME with a docstring, which returns call("NAME", kind(x), x)
kernels/reference/NAME.py and kernels/operations/NAME.py  the specification, and every part of the entry
prep test --no-lint tests/kernels/test_operations.py -k NAME  names each missing part, and the row for kernels/README.md
prep test --no-lint tests/kernels/test_check.py -k NAME  reference and mutants; prep kernels bench NAME measures
kernels/cpu/, triton_ops/ or cuda/  a faster form; name its files in `forms`, then prep kernels check NAME
TRITON_INTERPRET=1 prep test --no-lint tests/kernels/triton -k NAME  a Triton form on the CPU, in fp32 and fp16"""

_REFERENCE = '''\
"""FILL IN what {name} computes, in the words of its contract in `ops.py`."""

from __future__ import annotations

from torch import Tensor

from kernels.reference.precision import wide


def {name}(x: Tensor) -> Tensor:
    """fp32 inside, float64 on float64 inputs (`wide`), and the result in x's dtype."""
    raise NotImplementedError("FILL IN the reference of {name}: " + str(wide(x).shape))
'''
_ENTRY = '''\
"""FILL IN what {name} is for."""

from __future__ import annotations

from kernels.bench.workloads import Calls, Maker
from kernels.check.draw import NAN_ROW, Draw, Made
from kernels.check.invariance import Rows
from kernels.operation import Operation, Work


def _cases(draw: Draw) -> Made:
    """Yield (name, *arguments): 0 and 1 rows, sizes that no tile divides, views, extreme values, a row of NaN."""
    for rows in draw.rows:
        width = draw.pick(tiny=72, small=1000, large=14336)
        yield f"{{rows}} x {{width}}", draw.strided(rows, width)
    yield NAN_ROW, draw.normal(3, 64)


def _workloads(maker: Maker) -> Calls:
    """Yield (name, *recipes of arguments): the shapes of real layers."""
    for model, rows in maker.sizes():
        yield f"{{rows}} x {{model.hidden}}", maker.normal(rows, model.hidden)


{upper} = Operation(
    "{name}",
    forms={{"reference": "{name}.py"}},
    cases=None,  # FILL IN: _cases, with all arguments and what breaks kernels
    rows=None,  # FILL IN: Rows("x"), the arguments that have a row for each row of the result; or why there are none
    work=None,  # FILL IN: lambda x: Work(x.nbytes, x.nbytes), the bytes read and written, and the FLOPs of products
    workloads=None,  # FILL IN: _workloads, the calls that are measured
    mutants=(),  # FILL IN: ("what is wrong", "text of the reference", "what it becomes"), at least one
)
"""FILL IN what it needs besides: in_place, exact, terms=last_dimension for sums, open_for_nan, fuses."""

_ = Rows, Work, _cases, _workloads  # FILL IN: delete this line
'''


def skeleton(name: str) -> dict[str, str]:
    """Return the files of an operation. Raises Taken for a name that is taken."""
    from kernels.operations import OPERATIONS

    paths = f"kernels/reference/{name}.py", f"kernels/operations/{name}.py"
    if name in OPERATIONS:
        raise Taken(f"there is an operation {name}", *paths)
    texts = _REFERENCE.format(name=name), _ENTRY.format(name=name, upper=name.upper())
    return dict(zip(paths, texts, strict=True))
