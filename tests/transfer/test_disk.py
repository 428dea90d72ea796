"""The disk tier: what one engine saved, the next one starts with; what is damaged is computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import ConfigError
from engine.core.connector import KVIdentity
from engine.engine_core import EngineCore
from engine.transfer.disk import DiskOptions, DiskStore
from tests.engine.harness import TINY_LLAMA
from tests.transfer.pairs import ask, run

MakeEngine = Callable[..., EngineCore]
PROMPT = list(range(2, 43))
"""41 tokens: ten blocks of 4 and one token more."""


def disk_engine(make_engine: MakeEngine, folder: Path, gib: float = 1.0, **settings: object) -> EngineCore:
    return make_engine(kv_offloading_backend=f"disk:{folder}", kv_offloading_size=gib, **settings)


def serve(engine: EngineCore, name: str, prompt: list[int] = PROMPT) -> tuple[list[int], int]:
    """(tokens, cached tokens); returns when its blocks are saved too."""
    answer = run(engine, ask(name, prompt))[name]
    run(engine, until=lambda: not engine.has_unfinished())
    assert answer.last is not None and answer.last.finish_reason == "length"
    return answer.token_ids, answer.last.num_cached_tokens


def first_life(make_engine: MakeEngine, folder: Path) -> list[int]:
    engine = disk_engine(make_engine, folder)
    tokens, _ = serve(engine, "first")
    engine.shutdown()
    return tokens


def files(folder: Path) -> list[Path]:
    """Blocks, the one that was used last first."""
    return sorted(folder.glob("*/*.kv"), key=lambda path: path.stat().st_mtime_ns, reverse=True)


def test_a_restarted_engine_starts_with_what_the_last_one_computed(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    tokens = first_life(make_engine, tmp_path)
    engine = disk_engine(make_engine, tmp_path)
    request = ask("again", PROMPT)
    answer = run(engine, request)["again"]
    assert answer.token_ids == tokens
    assert answer.last is not None and answer.last.num_cached_tokens == 40
    assert request.num_external_tokens == 40


def test_what_is_saved_is_what_was_computed_bit_for_bit(make_engine: MakeEngine, tmp_path: Path) -> None:
    first_life(make_engine, tmp_path)
    before = {path.name: path.read_bytes() for path in files(tmp_path)}
    engine = disk_engine(make_engine, tmp_path / "other")
    serve(engine, "computes it again")
    assert {path.name: path.read_bytes() for path in files(tmp_path / "other")} == before
    assert len(before) == 12  # 49 tokens, the last of them never computed


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "another block's"])
def test_a_damaged_block_is_computed_and_its_file_replaced(
    make_engine: MakeEngine, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = first_life(make_engine, tmp_path)
    third, fourth = files(tmp_path)[2:4]
    good = third.read_bytes()
    bad = {
        "flipped": good[:-1] + bytes([good[-1] ^ 1]),
        "cut": good[:-8],
        "empty": b"",
        "another block's": fourth.read_bytes(),
    }[damage]
    third.write_bytes(bad)
    engine = disk_engine(make_engine, tmp_path)
    assert serve(engine, "again") == (tokens, 8)
    assert "8 of 10 KV blocks did not come" in caplog.text
    assert third.read_bytes() == good
    assert serve(disk_engine(make_engine, tmp_path), "third life") == (tokens, 40)


def test_a_full_folder_lets_go_of_what_was_used_longest_ago_and_of_ends_before_starts(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    first_life(make_engine, tmp_path)
    block_bytes = files(tmp_path)[0].stat().st_size
    engine = disk_engine(make_engine, tmp_path, gib=20 * block_bytes / 2**30)
    serve(engine, "other", [7] * 41)  # 12 more
    names = {path.name for path in files(tmp_path)}
    assert 18 <= len(names) <= 20
    engine = disk_engine(make_engine, tmp_path)
    _, num_cached = serve(engine, "again")
    assert num_cached == 4 * (len(names) - 12)  # the start of the first prompt is what is left of it


def test_a_disk_that_takes_nothing_more_costs_nothing_but_the_saving(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = disk_engine(make_engine, tmp_path)
    tokens, _ = serve(engine, "fits")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    failures = 0
    answer = run(engine, ask("too much", [9] * 41))
    while engine.has_unfinished():
        engine.step()
        failures += engine.scheduler.stats.num_kv_save_failures
    assert failures == 1 and answer["too much"].last is not None
    assert not [path for path in tmp_path.glob("*/.*")], "a half-written file stays"
    monkeypatch.undo()
    assert serve(engine, "again")[0] == tokens


def test_a_folder_that_vanishes_while_the_engine_runs_is_a_miss(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = disk_engine(make_engine, tmp_path / "tier")
    tokens, _ = serve(engine, "first")
    for path in [*(tmp_path / "tier").glob("*/*"), *(tmp_path / "tier").glob("*"), tmp_path / "tier"]:
        path.rmdir() if path.is_dir() else path.unlink()
    assert engine.reset_prefix_cache()
    assert serve(engine, "again") == (tokens, 0)


def test_two_engines_share_a_folder(make_engine: MakeEngine, tmp_path: Path) -> None:
    one, two = disk_engine(make_engine, tmp_path), disk_engine(make_engine, tmp_path)
    tokens, _ = serve(one, "a")
    assert serve(two, "b") == (tokens, 40)


def test_another_model_never_hits(make_engine: MakeEngine, tmp_path: Path) -> None:
    first_life(make_engine, tmp_path)
    other = disk_engine(make_engine, tmp_path, seed=1)
    assert serve(other, "again")[1] == 0
    half = disk_engine(make_engine, tmp_path, dtype="bfloat16")
    assert serve(half, "again")[1] == 0
    assert len({path.parent for path in files(tmp_path)}) >= 2
    assert TINY_LLAMA["torch_dtype"] == "float32"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kv_offloading_backend": "disk:/tmp/x"}, "needs kv_offloading_size"),
        ({"kv_offloading_backend": "disk:", "kv_offloading_size": 1}, "is not supported"),
        ({"kv_offloading_backend": "disk:/proc/no", "kv_offloading_size": 1}, "cannot write to"),
        (
            {
                "kv_offloading_backend": "disk:/tmp/x",
                "kv_offloading_size": 1,
                "kv_transfer_config": {"kv_connector": "TCPConnector"},
            },
            "names another one",
        ),
        ({"kv_transfer_config": {"kv_connector": "DiskConnector"}}, "path"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    make_engine: MakeEngine, settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_engine(**settings)


def test_leftovers_of_a_dead_engine_are_cleared(tmp_path: Path) -> None:
    identity = KVIdentity("m", "float32", (1,), 4).digest.hex()
    store = DiskStore(DiskOptions(str(tmp_path), 100), identity)
    store.create()
    old, new = store.folder / ".dead.1.2", store.folder / ".alive.1.2"
    for path in (old, new):
        path.write_bytes(b"half a block")
    os.utime(old, (0, 0))
    store.create()
    assert not old.exists() and new.exists()
