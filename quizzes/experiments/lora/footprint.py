from typing import Literal

from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from quizzes.experiments import Context, Result, arg, experiment

Module = Literal["q", "k", "v", "o", "gate", "up", "down"]


@experiment("E43")
def footprint(
    ctx: Context,
    model: str = "llama-3.1-8b",
    rank: int = arg(16, 1, 512),
    max_rank: int = arg(16, 1, 512),
    modules: list[Module] = arg(["q", "k", "v", "o", "gate", "up", "down"], count=(1, 7)),
    adapters: int = arg(50, 1, 1000),
    hardware: str = "h100",
    value_bytes: int = arg(2, 1, 4),
) -> Result:
    """Count bytes of adapters, of the slots that hold them, and of one merged replica per adapter.

    An adapter has rank x (in + out) parameters per matrix. Slots have room for max_rank in every module whatever an
    adapter uses, as in vLLM. Models with dense layers only.

    Returns:
        Weights in 16 bits unless said otherwise.
        adapter_bytes [B]
        adapter_mb [MB]
        base_bytes [B]
        share_of_base [share]: One adapter over the base.
        shared_bytes [B]: One base with `adapters` adapters in slots of `max_rank`, all seven modules: what the engine
            sets aside.
        replicas_bytes [B]: A merged copy of the base for each adapter.
        devices_shared, devices_replicas [devices]: Devices that hold the weights of each form.
        saving [x]
        kv_tokens_lost [tokens]: KV tokens that the slots displace.
        load_ms [ms]: The adapter's bytes over the device's host link at full rate.
    """
    shape, device = get_model(model), get_hardware(hardware)
    hidden, heads = shape.hidden_size, shape.num_heads * shape.head_dim
    kv = shape.num_kv_heads * shape.head_dim
    sizes = {
        "q": hidden + heads,
        "k": hidden + kv,
        "v": hidden + kv,
        "o": heads + hidden,
        "gate": hidden + shape.intermediate_size,
        "up": hidden + shape.intermediate_size,
        "down": shape.intermediate_size + hidden,
    }
    one = rank * sum(sizes[name] for name in set(modules)) * shape.num_layers * value_bytes
    slot = max_rank * sum(sizes.values()) * shape.num_layers * value_bytes
    deployment = Deployment(shape, device)
    base = int(deployment.weight_bytes)
    shared = base + adapters * slot
    room = device.memory_bytes * deployment.gpu_memory_utilization
    return Result(
        adapter_bytes=one,
        adapter_mb=one / 1e6,
        base_bytes=base,
        share_of_base=one / base,
        shared_bytes=shared,
        replicas_bytes=adapters * base,
        devices_shared=-(-shared // int(room)),
        devices_replicas=adapters * -(-base // int(room)),
        saving=adapters * base / shared,
        kv_tokens_lost=int(adapters * slot // deployment.kv_bytes_per_token),
        load_ms=1e3 * one / device.host_link.bytes_per_s,
    )
