"""The launch on a GPU, with everything replaced that needs one: what reaches cuda.core, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.cuda import compile as nvrtc
from kernels.cuda import launch as launching

pytestmark = pytest.mark.skipif(nvrtc.problem() is not None, reason=str(nvrtc.problem()))

KERNEL = launching.Kernel("sampling.cu", "sample", "ppppppppli", (("THREADS", "256"), ("VEC", "4")))
SIZES = [8] * 9 + [4]
STREAM = 0x7F00


class Gpu:
    """A device with one kernel, that writes down what it is asked to do."""

    def __init__(self, shared_memory: int, parameter_sizes: list[int]) -> None:
        self.shared_memory = shared_memory
        self.kernel = SimpleNamespace(
            arguments_info=[SimpleNamespace(size=size) for size in parameter_sizes],
            attributes=SimpleNamespace(shared_size_bytes=448),
            handle="handle of sample",
        )
        self.launches: list[tuple[Any, ...]] = []
        self.allowed: list[tuple[Any, ...]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import cuda.core
        from cuda.bindings import driver

        code = SimpleNamespace(get_kernel=lambda name: self.kernel)
        device = SimpleNamespace(set_current=lambda: None)
        properties = SimpleNamespace(shared_memory_per_block_optin=self.shared_memory)
        for place, name, replacement in (
            (cuda.core, "Device", lambda index: device),
            (cuda.core, "ObjectCode", SimpleNamespace(from_cubin=lambda cubin, name: code)),
            (cuda.core, "launch", lambda *args: self.launches.append(args)),
            (driver, "cuKernelSetAttribute", lambda *args: self.allowed.append(args) or (0,)),
            (torch.cuda, "device", lambda index: nullcontext()),
            (torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=STREAM)),
            (torch.cuda, "get_device_capability", lambda index: (9, 0)),
            (torch.cuda, "get_device_properties", lambda index: properties),
            (torch.cuda, "get_device_name", lambda index: "a small GPU"),
        ):
            monkeypatch.setattr(place, name, replacement)
        launching._loaded.cache_clear()


def start(shared_bytes: int) -> None:
    pointers = [torch.empty(1)] * 7
    launching.launch(
        *(KERNEL, *pointers, None, 2**40, 7),
        grid=(3,),
        block=(256,),
        shared_bytes=shared_bytes,
        device=torch.device("cuda", 0),
    )


def test_a_launch_names_stream_grid_block_and_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(232_448, SIZES)
    gpu.install(monkeypatch)
    start(shared_bytes=1024)
    ((stream, config, kernel, *arguments),) = gpu.launches
    assert stream.__cuda_stream__() == (0, STREAM)
    assert (config.grid, config.block, config.shmem_size) == ((3, 1, 1), (256, 1, 1), 1024)
    assert kernel is gpu.kernel
    assert arguments[7:9] == [0, 2**40] and arguments[9].value == 7
    assert not gpu.allowed


def test_more_than_48_kb_static_and_dynamic_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(232_448, SIZES)
    gpu.install(monkeypatch)
    start(shared_bytes=48 * 1024)
    ((_, size, handle, _),) = gpu.allowed
    assert (size, handle) == (48 * 1024, "handle of sample") and len(gpu.launches) == 1


def test_a_gpu_without_enough_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(49_152, SIZES)
    gpu.install(monkeypatch)
    with pytest.raises(launching.LaunchError) as caught:
        start(shared_bytes=48 * 1024)
    assert str(caught.value) == (
        "sample needs 49600 bytes of shared memory for a block, a small GPU has 49152"
    )
    assert not gpu.launches


def test_parameters_of_another_width_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpu(232_448, [8] * 8 + [4, 4]).install(monkeypatch)
    with pytest.raises(TypeError, match="declared are 'ppppppppli'"):
        start(shared_bytes=0)


@pytest.fixture(autouse=True)
def _forget_kernels() -> Any:
    yield
    launching._loaded.cache_clear()
