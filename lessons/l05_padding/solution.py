"""Reference solutions of lesson 05."""

# ruff: noqa: E402, F811

# exercise 05.1
from collections.abc import Sequence


def pad_batch(
    sequences: Sequence[Sequence[int]], pad_id: int, side: str
) -> tuple[list[list[int]], list[list[bool]], list[list[int]]]:
    if side not in ("left", "right"):
        raise ValueError(f"side {side!r} is unknown; use left or right")
    width = max(map(len, sequences), default=0)
    ids, mask, positions = [], [], []
    for sequence in sequences:
        gap = width - len(sequence)
        before, after = (gap, 0) if side == "left" else (0, gap)
        ids.append([pad_id] * before + list(sequence) + [pad_id] * after)
        mask.append([False] * before + [True] * len(sequence) + [False] * after)
        positions.append([0] * before + list(range(len(sequence))) + [0] * after)
    return ids, mask, positions


# exercise 05.2
from collections.abc import Sequence


def padding_waste(prompt_lens: Sequence[int], output_lens: Sequence[int]) -> dict[str, int]:
    if len(prompt_lens) != len(output_lens):
        raise ValueError(f"{len(prompt_lens)} prompts and {len(output_lens)} outputs")
    rows = len(prompt_lens)
    prefill_used, decode_used = sum(prompt_lens), sum(output_lens) - rows
    decode_steps = max(output_lens, default=1) - 1
    return {
        "prefill_used": prefill_used,
        "prefill_padded": rows * max(prompt_lens, default=0) - prefill_used,
        "decode_used": decode_used,
        "decode_padded": rows * decode_steps - decode_used,
    }


# exercise 05.3
from collections.abc import Sequence
from itertools import accumulate


def pack(lens: Sequence[int], starts: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    if len(lens) != len(starts):
        raise ValueError(f"{len(lens)} lengths and {len(starts)} starts")
    query_start_loc = list(accumulate(lens, initial=0))
    positions = [start + offset for start, count in zip(starts, lens, strict=True) for offset in range(count)]
    row_of_token = [row for row, count in enumerate(lens) for _ in range(count)]
    return query_start_loc, positions, row_of_token
