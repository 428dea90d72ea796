"""Least bytes and FLOPs of operations, checked against figures calculated by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels import registry
from kernels.attention_batch import AttentionBatch
from kernels.bench import questions
from kernels.bench.limits import CPU_SIDE, Limits, gemm_rate
from kernels.bench.questions import Experiment
from kernels.bench.roofline import limit, work
from kernels.bench.run import NATIVE, BenchReport, Machine, measure, workloads
from kernels.bench.timing import interleaved
from kernels.bench.workloads import SHOP, Maker, Model, Workload
from kernels.check.cases import cases
from kernels.operation import Work
from kernels.operations.cache import attention

H200 = Limits(4.3e12, 4.6e12, {"float32": 50e12, "bfloat16": 790e12}, 55e9)
TINY = Model("tiny", 128, 4, 2, 32, 96, 128, 16)

FOLDER = Path(registry.__file__).parent


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def attended(rows: list[tuple[int, int]], window: int | None = None) -> Work:
    """Llama-8B's attention in bf16 without its memory; only lengths have values."""
    starts = torch.tensor([0, *(query_len for query_len, _ in rows)]).cumsum(0).int()
    lengths = torch.tensor([seq_len for _, seq_len in rows]).int()
    query, kv = meta(int(starts[-1]), 32, 128), meta(9, 2, 8, 16, 128)
    batch = AttentionBatch(starts, lengths, meta(1))
    return work("paged_attention", query, kv, batch, scale=1.0, sliding_window=window)


def test_decode_reads_every_key_and_value_once() -> None:
    least = attended([(1, 4096)] * 64)
    assert least.read == 64 * 4096 * 2 * 8 * 128 * 2 + 64 * 32 * 128 * 2
    found = limit(least, H200)
    assert found.bound == "memory"
    assert found.seconds * 1e6 == pytest.approx(1074 / 4.6, rel=0.01)  # 1.07 GB at the reading bandwidth


def test_the_decode_kernel_states_its_intensity_against_the_ridge_of_the_unit_it_uses() -> None:
    least = attended([(1, 4096)] * 64)
    h100 = Limits(3.35e12, 3.35e12, {"float32": 67e12, "bfloat16": 989.4e12})  # NVIDIA H100 datasheet, SXM5
    ridge = {rate: flops / h100.copy_bandwidth for rate, flops in h100.flops.items()}
    assert least.flops / least.read == pytest.approx(4, rel=0.01)
    assert ridge["float32"] / 4 == pytest.approx(5, rel=0.01)
    text = " ".join((FOLDER / "cuda" / "paged_decode.cu").read_text().replace("//", " ").split())
    assert f"balances at {ridge['float32']:.0f} FLOP/B on its FP32 CUDA cores" in text
    assert (
        f"at {ridge['bfloat16']:.0f} on its bf16 tensor cores" in text and "a fifth of the CUDA cores" in text
    )


def test_causal_prefill_computes_half_a_square() -> None:
    least = attended([(8192, 8192)])
    assert least.flops == 4 * 128 * 32 * (8192 * 8193 // 2)
    found = limit(least, H200)
    assert found.bound == "compute" and found.seconds * 1e3 == pytest.approx(0.70, rel=0.01)


def test_a_window_limits_what_is_read_and_computed() -> None:
    assert attended([(1, 4096)], window=100).flops == 4 * 128 * 32 * 100
    small, large = attended([(1, 4096)], window=100), attended([(1, 100)])
    assert (small.read, small.flops) == (large.read, large.flops)
    assert attended([(5, 50)], window=10).flops == 4 * 128 * 32 * 5 * 10


def test_four_bits_read_a_quarter_of_the_weights() -> None:
    x, qweight = meta(1, 4096), meta(14336, 2048, dtype=torch.uint8)
    scale, zero = meta(14336, 32), meta(14336, 32, dtype=torch.uint8)
    least = work("int4_linear", x, qweight, scale, zero, 128)
    assert least.bytes / 1e6 == pytest.approx(30.8, abs=0.2)
    assert limit(least, H200).seconds * 1e6 == pytest.approx(7.0, rel=0.06)


def test_norm_with_residual_moves_four_matrices() -> None:
    x = meta(8192, 4096)
    least = work("fused_add_rms_norm", x, x, meta(4096), 1e-5)
    assert limit(least, H200).seconds * 1e6 == pytest.approx(62, rel=0.01)


def test_blocks_that_leave_the_gpu_go_over_the_link() -> None:
    found = limit(Work(read=55_000_000, written=55_000_000, over_link=True), H200)
    assert (found.bound, found.seconds) == ("link", pytest.approx(1e-3))


def test_the_formula_of_every_operation_takes_its_cases() -> None:
    for op in registry.OPS:
        for case in cases(op, seed=0):
            least = work(op, *case.args, **case.kwargs)
            assert least.bytes >= 0 and least.flops >= 0


def test_candidates_take_turns_on_changing_copies() -> None:
    seen: list[tuple[str, int]] = []
    calls = {name: lambda number, name=name: seen.append((name, number)) for name in "ab"}
    timings = interleaved(calls, "cpu", seconds=0.0)
    assert timings["a"].samples == timings["b"].samples >= 5
    assert timings["a"].p10 <= timings["a"].median <= timings["a"].p90
    numbers = [number for name, number in seen if name == "a"]
    assert numbers[2:] == list(range(numbers[2], numbers[2] + len(numbers) - 2))


def test_a_rate_that_torch_cannot_multiply_in_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("not implemented for 'Float8_e4m3fn'")

    monkeypatch.setattr("kernels.bench.limits.CPU_SIDE", 32)
    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    assert gemm_rate(torch.float8_e4m3fn, "cpu") is None
    assert gemm_rate(torch.float32, "cpu") > 0


def test_a_rate_is_that_of_the_fastest_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of torch, our reference and our kernels, in the order in which they are measured."""
    for dtype, seconds in ((torch.bfloat16, [3.0, 2.0, 1.0]), (torch.int8, [3.0, 1.0])):
        left = list(seconds)
        monkeypatch.setattr("kernels.bench.limits.best_seconds", lambda call, device: left.pop(0))  # noqa: B023
        assert gemm_rate(dtype, "cpu") == 2 * CPU_SIDE**3 / min(seconds)
        assert not left


def report() -> BenchReport:
    machine = Machine("a machine", torch.__version__, None, None, "3", "abc", "2026-01-01")
    return BenchReport("cpu", machine, Limits(1e10, 1e10, {"float32": 1e11}))


def test_a_candidate_that_does_not_take_the_workload_is_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unsupported = registry.Implementation.unsupported
    monkeypatch.setattr(
        registry.Implementation,
        "unsupported",
        lambda self, *args, **kwargs: (
            "sizes beyond 1" if self.backend == "cpu" else unsupported(self, *args, **kwargs)
        ),
    )
    monkeypatch.setattr(registry, "unavailable", lambda backend: None)
    found = report()
    measure(found, attention(Maker("cpu", torch.float32), TINY, [(1, 20)] * 2), NATIVE["cpu"], seconds=0.0)
    assert [measurement.candidate for measurement in found.measurements if measurement.ours] == ["reference"]
    assert [(each.candidate, each.reason) for each in found.omitted] == [("cpu", "sizes beyond 1")]
    assert all(0 < found.share(measurement) for measurement in found.measurements)


def test_both_layouts_of_the_cache_hold_the_same_numbers() -> None:
    maker = Maker("cpu", torch.float32)
    for layers_first in (False, True):
        torch.manual_seed(0)
        workload: Workload = attention(maker, TINY, [(1, 40)], layers_first=layers_first)
        one, other = workload.make(2)
        assert one.args[1].shape == (4, 2, 2, 16, 32)
        assert one.args[1].stride()[1:] == (2 * 16 * 32, 16 * 32, 32, 1)
        assert (one.args[1].stride(0) == one.args[1][0].numel()) == layers_first
        assert one.args[1].data_ptr() != other.args[1].data_ptr()


def test_the_kernel_reads_the_lengths_of_the_workload() -> None:
    """A kernel takes the lengths as dense numbers, whatever the strides say."""
    maker = Maker("cpu", torch.float32)
    batch: AttentionBatch = attention(maker, TINY, [(1, 40), (2, 33)]).make(1)[0].args[2]
    assert batch.seq_lens.is_contiguous()
    assert (batch.seq_lens.tolist(), batch.query_start_loc.tolist()) == ([40, 33], [0, 1, 3])


@pytest.mark.parametrize("op", ["copy_blocks", "lora_shrink", "lora_expand", "reshape_and_cache"])
def test_every_copy_lies_in_memory_of_its_own(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.bench.workloads.SHOP", TINY)
    for workload in workloads(op, "cpu"):
        one, other = (case.arguments() for case in workload.make(2))
        tensors = [name for name, value in one.items() if isinstance(value, torch.Tensor)]
        shared = {name for name in tensors if one[name].data_ptr() == other[name].data_ptr()}
        assert shared <= {"block_pairs", "slot_mapping"}, workload.name


def test_the_questions_find_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU with its kernels; here the same code on the CPU at a small size."""
    monkeypatch.setattr("kernels.bench.workloads.MEDIUM", TINY)
    experiment = Experiment(Maker("cpu", torch.float32), ("reference",), seconds=0.0)
    layout = questions.layout(experiment, TINY, ((1, 20),) * 2)
    assert layout.rows[0][0] == "reference" and "BLHNC takes" in layout.conclusion
    sampling = questions.sampling_cost(experiment)
    assert len(sampling.rows) == 5 and "noise costs" in sampling.conclusion
    monkeypatch.setattr(
        questions, "implementation_on", lambda made, backend: questions.on_copies(lambda *args: None, made)
    )
    crossover = questions.int4_crossover(experiment, rows=(1, 2))
    assert [row[0] for row in crossover.rows] == ["1", "2"]
    assert "4 bits beat dense weights up to 2 rows" in crossover.conclusion


@pytest.mark.skipif(registry.unavailable("cuda") is not None, reason="no CUDA compiler and no host shim")
def test_the_split_size_can_be_varied() -> None:
    experiment = Experiment(Maker("cpu", torch.float32), ("cuda",), seconds=0.0)
    answer = questions.split_size(experiment, SHOP, ((((1, 8),)),))
    assert answer.headings == ["batch", "implementation", *map(str, questions.SPLITS)]
    assert answer.rows[0][:2] == ["shop, decode 1 x 8", "cuda"]
