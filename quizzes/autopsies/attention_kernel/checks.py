"""Requirements on the loop: attention(query, key_blocks, value_blocks, block_table, seq_len, block_size) gives a list
of head_dim numbers."""

import math
from operator import mul
from typing import Any

from prep_common.sandbox import expose
from quizzes.autopsies.attention_kernel.probes import case
from quizzes.autopsies.programs import Program


def _dense(query: list[float], keys: list[list[float]], values: list[list[float]]) -> list[float]:
    """Softmax attention in two passes with exact sums."""
    scores = [math.fsum(map(mul, query, key)) / math.sqrt(len(query)) for key in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    total = math.fsum(weights)
    return [math.fsum(map(mul, weights, column)) / total for column in zip(*values, strict=True)]


def _gap(program: Program, length: int, head_dim: int, block_size: int, scale: float = 1.0) -> float:
    setting = case(length, head_dim, block_size, seed=program.rng.randrange(10**9))
    setting["query"] = [scale * x for x in setting["query"]]
    slots = [(setting["block_table"][t // block_size], t % block_size) for t in range(length)]
    keys = [setting["key_blocks"][block][offset] for block, offset in slots]
    values = [setting["value_blocks"][block][offset] for block, offset in slots]
    out = program.attention(**setting)
    is_vector = isinstance(out, list) and len(out) == head_dim
    assert is_vector, f"returned {out!r:.60}, wanted {head_dim} numbers"
    assert all(math.isfinite(x) for x in out), f"not finite: {out}"
    return max(abs(a - b) for a, b in zip(out, _dense(setting["query"], keys, values), strict=True))


def check_the_result_is_a_weighted_value(program: Program) -> None:
    """The result has head_dim numbers and equals softmax(q k / sqrt(head_dim)) v within 1e-9."""
    for length in (1, 5, 16, 33, program.rng.randint(40, 90)):
        gap = _gap(program, length, 8, 4)
        assert gap < 1e-9, f"{length} tokens: differs from dense attention by {gap:.2g}"


def check_the_scale_is_there(program: Program) -> None:
    """Scores are divided by the square root of head_dim, whatever head_dim is."""
    for head_dim in (64, *program.rng.sample(range(2, 64), 3)):
        length, block_size = program.rng.randint(2, 40), program.rng.randint(1, 9)
        gap = _gap(program, length, head_dim, block_size)
        where = f"head_dim {head_dim}, {length} tokens, blocks of {block_size}"
        assert gap < 1e-9, f"{where}: differs by {gap:.2g}"


def check_large_scores_do_not_overflow(program: Program) -> None:
    """Scores of a thousand give finite results: the running maximum is subtracted."""
    gap = _gap(program, 24, 8, 4, scale=2000.0)
    assert gap < 1e-9, f"large scores: differs by {gap:.2g}"


def check_copies_of_a_token_change_nothing(program: Program) -> None:
    """Attention over copies of one token is its value."""
    out = program.attention([0.5, 1.0], [[[1.0, 2.0]] * 4], [[[3.0, 4.0]] * 4], [0], 4, 4)
    assert all(abs(a - b) < 1e-12 for a, b in zip(out, [3.0, 4.0], strict=True)), f"returned {out}"


def check_keys_are_read_once(program: Program) -> None:
    """One pass: each key and each value is read once, as a kernel that streams blocks must."""
    reads: list[int] = []

    class Watched(list[Any]):
        """A block that counts the vectors that are read, one by one or as a slice."""

        def __getitem__(self, index: Any) -> Any:
            item = list.__getitem__(self, index)
            reads.extend([1] * (len(item) if isinstance(index, slice) else 1))
            return item

        def __iter__(self) -> Any:
            for vector in list.__iter__(self):
                reads.append(1)
                yield vector

    setting = case(20, 4, 4)
    for name in ("key_blocks", "value_blocks"):
        setting[name] = [expose(Watched(block)) for block in setting[name]]
    program.attention(**setting)
    assert len(reads) == 40, f"{len(reads)} reads of 20 keys and 20 values"
