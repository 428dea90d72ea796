"""The checker's side: values, handles, lent objects, errors."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from prep_common.sandbox import (
    Guest,
    GuestError,
    GuestNotStarted,
    GuestStopped,
    Handle,
    Limits,
    callback,
    confinement,
    expose,
    process,
)
from prep_common.sandbox.nursery import START_SECONDS
from tests.counting import peak_bytes
from tests.waiting import has_ended, wait_until

SOURCE = """
def same(value): return value
def bad(): return [][1]
def stub(): raise NotImplementedError
def count(n):
    for i in range(n): yield i
async def twice(x): return 2 * x
async def acount(n):
    for i in range(n): yield i
class Pool:
    def __init__(self, n): self.free = n
    def take(self, k): self.free -= k; return self
    def __len__(self): return self.free
    def __eq__(self, other): return True
    __hash__ = object.__hash__
def use(lent, xs): return lent(3), xs[1], xs[0:2], len(xs), list(xs)
def grow(table): table.append(9)
def safe(lent):
    try: return lent(0)
    except ZeroDivisionError: return "caught"
print("hello")
"""


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with Guest({"learner.py": SOURCE}) as started:
        yield started


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -(2**80), 1.5, math.inf, "é\udc80", b"\0x", [1, [2]], (1, (2,)), {1: {2: "x"}}, {1, 2},
     frozenset([1]), {"t": "host", "id": 0}, slice(1, None), range(3), 1 + 2j],
)  # fmt: skip
def test_a_value_crosses_with_its_exact_type(guest: Guest, value: Any) -> None:
    found = guest.call("same", value)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "float16", "bfloat16", "float32"])
def test_a_tensor_crosses(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    value = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype)).t()
    with Guest({"learner.py": "def same(value): return value[:, 1:]"}, imports=("torch",)) as guest:
        found = guest.call("same", value)
    assert found.dtype == value.dtype and torch.equal(found, value[:, 1:])


def test_a_view_arrives_as_a_view_so_that_wrong_strides_show() -> None:
    torch = pytest.importorskip("torch")
    cache = torch.arange(48.0).view(4, 3, 4)[:, 1]  # one layer of a cache
    spread = torch.zeros(1000, 1000)[:, 0]  # too many gaps: copied
    code = "def look(value): return list(value.stride()), value.storage_offset(), value.sum().item(), value"
    with Guest({"learner.py": code}, imports=("torch",)) as guest:
        stride, offset, total, back = guest.call("look", cache)
        assert (stride, offset, total) == ([12, 1], 4, cache.sum().item())
        assert torch.equal(back, cache) and back.stride() == (12, 1)
        assert guest.call("look", spread)[0] == [1]
        assert guest.call("look", cache.T)[0] == [1, 12]
        empty = torch.empty_strided((0,), (0,), dtype=torch.int32)  # as numpy makes them
        assert guest.call("look", empty)[3].shape == (0,)


def test_a_large_tensor_crosses_as_bytes_not_number_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec that encodes and decodes here also does in the guest."""
    torch = pytest.importorskip("torch")
    value, answers, frames = torch.rand(1 << 20), [], []
    write, read = process.GuestProcess.write, process.GuestProcess.read

    def counted_write(self: process.GuestProcess, data: bytes) -> None:
        frames.append(len(data))
        write(self, data)

    def counted_read(self: process.GuestProcess) -> tuple[bytes, bytes]:
        parts = read(self)
        frames.append(sum(map(len, parts)))
        return parts

    with Guest({"learner.py": "def same(value): return value"}, imports=("torch",)) as guest:
        monkeypatch.setattr(process.GuestProcess, "write", counted_write)
        monkeypatch.setattr(process.GuestProcess, "read", counted_read)
        peak = peak_bytes(lambda: answers.append(guest.call("same", value)))
    assert torch.equal(answers[0], value)
    sent, received = frames
    assert value.nbytes < sent < value.nbytes + 1000 and value.nbytes < received < value.nbytes + 1000
    assert peak < 4 * value.nbytes, "3 copies; a list of the numbers takes 8 times their bytes"


def test_an_array_crosses() -> None:
    numpy = pytest.importorskip("numpy")
    with Guest({"learner.py": "def same(value): return value, value.sum()"}, imports=("numpy",)) as guest:
        found, total = guest.call("same", numpy.arange(4.0))
    assert found.tolist() == [0, 1, 2, 3] and type(total) is float


def test_an_object_is_a_handle_that_is_equal_only_to_itself(guest: Guest) -> None:
    pool, other = guest.new("Pool", 8), guest.new("Pool", 8)
    assert isinstance(pool, Handle) and pool != other and pool != 8
    assert pool.take(3) == pool and len(pool) == pool.free == pool.get("free") == 5
    pool.free = 2
    assert pool.content() == {"free": 2} and pool in guest.call("same", [pool])
    assert guest.call("same", pool) is pool


def test_iterators_and_coroutines_run_in_the_guest(guest: Guest) -> None:
    assert list(guest.call("count", 3)) == list(guest.call("acount", 3)) == [0, 1, 2]
    assert guest.call("twice", 4) == 8


def test_what_the_checker_lends_runs_here(guest: Guest) -> None:
    calls: list[int] = []
    answer = guest.call("use", callback(lambda x: calls.append(x) or 7), expose([1, 2, 3]))
    assert answer == (7, 2, [1, 2], 3, [1, 2, 3]) and calls == [3]


def test_an_error_of_the_checker_passes_through_learner_code(guest: Guest) -> None:
    error = AssertionError("too many tokens")

    def fail(_: int) -> None:
        raise error

    with pytest.raises(AssertionError) as raised:
        guest.call("safe", callback(fail))
    assert raised.value is error
    assert guest.call("safe", callback(lambda x: 1 // x)) == "caught"


def test_an_argument_that_learner_code_changes_is_put_there(guest: Guest) -> None:
    table = guest.put([1])
    guest.call("grow", table)
    assert table.content() == [1, 9]


def test_names_and_signatures(guest: Guest) -> None:
    assert guest.has("Pool.take") and not guest.has("nothing")
    assert guest.signature("Pool") == "(n)" and guest.signature("nothing") is None
    assert guest.call("math:sqrt", 4.0) == 2.0 and "hello" in guest.output()


def test_an_error_names_the_line_and_keeps_its_class(guest: Guest) -> None:
    with pytest.raises(IndexError) as raised:
        guest.call("bad")
    assert isinstance(raised.value, GuestError)
    assert str(raised.value) == "IndexError in line 3, `def bad(): return [][1]`: list index out of range"
    with pytest.raises(GuestError) as stub:
        guest.call("stub")
    assert stub.value.is_stub and "not written yet in line 4" in str(stub.value)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("'\\ud800'.encode()", UnicodeEncodeError), ("b'\\xff'.decode()", UnicodeDecodeError)],
)
def test_an_error_that_needs_arguments_keeps_its_class(code: str, kind: type[Exception]) -> None:
    with Guest({"learner.py": f"def fail():\n    return {code}"}) as guest:
        with pytest.raises(kind, match=f"{kind.__name__} in line 2") as caught:
            guest.call("fail")
        assert isinstance(caught.value, GuestError) and isinstance(caught.value, ValueError)


def test_a_syntax_error_names_its_line() -> None:
    with pytest.raises(GuestError, match=r"SyntaxError in line 2, `def f\(:`"):
        Guest({"learner.py": "x = 1\ndef f(:\n"})


def test_the_checkers_own_time_does_not_count() -> None:
    def slow() -> None:
        sum(range(30_000_000))

    with Guest({"learner.py": "def f(lent): lent()"}, limits=Limits(seconds=0.3)) as guest:
        guest.call("f", callback(slow))
        slow()
        assert guest.seconds_left > 0


def test_time_without_a_processor_does_not_count_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time\ndef f(seconds): time.sleep(seconds); return 1"
    limits = Limits(seconds=0.1)
    queued = itertools.count(0, 10)
    monkeypatch.setattr(process, "_seconds_queued", lambda _: float(next(queued)))
    with Guest({"learner.py": code}, limits=limits) as guest:
        assert guest.call("f", 0.2) == 1
    with (
        Guest({"learner.py": code}, limits=limits) as guest,
        pytest.raises(GuestStopped, match="stopped after"),
    ):
        guest.call("f", 60)


def test_an_endless_call_ends_long_before_the_guest_does() -> None:
    source = "def f():\n    while True: pass"
    with Guest({"learner.py": source}, limits=Limits(seconds=600, call_seconds=0.1)) as guest:
        with pytest.raises(GuestStopped, match="^stopped after 0.1 s in one call$"):
            guest.call("f")
        assert guest.seconds_left > 500


def test_calls_are_limited_one_by_one(clock: SimpleNamespace) -> None:
    with Guest({"learner.py": "def f(): pass"}, limits=Limits(seconds=600, call_seconds=2)) as guest:
        clock.per_answer = 1.9
        for _ in range(3):
            guest.call("f")
        clock.per_answer = 2.1
        with pytest.raises(GuestStopped, match="^stopped after 2 s in one call$"):
            guest.call("f")
        assert guest.seconds_left == pytest.approx(600 - 3 * 1.9 - 2.1)


def test_the_limit_of_a_call_does_not_hold_while_the_file_is_loaded(clock: SimpleNamespace) -> None:
    clock.per_answer = 9.9
    limits = Limits(seconds=10, call_seconds=2)
    with Guest({"learner.py": ""}, limits=limits) as guest:
        assert guest.seconds_left == pytest.approx(0.1)
    clock.per_answer = 10.1
    with pytest.raises(GuestStopped, match="^stopped after 10 s while loading the file$"):
        Guest({"learner.py": ""}, limits=limits)


def test_loading_has_a_limit_of_its_own_and_so_has_its_credit(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(seconds=100, load_seconds=5)
    clock.per_answer = 5.1
    with pytest.raises(GuestStopped, match="^stopped after 5 s while loading the file$"):
        Guest({"learner.py": ""}, limits=limits)
    clock.per_answer = 0.0
    with Guest({"learner.py": ""}, limits=limits, load=False) as guest:
        monkeypatch.setattr(process, "_seconds_queued", lambda _: 1000.0)
        clock.per_answer = 5.1 + process.MOST_CREDIT * 5
        with pytest.raises(GuestStopped, match="^stopped after 5 s while loading the file$"):
            guest.load()


def test_a_guest_that_does_not_start_says_so(clock: SimpleNamespace) -> None:
    clock.per_answer = START_SECONDS + 1
    with pytest.raises(GuestNotStarted, match=f"^did not start within {START_SECONDS:g} s$"):
        Guest({"learner.py": ""}, limits=Limits(seconds=10))


def test_a_guest_is_over_after_a_stop() -> None:
    with Guest({"learner.py": "def f(): raise SystemExit(2)"}) as guest:
        for _ in range(2):
            with pytest.raises(GuestStopped, match="ended itself with exit code 2"):
                guest.call("f")


def test_endless_calls_of_the_checker_are_stopped() -> None:
    source = "def f(lent):\n    while True: lent()"
    with (
        Guest({"learner.py": source}, limits=Limits(calls=50)) as guest,
        pytest.raises(GuestStopped, match="more than 50 times"),
    ):
        guest.call("f", callback(lambda: None))


def test_files_may_import_each_other_and_given_packages() -> None:
    files = {"learner.py": "from parts.b import x\nimport prep_common.percentile", "parts/b.py": "x = 3"}
    with Guest(files) as guest:
        assert guest.get("x") == 3
    with pytest.raises(GuestError):
        Guest({"learner.py": "import prep_common.percentile"}, own=())


def test_layers_are_reported() -> None:
    assert "audit hook" in confinement() and "rlimits" in confinement()


def test_an_error_in_another_file_names_its_line() -> None:
    files = {
        "learner.py": "from parts.b import f",
        "parts/b.py": "\ndef f(): return 1 / 0",
        "data.bin": b"\xff",
    }
    with Guest(files) as guest, pytest.raises(ZeroDivisionError, match="line 2"):
        guest.call("f")


def _library(folder: Path, source: str) -> bytes:
    compiler = shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no compiler")
    (folder / "a.c").write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "a.so", "a.c"], cwd=folder, check=True)
    return (folder / "a.so").read_bytes()


@pytest.mark.parametrize("imports", [(), ("ctypes",)], ids=["alone", "of a nursery"])
def test_what_machine_code_starts_ends_with_the_guest(imports: tuple[str, ...], tmp_path: Path) -> None:
    library = _library(
        tmp_path,
        "#include <unistd.h>\nint start(void) { int child = fork(); if (!child) pause(); return child; }",
    )
    source = "import ctypes\ndef f(): return ctypes.CDLL('./a.so').start()"
    with Guest({"learner.py": source, "a.so": library}, imports=imports) as guest:
        started = psutil.Process(guest.call("f"))
        assert not has_ended(started)
    assert wait_until(lambda: has_ended(started))


@pytest.mark.parametrize("imports", [(), ("ctypes",)], ids=["alone", "of a nursery"])
def test_what_machine_code_starts_ends_with_a_guest_that_ends_itself(
    imports: tuple[str, ...], tmp_path: Path
) -> None:
    library = _library(
        tmp_path,
        "#include <unistd.h>\nint start(void) { int child = fork(); if (!child) pause(); return child; }\n"
        "void end(void) { _exit(3); }",
    )
    source = "import ctypes\nlib = ctypes.CDLL('./a.so')\ndef f(): return lib.start()\ndef g(): lib.end()"
    with Guest({"learner.py": source, "a.so": library}, imports=imports) as guest:
        started = psutil.Process(guest.call("f"))
        with pytest.raises(GuestStopped):
            guest.call("g")
    assert wait_until(lambda: has_ended(started))


def test_a_library_in_the_scratch_folder_loads_and_others_do_not(tmp_path: Path) -> None:
    library = _library(tmp_path, "int three(void) { return 3; }")
    source = "import ctypes\ndef f(path): return ctypes.CDLL(path).three()"
    with Guest({"learner.py": source, "a.so": library}, imports=("ctypes",)) as guest:
        assert guest.call("f", "./a.so") == 3
        with pytest.raises(PermissionError):
            guest.call("f", str(tmp_path / "a.so"))


def test_a_forged_value_does_not_reach_the_checker() -> None:
    """A value that claims more than its frame holds stops the guest."""
    forged = [
        {"t": "tensor", "dtype": "float32", "shape": [10**9], "at": 0, "size": 0},
        {"t": "tensor", "dtype": "uint8", "shape": [1], "view": [[2], [1], 0], "at": 0, "size": 1},
        {"t": "tensor", "dtype": "uint8", "shape": [1], "view": [[10**9], [0], 0], "at": 0, "size": 1},
        {"t": "tensor", "dtype": "uint8", "shape": [1], "view": [[1], [-1], 0], "at": 0, "size": 1},
        {"t": "array", "dtype": "float32", "shape": [2], "at": 0, "size": 8},
        {"t": "bytes", "at": -4, "size": 8},
        {"t": "range", "v": [0, 10**18, 1]},
        {"t": "dict", "v": [[[1]], [2]]},
        {"t": "dtype", "v": "load"},
        {"t": "guest", "id": "x", "name": "y"},
        {"t": "__import__"},
        {},
    ]
    for value in forged:
        source = (
            "import json, os, struct, sys\ndef f(value):\n"
            "    text = json.dumps([3, 'ok', json.loads(value)]).encode()\n"
            "    os.write(int(sys.argv[4]), struct.pack('>QQ', len(text), 0) + text)\n"
        )
        with Guest({"learner.py": source}) as guest, pytest.raises(GuestStopped, match="checker's pipe"):
            guest.call("f", json.dumps(value))
