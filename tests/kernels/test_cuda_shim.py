"""The host shim runs CUDA C++ as the language says, and refuses what a GPU would not forgive."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.cpu.compile import BuildError
from kernels.cuda.shim import build as shim
from tests.kernels.cuda_sources import copy_sources, run

pytestmark = pytest.mark.skipif(shim.problem() is not None, reason=str(shim.problem()))

REVERSE = """
    __shared__ float row[64];
    row[threadIdx.x] = a[threadIdx.x];
    {barrier}
    b[threadIdx.x] = row[63 - threadIdx.x];
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("cuda"))


@pytest.mark.parametrize("backwards", [False, True])
def test_a_barrier_makes_what_other_threads_wrote_visible(folder: Path, backwards: bool) -> None:
    a, b = torch.arange(64.0), torch.zeros(64)
    run(folder, REVERSE.format(barrier="__syncthreads();"), a, b, block=64, backwards=backwards)
    assert torch.equal(b, a.flip(0))


def test_without_the_barrier_the_order_of_the_threads_shows(folder: Path) -> None:
    a, forwards, backwards = torch.arange(64.0), torch.zeros(64), torch.zeros(64)
    run(folder, REVERSE.format(barrier=""), a, forwards, block=64)
    run(folder, REVERSE.format(barrier=""), a, backwards, block=64, backwards=True)
    assert forwards.isnan().any() and not torch.equal(forwards.nan_to_num(), backwards.nan_to_num())


def test_a_butterfly_of_shuffles_gives_every_lane_the_sum_of_its_group(folder: Path) -> None:
    a, b = torch.arange(64.0), torch.zeros(64)
    run(folder, "b[threadIdx.x] = reduce_lanes<8>(a[threadIdx.x], Sum());", a, b, block=64)
    assert torch.equal(b, a.view(8, 8).sum(1, keepdim=True).expand(8, 8).flatten())


def test_a_ballot_has_a_bit_for_each_lane_that_says_yes(folder: Path) -> None:
    b = torch.zeros(32)
    run(folder, "a[threadIdx.x] = __ballot_sync(ALL_LANES, threadIdx.x < 5);", b)
    assert b.tolist() == [31.0] * 32


def test_a_block_sum_of_many_warps_is_the_same_for_every_thread(folder: Path) -> None:
    a, b = torch.arange(128.0), torch.zeros(128)
    body = "__shared__ float scratch[WARP]; b[threadIdx.x] = reduce_block(a[threadIdx.x], Sum(), scratch);"
    run(folder, body, a, b, block=128)
    assert b.tolist() == [float(a.sum())] * 128


def test_atomic_additions_of_all_blocks_add_up(folder: Path) -> None:
    total = torch.zeros(1)
    run(folder, "atomicAdd(a, 1.0f);", total, grid=3, block=64)
    assert total.item() == 192


def test_threads_that_returned_do_not_hold_up_a_barrier(folder: Path) -> None:
    a = torch.zeros(64)
    run(folder, "if (threadIdx.x >= 40) return; __syncthreads(); a[threadIdx.x] = 1;", a, block=64)
    assert a.sum() == 40


def test_threads_at_different_barriers_are_a_deadlock_that_names_kernel_block_and_lines(folder: Path) -> None:
    body = "if (blockIdx.x == 2 && threadIdx.x < 16) {\n__syncthreads();\n} else {\n__syncthreads();\n}"
    with pytest.raises(shim.ShimError) as caught:
        run(folder, body, torch.zeros(1), grid=3)
    assert str(caught.value) == (
        "test, block (2, 0, 0): deadlock: 16 threads at __syncthreads in line 4, 16 threads at __syncthreads in line 6"
    )


def test_a_shuffle_that_some_lanes_do_not_reach_is_a_deadlock(folder: Path) -> None:
    body = "if (threadIdx.x == 7) return;\na[threadIdx.x] = __shfl_xor_sync(ALL_LANES, 1.0f, 1);"
    with pytest.raises(
        shim.ShimError, match=r"31 threads at an exchange of its warp in line 4, 1 thread returned"
    ):
        run(folder, body, torch.zeros(32))


def test_shared_memory_that_nobody_wrote_is_nan_in_every_block(folder: Path) -> None:
    a = torch.zeros(2)
    run(folder, "__shared__ float x[32]; a[blockIdx.x] = x[0]; x[0] = 1;", a, grid=2, block=1)
    assert a.isnan().all()


def test_a_write_behind_dynamic_shared_memory_is_found(folder: Path) -> None:
    body = "DYNAMIC_SHARED(memory); reinterpret_cast<float*>(memory)[threadIdx.x] = 1;"
    run(folder, body, torch.zeros(1), shared_bytes=128)
    with pytest.raises(shim.ShimError, match="behind the end of its 124 bytes of dynamic shared memory"):
        run(folder, body, torch.zeros(1), shared_bytes=124)


def test_a_wide_load_from_an_odd_address_is_an_error(folder: Path) -> None:
    with pytest.raises(shim.ShimError, match="an access of 16 bytes at an odd address"):
        run(folder, "a[0] = load<4>(a + 1).at[0];", torch.zeros(8))


@pytest.mark.parametrize(("pending", "arrived"), [(0, [1.0, 2.0]), (1, [1.0, None]), (2, [None, None])])
def test_an_asynchronous_copy_arrives_when_it_is_waited_for(
    folder: Path, pending: int, arrived: list[float | None]
) -> None:
    body = f"""
        __shared__ float x[2];
        for (int i = 0; i < 2; ++i) {{ copy_async<4>(x + i, a + i, true); commit_copies(); }}
        wait_copies<{pending}>();
        for (int i = 0; i < 2; ++i) b[i] = x[i];
    """
    a, b = torch.tensor([1.0, 2.0]), torch.zeros(2)
    run(folder, body, a, b, block=1)
    assert [None if value != value else value for value in b.tolist()] == arrived


def test_source_that_does_not_compile_is_one_line_with_the_place(folder: Path) -> None:
    with pytest.raises(BuildError) as caught:
        run(folder, "a[0] = nonsense;", torch.zeros(1))
    assert "nonsense" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16), ("f8e4m3", torch.float8_e4m3fn)]
)
def test_storage_types_convert_as_torch_does(folder: Path, name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    small = torch.randn(4000, generator=generator) * torch.logspace(-8, 2, 4000)
    given = torch.cat(
        [small.clamp(-448, 448), torch.tensor([0.0, -0.0, 448.0, float("nan"), 2.0**-9, 2.0**-10])]
    )
    stored, widened = torch.zeros(len(given), dtype=dtype), torch.zeros(len(given))
    body = f"""
        {name}* stored = reinterpret_cast<{name}*>(b);
        for (int i = threadIdx.x; i < {len(given)}; i += 32) {{
            stored[i] = from_float<{name}>(a[i]);
            c[i] = to_float(stored[i]);
        }}
    """
    run(folder, body, given, stored, widened)
    assert torch.equal(widened.nan_to_num(nan=1e9), given.to(dtype).float().nan_to_num(nan=1e9))
    assert torch.equal(stored.float().nan_to_num(nan=1e9), widened.nan_to_num(nan=1e9))


WORDS = """
    MatrixA left;
    MatrixB right;
    MatrixC sum{{}};
    for (int i = 0; i < 4; ++i) left.at[i] = reinterpret_cast<uint32_t*>(a)[lane_id() * 4 + i];
    for (int i = 0; i < 2; ++i) right.at[i] = reinterpret_cast<uint32_t*>(b)[lane_id() * 2 + i];
    multiply<{type}>(sum, left, right);
    for (int i = 0; i < 4; ++i) c[lane_id() * 4 + i] = sum.at[i];
"""


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "f16")])
def test_a_product_of_the_tensor_cores_has_its_elements_where_the_ptx_isa_says(
    folder: Path, dtype: torch.dtype, name: str
) -> None:
    left, right = torch.randn(16, 16).to(dtype), torch.randn(16, 8).to(dtype)
    # [lane g, lane t, word, half] of A: row g or g + 8, column 2t or 2t + 8, and the next
    words_a = left.view(2, 8, 2, 4, 2).permute(1, 3, 2, 0, 4).contiguous()
    words_b = right.view(2, 4, 2, 8).permute(3, 1, 0, 2).contiguous()
    found = torch.zeros(8, 4, 2, 2)
    arguments = (words_a.view(torch.float32), words_b.view(torch.float32), found)
    run(folder, WORDS.format(type=name), *arguments, header="mma.cuh")
    product = (left.double() @ right.double()).view(2, 8, 4, 2).permute(1, 2, 0, 3).float()
    assert torch.equal(found, product)


LOADED = """
    __shared__ uint4 rows[32];
    rows[lane_id()] = reinterpret_cast<uint4*>(a)[lane_id()];
    __syncwarp();
    load_matrices<4, {transposed}>(reinterpret_cast<uint32_t*>(b) + lane_id() * 4, &rows[lane_id()]);
"""


def test_matrices_are_loaded_by_row_or_transposed(folder: Path) -> None:
    matrices = torch.arange(256, dtype=torch.int16).view(4, 8, 8)
    for transposed in (False, True):
        found = torch.zeros(128)
        run(
            folder,
            LOADED.format(transposed=str(transposed).lower()),
            matrices.view(torch.float32),
            found,
            header="mma.cuh",
        )
        want = (matrices.mT if transposed else matrices).reshape(4, 8, 4, 2)  # [matrix, g, t, half]
        assert torch.equal(found.view(torch.int16).view(8, 4, 4, 2), want.permute(1, 2, 0, 3))


def test_a_word_of_a_matrix_is_transposed_between_lanes(folder: Path) -> None:
    matrix, found = torch.arange(64, dtype=torch.int16).view(8, 8), torch.zeros(32)
    body = "reinterpret_cast<uint32_t*>(b)[lane_id()] = transpose(reinterpret_cast<uint32_t*>(a)[lane_id()]);"
    run(folder, body, matrix.view(torch.float32), found, header="mma.cuh")
    assert torch.equal(found.view(torch.int16).view(8, 8), matrix.T)


@pytest.mark.parametrize(
    ("cached", "name", "wide", "scalar"),
    [
        (torch.float8_e4m3fn, "f8e4m3", torch.bfloat16, "bf16"),
        (torch.float8_e4m3fn, "f8e4m3", torch.float16, "f16"),
        (torch.int8, "i8", torch.bfloat16, "bf16"),
    ],
)
def test_every_byte_of_a_quantised_cache_is_widened_exactly(
    folder: Path, cached: torch.dtype, name: str, wide: torch.dtype, scalar: str
) -> None:
    bytes_ = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    found = torch.zeros(128)
    body = f"""
    for (int i = lane_id(); i < 64; i += 32) {{
        const Widened both = widen<{scalar}>(reinterpret_cast<uint32_t*>(a)[i], {name}());
        reinterpret_cast<uint32_t*>(b)[2 * i] = both.even;
        reinterpret_cast<uint32_t*>(b)[2 * i + 1] = both.odd;
    }}"""
    run(folder, body, bytes_.view(torch.float32), found, header="mma.cuh")
    want = bytes_.view(cached).float().to(wide).view(64, 2, 2).permute(0, 2, 1)  # even bytes, then odd ones
    assert torch.equal(found.view(wide).view(64, 2, 2).nan_to_num(1e4), want.nan_to_num(1e4))


def test_without_a_place_for_compiled_kernels_the_shim_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_CACHE", "/dev/null/below")
    assert "no place for the compiled kernels" in str(shim.problem())
