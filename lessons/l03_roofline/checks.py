"""Checks of lesson 03: bytes, FLOP and the time they take at least."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from engine.sim.cost import CostModel, StepLoad
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from lessons.course.checking import Failed, Learner, check, smallest

FIELDS = (
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
)
TINY = dict(zip(FIELDS, (1, 4, 6, 2, 1, 2, 10), strict=True))


def shape_of(model: str) -> dict[str, int]:
    found = get_model(model)
    return {field: getattr(found, field) for field in FIELDS}


def expect(found: Any, wanted: float, what: str, rel: float = 1e-9) -> None:
    if (
        isinstance(found, bool)
        or not isinstance(found, int | float)
        or not math.isclose(found, wanted, rel_tol=rel)
    ):
        raise Failed(f"{what} is {found!r}; expected {wanted:,.6g}")


def work(learner: Learner, shape: dict[str, int], batch: int, context: int, width: float) -> Any:
    found = learner.call("decode_work", shape, batch, context, width)
    if not isinstance(found, dict) or set(found) != {"matrices", "attention"}:
        raise Failed(f"the result is {found!r}; expected a dict with matrices and attention")
    for part, pair in found.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise Failed(f"{part} is {pair!r}; expected (bytes, FLOP)")
    return found


def count(shape: dict[str, int], batch: int, context: int, width: float) -> dict[str, tuple[float, float]]:
    """Count matrix by matrix and head by head."""
    h, d = shape["hidden_size"], shape["head_dim"]
    heads, kv_heads, inner = shape["num_heads"], shape["num_kv_heads"], shape["intermediate_size"]
    layer = [
        (heads * d, h),
        (kv_heads * d, h),
        (kv_heads * d, h),
        (h, heads * d),
        (inner, h),
        (inner, h),
        (h, inner),
    ]
    matrices = layer * shape["num_layers"] + [(shape["vocab_size"], h)]
    moved = sum(rows * columns * width for rows, columns in matrices)
    flops = sum(2 * rows * columns * batch for rows, columns in matrices)
    kv = sum(width * d * 2 * kv_heads * context for _ in range(shape["num_layers"]) for _ in range(batch))
    pairs = shape["num_layers"] * heads * batch * context
    return {"matrices": (moved, flops), "attention": (kv, pairs * (2 * d + 2 * d))}


@check("03.1")
def a_small_product_by_hand(learner: Learner) -> None:
    """[1, 2] times [3, 2]: 12 FLOP, 2 + 6 + 3 numbers."""
    expect(learner.call("intensity", 1, 2, 3, 4), 12 / 44, "intensity(1, 2, 3, 4)")


@check("03.1")
def one_row_has_little_work(learner: Learner) -> None:
    """A matrix times one row does about one FLOP per byte in 16 bits, whatever the size of the matrix."""
    expect(learner.call("intensity", 1, 8192, 8192, 2), 1.0, "intensity(1, 8192, 8192, 2)", 1e-3)
    expect(learner.call("intensity", 1, 4096, 28672, 2), 1.0, "intensity(1, 4096, 28672, 2)", 1e-3)


@check("03.1")
def narrow_values_raise_it(learner: Learner) -> None:
    """Half the bytes per number double the intensity; a fraction of a byte is allowed."""
    wide = learner.call("intensity", 16, 512, 512, 2)
    for width in (1, 0.5):
        expect(
            learner.call("intensity", 16, 512, 512, width),
            wide * 2 / width,
            f"with {width} bytes per number it",
        )


@check("03.1")
def all_three_operands_count(learner: Learner) -> None:
    """Input, weights and result move, each once: with many rows the activations matter."""

    def run(case: tuple[int, int, int, int]) -> None:
        rows, inputs, outputs, width = case
        moved = sum(width * a * b for a, b in ((rows, inputs), (outputs, inputs), (rows, outputs)))
        expect(learner.call("intensity", *case), rows * inputs * outputs / moved * 2, f"intensity{case}")

    rng = Random(301)
    sizes = ((4, 8), (64, 64), (2048, 512))
    cases = [(rng.randint(1, most), rng.randint(1, most), rng.randint(1, size), 2) for most, size in sizes]
    smallest(cases, run)


@check("03.2")
def weights_are_counted_by_matrix(learner: Learner) -> None:
    """matrices: the bytes of seven matrices per layer and of the output head, once per step."""

    def run(case: tuple[dict[str, int], int]) -> None:
        shape, batch = case
        found = work(learner, shape, batch, 5, 2)["matrices"][0]
        expect(found, count(shape, batch, 5, 2)["matrices"][0], "the bytes of the matrices")

    smallest([(TINY, 1), (TINY, 3), (shape_of("shop"), 4), (shape_of("llama-3.1-70b"), 64)], run)


@check("03.2")
def every_token_uses_every_weight(learner: Learner) -> None:
    """matrices: two FLOP per weight and request."""

    def run(batch: int) -> None:
        expect(
            work(learner, TINY, batch, 5, 2)["matrices"][1],
            count(TINY, batch, 5, 2)["matrices"][1],
            "the FLOP of the matrices",
        )

    smallest([1, 2, 9], run)


@check("03.2")
def requests_read_their_own_kv(learner: Learner) -> None:
    """attention: the bytes of keys and values of the KV heads, for each request and each token of its context."""

    def run(case: tuple[int, int, float]) -> None:
        expect(
            work(learner, TINY, *case)["attention"][0],
            count(TINY, *case)["attention"][0],
            "the bytes of KV",
        )

    smallest([(1, 1, 2), (1, 7, 2), (3, 7, 1), (3, 7, 4)], run)


@check("03.2")
def every_query_head_attends(learner: Learner) -> None:
    """attention: a score and a weighted sum for each query head, four FLOP per number of the head."""

    def run(case: tuple[dict[str, int], int, int]) -> None:
        shape, batch, context = case
        expect(
            work(learner, shape, batch, context, 2)["attention"][1],
            count(shape, batch, context, 2)["attention"][1],
            "the FLOP of attention",
        )

    smallest([(TINY, 1, 1), (TINY, 2, 9), (shape_of("llama-3.1-8b"), 8, 1000)], run)


@check("03.2")
def agrees_with_the_simulator(learner: Learner) -> None:
    """Llama 3.1 70B on H100, in bf16: within 0.1 % of the engine's cost model, which also counts norms."""
    model = get_model("llama-3.1-70b")
    cost = CostModel(Deployment(model, get_hardware("h100")))
    load = StepLoad(num_rows=16, num_tokens=16, num_sampled=16, decode_context=16 * 2000)
    found = work(learner, shape_of(model.name), 16, 2000, 2)
    moved, flops = cost.bytes_and_flops(load)
    expect(found["matrices"][0], moved, "the bytes of the matrices", 1e-3)
    expect(found["matrices"][1], flops, "the FLOP of the matrices", 1e-3)
    expect(found["attention"][0], cost.attention_work(load)[0], "the bytes of KV", 1e-3)


@check("03.2")
def each_part_has_its_own_limit(learner: Learner) -> None:
    """predict_tpot: each part takes the longer of moving and computing, the parts add up, devices share the work."""

    def run(case: tuple[dict[str, tuple[float, float]], int, float]) -> None:
        parts, devices, wanted = case
        expect(
            learner.call("predict_tpot", parts, 10.0, 1000.0, devices), wanted, "predict_tpot(work, 10, 1000)"
        )

    cases = [
        ({"matrices": (50.0, 100.0), "attention": (0.0, 0.0)}, 1, 5.0),
        ({"matrices": (50.0, 9000.0), "attention": (0.0, 0.0)}, 1, 9.0),
        ({"matrices": (50.0, 100.0), "attention": (20.0, 100.0)}, 1, 7.0),
        ({"matrices": (50.0, 9000.0), "attention": (70.0, 100.0)}, 1, 16.0),
        ({"matrices": (50.0, 9000.0), "attention": (70.0, 100.0)}, 4, 4.0),
    ]
    smallest(cases, run)


@check("03.3")
def the_ridge_of_an_h100(learner: Learner) -> None:
    """bf16 on an H100: 989.4 TFLOP/s and 3.35 TB/s give 296 requests; the size of the model does not matter."""
    expect(learner.call("critical_batch", 2, 3350e9, 989.4e12), 296, "critical_batch of an H100 in bf16")


@check("03.3")
def narrower_weights_move_the_border(learner: Learner) -> None:
    """int4 weights with 16-bit arithmetic need a quarter of the batch; fp8 arithmetic needs as many as bf16."""
    expect(learner.call("critical_batch", 0.5, 3350e9, 989.4e12), 74, "critical_batch with int4 weights")
    expect(learner.call("critical_batch", 1, 3350e9, 1978.9e12), 296, "critical_batch in fp8")


@check("03.3")
def the_border_itself_counts(learner: Learner) -> None:
    """The result is a whole number of requests; equal times are enough."""

    def run(case: tuple[int, float, float, int]) -> None:
        found = learner.call("critical_batch", *case[:3])
        if type(found) is not int or found != case[3]:
            raise Failed(f"critical_batch{case[:3]} is {found!r}; expected {case[3]}")

    smallest([(2, 1e12, 1e12, 1), (2, 1e12, 3e14, 300), (4, 1e12, 2.5e12, 5), (2, 2e12, 5e12, 3)], run)


@check("03.3")
def kv_overtakes_the_weights(learner: Learner) -> None:
    """crossover_batch: the first batch whose KV has at least as many bytes as the weights."""

    def run(case: tuple[float, float]) -> None:
        weights, kv = case
        found = learner.call("crossover_batch", {"matrices": (weights, 9e9), "attention": (kv, 7e9)})
        wanted = next(batch for batch in range(1, 10_000) if batch * kv >= weights)
        if type(found) is not int or found != wanted:
            raise Failed(
                f"weights of {weights:g} bytes, KV of {kv:g} bytes per request: {found!r}; expected {wanted}"
            )

    smallest([(10.0, 20.0), (10.0, 10.0), (10.0, 5.0), (10.0, 3.0), (1000.0, 7.0)], run)
