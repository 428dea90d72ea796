"""Marlin's layout: vLLM's words and scales, and the threads that PTX gives the weights to.

`marlin_of_vllm.json` is what vLLM makes of two matrices. tests/peers/vllm_marlin.py has the command that wrote it, and
tests/peers/test_vllm_marlin.py checks it against an installed vLLM.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from quizzes.experiments import BadArguments
from quizzes.experiments.quantization import _marlin as marlin
from quizzes.experiments.quantization.layouts import marlin_tile

CASES = json.loads(Path(__file__).with_name("marlin_of_vllm.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['rows']}x{case['columns']}")
def test_words_and_scales_are_those_of_vllm(case: dict[str, Any]) -> None:
    rows, columns = case["rows"], case["columns"]
    steps = torch.tensor([int(step, 16) for step in case["steps"]], dtype=torch.uint8).view(rows, columns)
    assert marlin.pack(steps).tolist() == case["words"]
    single = torch.arange(rows).view(rows, 1).float()
    assert marlin.permute_scales(single).tolist() == case["single"]
    if "grouped" in case:
        scales = torch.arange(rows * columns // 16).view(rows, -1).float()
        assert marlin.permute_scales(scales).tolist() == case["grouped"]


@pytest.mark.parametrize(("rows", "columns"), [(64, 16), (64, 48), (192, 16), (128, 64)])
def test_unpacking_gives_the_weights_and_scales_back(rows: int, columns: int) -> None:
    steps = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    words = marlin.pack(steps)
    assert words.shape == (columns // 16, 2 * rows) and words.dtype == torch.int32
    assert marlin.unpack(words, rows, columns).equal(steps)
    for groups in (1, 2, 5):
        scales = torch.rand(rows, groups)
        permuted = marlin.permute_scales(scales)
        assert permuted.shape == (groups, rows) and marlin.restore_scales(permuted).equal(scales)


def test_every_nibble_holds_the_weight_that_its_place_names() -> None:
    rows, columns = 128, 32
    steps = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    words = marlin.pack(steps).flatten().long()
    places = [(w, p, marlin.place_of(w, p, rows)) for w in range(len(words)) for p in range(8)]
    assert all((int(words[w]) >> 4 * p) & 15 == steps[place.row, place.column] for w, p, place in places)
    assert len({(place.row, place.column) for _, _, place in places}) == rows * columns


def test_the_fragments_are_those_of_ptx() -> None:
    """B of mma.m16n8k16: group = lane / 4 is the column of B, and rows are 2 (lane % 4) + {0, 1, 8, 9}."""
    offset = {"b0": 0, "b1": 1, "b2": 8, "b3": 9}
    found = [marlin.place_of(word, nibble, 64) for word in range(marlin.WORDS) for nibble in range(8)]
    for place in found:
        assert place.row == 8 * place.instruction + place.lane // 4
        assert place.column == 2 * (place.lane % 4) + offset[place.register]
    held = Counter((place.lane, place.instruction) for place in found)
    assert len(held) == 32 * 8 and set(held.values()) == {4}


def test_a_mask_finds_two_weights_of_one_register_pair_in_each_word() -> None:
    """Nibbles i and i + 4 are b0 and b1, or b2 and b3, of one instruction."""
    for word in range(marlin.WORDS):
        for nibble in range(4):
            low, high = (marlin.place_of(word, each, 64) for each in (nibble, nibble + 4))
            assert (low.instruction, low.row) == (high.instruction, high.row)
            assert (low.register, high.register) in (("b0", "b1"), ("b2", "b3"))


def test_a_lane_loads_the_scales_of_its_own_outputs() -> None:
    for lane in (0, 6, 31):
        tile = marlin_tile(rows=128, lane=lane, instruction=3, tile=1)
        own = {marlin.place_of(word, nibble, 128).row for word in tile.words_of_lane for nibble in range(8)}
        assert set(tile.scales_of_lane) == own
        columns_of_sums = {64 + 8 * block + 2 * (lane % 4) + odd for block in range(8) for odd in (0, 1)}
        assert set(tile.scales_of_sums) <= columns_of_sums


def test_the_map_of_a_tile_names_lane_word_and_nibble() -> None:
    tile = marlin_tile(lane=5)
    assert (tile.outputs_of_lane, tile.inputs_of_lane) == ([1] * 4, [2, 3, 10, 11])
    assert tile.words_of_lane == [20, 21, 22, 23] and tile.is_round_trip
    lines = tile.map.splitlines()[2:]
    assert len(lines) == 16 and " 5  20.0" in lines[2] and " 5  20.5" in lines[11]
    with pytest.raises(BadArguments, match="the matrix has 1 tiles, from 0 to 0; got 1"):
        marlin_tile(tile=1)
