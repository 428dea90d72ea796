"""Reference solutions of lesson 03."""

# ruff: noqa: E402, F811


# exercise 03.1
def intensity(rows: int, inputs: int, outputs: int, bytes_per_value: float) -> float:
    flops = 2 * rows * inputs * outputs
    values = rows * inputs + inputs * outputs + rows * outputs
    return flops / (values * bytes_per_value)


# exercise 03.2
from collections.abc import Mapping


def decode_work(
    shape: Mapping[str, int], batch: int, context: int, bytes_per_value: float
) -> dict[str, tuple[float, float]]:
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
    parts = [max(moved / bytes_per_s, flops / flops_per_s) for moved, flops in work.values()]
    return sum(parts) / num_devices


# exercise 03.3
from collections.abc import Mapping
from math import ceil


def critical_batch(bytes_per_value: float, bytes_per_s: float, flops_per_s: float) -> int:
    return ceil(bytes_per_value * flops_per_s / (2 * bytes_per_s))


def crossover_batch(work_of_one: Mapping[str, tuple[float, float]]) -> int:
    return ceil(work_of_one["matrices"][0] / work_of_one["attention"][0])
