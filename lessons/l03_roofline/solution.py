"""Reference solutions of lesson 03."""

# ruff: noqa: E402, F811


# exercise 03.1
def intensity(rows: int, inputs: int, outputs: int, bytes_per_value: float) -> float:
    """Return the FLOP per byte of x @ W.T, with x [rows, inputs] and W [outputs, inputs].

    A multiplication and an addition are two FLOP. x and W are read once, the result is written once, and every number
    takes bytes_per_value.
    """
    flops = 2 * rows * inputs * outputs
    values = rows * inputs + inputs * outputs + rows * outputs
    return flops / (values * bytes_per_value)


# exercise 03.2
from collections.abc import Mapping


def decode_work(
    shape: Mapping[str, int], batch: int, context: int, bytes_per_value: float
) -> dict[str, tuple[float, float]]:
    """Return {"matrices": (bytes, FLOP), "attention": (bytes, FLOP)} of a step in which `batch` requests decode.

    shape: num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size.
    matrices: q, k, v, o, gate, up and down in each layer, and the output head; each weight is read once per step.
    attention: each request reads the keys and values of its `context` tokens, the newest included.
    Norms, activations and the row looked up in the embedding are left out: well below 1 %.
    """
    hidden, layers = shape["hidden_size"], shape["num_layers"]
    query, kv = shape["num_heads"] * shape["head_dim"], shape["num_kv_heads"] * shape["head_dim"]
    layer = hidden * (2 * query + 2 * kv) + 3 * hidden * shape["intermediate_size"]
    weights = layers * layer + shape["vocab_size"] * hidden
    tokens = batch * context
    return {
        "matrices": (weights * bytes_per_value, 2 * weights * batch),
        "attention": (layers * 2 * kv * bytes_per_value * tokens, layers * 4 * query * tokens),
    }


def predict_tpot(
    work: Mapping[str, tuple[float, float]], bytes_per_s: float, flops_per_s: float, num_devices: int = 1
) -> float:
    """Return the least seconds of a step.

    Each part takes the longer of its two times, moving or computing. The parts run one after the other. The devices
    share the work of each part evenly; their communication is left out.
    """
    parts = [max(moved / bytes_per_s, flops / flops_per_s) for moved, flops in work.values()]
    return sum(parts) / num_devices


# exercise 03.3
from collections.abc import Mapping
from math import ceil


def critical_batch(bytes_per_value: float, bytes_per_s: float, flops_per_s: float) -> int:
    """Return the smallest batch at which the matrices of a decode step compute at least as long as they are read."""
    return ceil(bytes_per_value * flops_per_s / (2 * bytes_per_s))


def crossover_batch(work_of_one: Mapping[str, tuple[float, float]]) -> int:
    """Return the smallest batch at which a step reads at least as many bytes of KV as of weights.

    work_of_one: the result of decode_work for a batch of 1 at the context in question.
    """
    return ceil(work_of_one["matrices"][0] / work_of_one["attention"][0])
