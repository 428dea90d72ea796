"""The bf16 product on AMX's tiles: emulated here, compiled for a processor that has them."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.check.run import check
from kernels.cpu import build, compile
from tests.kernels.cpu_mutants import SIZES, compiled, same_with_any_number_of_threads

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import linear, norm_linear
from kernels.cpu.linear import pack_weight

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(linear._LANES != 16, reason="processors with AMX have vectors of 512 bits"),
]
SOURCE = build.SOURCES / "gemm_bf16.cpp"


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(SOURCE, tmp_path_factory.mktemp("tiles"), "-DEMULATE_AMX")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Without AMX even where this processor has it."""
    return compiled(SOURCE, tmp_path_factory.mktemp("vectors"), "-mno-amx-bf16")


@contextmanager
def using(library: ctypes.CDLL) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, entry in ((linear, "gemm_bf16"), (norm_linear, "norm_gemm_bf16")):
            function = library[entry]
            function.argtypes, function.restype = getattr(module, f"_{entry}").argtypes, None
            patch.setattr(module, f"_{entry}", function)
        yield


@pytest.mark.parametrize("op", ["linear", "gated_linear", "norm_linear"])
@pytest.mark.parametrize("size", SIZES)
def test_random_cases_agree_with_the_reference(op: str, size: str, tiles: ctypes.CDLL) -> None:
    with using(tiles):
        report = check(op, "cpu", dtype=torch.bfloat16, size=size)
    assert report.ok, report


@pytest.mark.parametrize("width", [31, 96, 1024])
def test_a_row_is_the_same_alone_and_in_a_batch_of_any_size(width: int, tiles: ctypes.CDLL) -> None:
    weight, x = pack_weight(torch.randn(101, width).bfloat16()), torch.randn(230, width).bfloat16()
    with using(tiles):
        alone = torch.cat([linear.linear(x[row : row + 1], weight) for row in range(230)])
        for rows in (2, 15, 16, 17, 31, 32, 33, 48, 191, 192, 193, 230):
            assert torch.equal(linear.linear(x[:rows], weight), alone[:rows]), rows
        assert torch.equal(same_with_any_number_of_threads(lambda: linear.linear(x, weight)), alone)


def product(library: ctypes.CDLL) -> Tensor:
    """fp32 [20, 64] with 4096 products in each sum, always of the same numbers."""
    draw = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 4096, generator=draw).bfloat16() for rows in (64, 20))
    with using(library):
        return linear.linear(x, pack_weight(weight), out_dtype=torch.float32)


def test_the_order_of_the_sums_is_another_one_than_with_vectors(
    tiles: ctypes.CDLL, vectors: ctypes.CDLL
) -> None:
    """Otherwise the tests above would test the vectors."""
    assert not torch.equal(product(tiles), product(vectors))
    torch.testing.assert_close(product(tiles), product(vectors), rtol=1e-5, atol=1e-3)


def faulty(right: str, wrong: str, folder: Path, decision: str = "&&") -> ctypes.CDLL:
    for name, before, after in (
        ("gemm_amx.h", right, wrong),
        (SOURCE.name, "enable_amx() && small_product", f"enable_amx() {decision} small_product"),
    ):
        text = (build.SOURCES / name).read_text()
        assert text.count(before) == 1
        (folder / name).write_text(text.replace(before, after))
    return compiled(folder / SOURCE.name, folder, "-DEMULATE_AMX")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("add_tile_product(3, 5, 7)", "add_tile_product(3, 4, 7)"),
        ("(numbers + 1) / 2 * PANEL", "numbers / 2 * PANEL"),
    ],
)
def test_a_fault_is_noticed(right: str, wrong: str, tmp_path: Path) -> None:
    with using(faulty(right, wrong, tmp_path, decision="||")):
        assert check("linear", "cpu", dtype=torch.bfloat16, size="small").failures


def test_tiles_that_compute_something_else_are_not_used(tmp_path: Path, vectors: ctypes.CDLL) -> None:
    library = faulty("add_tile_product(3, 5, 7)", "zero_tile(3)", tmp_path)
    assert torch.equal(product(library), product(vectors))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="an x86-64 compiler")
def test_it_compiles_to_the_instructions(tmp_path: Path) -> None:
    target = tmp_path / "gemm_bf16.s"
    flags = ["-march=sapphirerapids" if flag == "-march=native" else flag for flag in compile.flags(SOURCE)]
    done = subprocess.run(
        [build.find_compiler(), *flags, "-fopenmp", "-S", str(SOURCE), "-o", str(target)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assembly = target.read_text()
    for instruction in ("tdpbf16ps", "tileloadd", "tilestored", "ldtilecfg", "tilerelease"):
        assert instruction in assembly
