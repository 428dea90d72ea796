"""Matrix products on this machine: time, batch invariance, rows computed."""

import math
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

from quizzes.experiments import Context, NeedsHardware, Result, arg, experiment, generate, greedy
from quizzes.experiments.context import worker_of
from quizzes.experiments.measure import paired_ratio


@experiment("E26", seconds=20)
def batch_invariance(
    ctx: Context,
    neighbours: int = arg(7, 1, 31),
    prompt: int = arg(40, 1, 500),
    generated: int = arg(12, 1, 32),
) -> Result:
    """Check whether a request's output depends on its batch: this engine's kernels against torch's matrix product.

    Returns: The model `shop` continues one prompt alone, and again beside requests of other lengths.
        engine_difference: Largest difference of a request's top log-probabilities alone and in the batch.
        is_same_bits: The difference is 0: the engine is batch invariant here.
        same_tokens
        int8_difference: The same of an int8 product: integer sums are exact in any order.
    """
    import torch

    from kernels import ops
    from kernels.ops import quantise_int8

    prompts = [[ctx.rng.randrange(10, 2000) for _ in range(prompt + 3 * i)] for i in range(neighbours + 1)]
    params = greedy(generated, logprobs=5)
    with ctx.llm(
        max_num_seqs=neighbours + 1, enable_prefix_caching=False, max_num_batched_tokens=8192
    ) as llm:
        alone, among = (generate(llm, asked, params)[0] for asked in (prompts[:1], prompts))
    absent = SimpleNamespace(logprob=math.inf)
    difference = max(
        abs(entry.logprob - theirs.get(token, absent).logprob)
        for ours, theirs in zip(alone.logprobs, among.logprobs, strict=True)
        for token, entry in ours.items()
    )
    generator = torch.Generator().manual_seed(ctx.seed)
    x, weight = (torch.randn(neighbours + 1, 256, generator=generator) for _ in range(2))
    matrix = quantise_int8(weight)
    int8 = (ops.int8_linear(x[:1], *matrix) - ops.int8_linear(x, *matrix)[:1]).abs().max()
    return Result(
        engine_difference=difference,
        is_same_bits=difference == 0,
        same_tokens=list(alone.token_ids) == list(among.token_ids),
        int8_difference=float(int8),
    )


@experiment("E24", "E26", "E61", determinism="statistical", seconds=20)
def gemm_tokens(
    few: int = arg(1, 1, 64), many: int = arg(128, 2, 512), size: int = arg(2048, 256, 4096)
) -> Result:
    """Time one matrix product over a few tokens and over many on this machine.

    `ops.linear` with a size x size fp32 matrix over `few` rows and over `many`, in pairs. The processor is busy all
    the time in both.

    Returns: Per token: time of `few` over time of `many`, each for one token. 95 % interval.
        per_token [x]: How many times cheaper a token is among many: also the ratio of GFLOP/s, many over few.
        lo, hi; intensity_few, intensity_many [FLOP/B]
        busy_few, busy_many [share]: Share of the time in which a product ran, as a utilisation counter shows.
    """
    import torch

    from kernels import ops

    weight = ops.pack_weight(torch.randn(size, size))
    inputs = {rows: torch.randn(rows, size) for rows in (few, many)}

    def run(rows: int) -> Any:
        return ops.linear(inputs[rows], weight)

    def busy(rows: int, times: int) -> float:
        """Return the time inside products over the time of the loop around them."""
        inside = 0.0
        began = perf_counter()
        for _ in range(times):
            start = perf_counter()
            run(rows)
            inside += perf_counter() - start
        return inside / (perf_counter() - began)

    with torch.inference_mode():
        repeat = max(1, many // few // 4)  # both sides last long enough to be measured
        ratio = paired_ratio(lambda: [run(few) for _ in range(repeat)], lambda: run(many), seconds=6)
        busy_few, busy_many = busy(few, 40), busy(many, 5)
    scale = many / (few * repeat)
    return Result(
        per_token=ratio.median * scale,
        **{name: end * scale for name, end in ratio.interval.items()},
        intensity_few=2 * few / 4,  # FLOP of a weight over its bytes
        intensity_many=2 * many / 4,
        busy_few=busy_few,
        busy_many=busy_many,
    )


@experiment("E61", "E65", determinism="statistical", seconds=60, device="cuda")
def gpu_busy(
    few: int = arg(1, 1, 1024),
    many: int = arg(4096, 1, 8192),
    size: int = arg(8192, 1024, 16_384),
) -> Result:
    """Show on a GPU that full utilisation says nothing about throughput: few rows against many.

    Returns: bf16 products with a size x size matrix, about one second each, while the host sleeps.
        device_busy_few, device_busy_many [share]: Share of the wall time in which products ran on the device.
        host_busy [share]: CPU time of this process over wall time, while the device works on many rows.
        tflops_few, tflops_many [TFLOP/s]; ratio [x]
    """
    import torch

    if not torch.cuda.is_available():
        raise NeedsHardware("a GPU's counters can be compared on a GPU only")

    weight = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)

    def work(rows: int) -> tuple[float, float, float]:
        """Return (device busy, host busy, TFLOP/s)."""
        x = torch.randn(rows, size, device="cuda", dtype=torch.bfloat16)
        for _ in range(3):
            x @ weight.T
        torch.cuda.synchronize()
        repeats = 4000 if rows < 256 else 300
        event: Any = torch.cuda.Event
        first, last = (event(enable_timing=True, blocking=True) for _ in range(2))
        began, cpu = perf_counter(), process_time()
        first.record()
        for _ in range(repeats):
            x @ weight.T
        last.record()
        last.synchronize()
        wall, host = perf_counter() - began, process_time() - cpu
        device = first.elapsed_time(last) / 1e3
        return device / wall, host / wall, 2 * rows * size * size * repeats / device / 1e12

    (busy_few, _, tflops_few), (busy_many, host_busy, tflops_many) = work(few), work(many)
    return Result(
        device_busy_few=busy_few,
        device_busy_many=busy_many,
        host_busy=host_busy,
        tflops_few=tflops_few,
        tflops_many=tflops_many,
        ratio=tflops_many / tflops_few,
    )


@experiment("E24", "E25")
def rows_computed(ctx: Context, prompt: int = arg(100, 2, 1000), prompt_logprobs: bool = False) -> Result:
    """Count rows through the projections and the output head, and keys read, while `shop` reads and writes two tokens.

    Hooks on the layers count. prompt_logprobs: also request the log-probabilities of the prompt.

    Returns: The first step (prefill) and the second (decode) of one request.
        prefill_qkv [rows]: Positions that went through the first layer's query, key and value projections.
        prefill_logits [rows]: Positions whose logits were computed.
        decode_qkv, decode_logits [rows]
        decode_keys [keys]: Positions that the decode step's query attended to, its own included.
    """
    counts: dict[str, list[int]] = {"qkv": [], "logits": [], "keys": []}
    with ctx.llm(enforce_eager=True, enable_prefix_caching=False, max_num_batched_tokens=2048) as llm:
        worker = worker_of(llm)
        layer = next(iter(worker.model.model.layers.values()))
        layer.self_attn.register_forward_pre_hook(lambda _, inputs: counts["qkv"].append(len(inputs[0])))
        build, compute = worker.backend.build, worker.model.compute_logits

        def counted_build(metadata: Any) -> None:
            counts["keys"].append(max(metadata.seq_lens_cpu))
            counts["logits"].append(0)
            build(metadata)

        def counted_logits(hidden: Any) -> Any:
            counts["logits"][-1] += len(hidden)
            return compute(hidden)

        worker.backend.build, worker.model.compute_logits = counted_build, counted_logits
        tokens = [ctx.rng.randrange(10, 2000) for _ in range(prompt)]
        generate(llm, [tokens], greedy(2, prompt_logprobs=1 if prompt_logprobs else None))
    return Result(
        **{f"prefill_{what}": counts[what][0] for what in ("qkv", "logits")},
        **{f"decode_{what}": counts[what][1] for what in ("qkv", "logits", "keys")},
    )
