"""Block hashes: equal if and only if everything that shapes the KV is equal."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.core.errors import HashCollisionError
from engine.core.hashing import BlockHasher, encode_fields, sha256
from tests.core.driver import Driver, make_request

REPOSITORY = Path(__file__).parents[2]


def hashes(hasher: BlockHasher, prompt: list[int], **keys: str | None) -> list[bytes]:
    request = make_request("r", prompt, **keys)
    hasher.extend(request)
    return request.block_hashes


def test_only_full_blocks_have_a_hash() -> None:
    hasher = BlockHasher(4)
    assert [len(hashes(hasher, list(range(n)))) for n in (1, 3, 4, 5, 8)] == [0, 0, 1, 1, 2]


def test_a_chain_grows_with_the_tokens_and_never_changes() -> None:
    hasher = BlockHasher(4)
    request = make_request("r", list(range(6)))
    hasher.extend(request)
    first = list(request.block_hashes)
    request.token_ids += [6, 7, 8]
    hasher.extend(request)
    hasher.extend(request)
    assert request.block_hashes[:1] == first
    assert request.block_hashes == hashes(hasher, list(range(9)))


def test_a_hash_covers_every_token_before_it() -> None:
    hasher = BlockHasher(2)
    assert hashes(hasher, [1, 2, 3, 4])[1] != hashes(hasher, [9, 2, 3, 4])[1]
    assert hashes(hasher, [1, 2, 3, 4])[0] == hashes(hasher, [1, 2, 9, 9])[0]


def test_adapter_salt_model_and_kv_dtype_all_part_the_chains() -> None:
    keys = [(None, None), ("a", None), (None, "a"), ("a", "a"), ("b", "a"), ("", None), (None, "")]
    roots = {
        BlockHasher(4, model_fingerprint=model, kv_cache_dtype=dtype).root(lora, salt)
        for model, dtype, (lora, salt) in itertools.product(["m1", "m2"], ["auto", "fp8"], keys)
    }
    assert len(roots) == 2 * 2 * len(keys)


def test_no_value_can_imitate_another_field() -> None:
    assert encode_fields(a="1", b="2") != encode_fields(a="1" + encode_fields(b="2").decode(), b=None)
    assert encode_fields(a="12", b="") != encode_fields(a="1", b="2")
    assert encode_fields(a=None) != encode_fields(a="") != encode_fields(a="-")


def test_the_digest_is_sha256_unless_said_otherwise() -> None:
    assert sha256(b"x") == hashlib.sha256(b"x").digest()
    assert len(BlockHasher(4).root(None, None)) == 32


def test_hashes_are_the_same_in_every_process() -> None:
    program = (
        "from tests.core.test_hashing import hashes, BlockHasher;"
        "print(hashes(BlockHasher(4, model_fingerprint='m'), list(range(9)), cache_salt='ß')[-1].hex())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_a_forced_collision_is_detected_in_debug_mode_and_not_served() -> None:
    def four_bits(data: bytes) -> bytes:
        return bytes([sha256(data)[0] & 0xF0])

    driver = Driver()
    driver.scheduler.kv.hasher = BlockHasher(4, digest=four_bits, detect_collisions=True)
    with pytest.raises(HashCollisionError, match="would read another's KV"):
        for index in range(20):
            driver.add(f"r{index}", 8)


def test_collision_detection_accepts_the_same_prefix_again() -> None:
    driver = Driver(detect_collisions=True)
    driver.add("a", [1] * 9)
    driver.add("b", [1] * 9)
    driver.run()
    assert driver.finish_reason("b") == "length"
