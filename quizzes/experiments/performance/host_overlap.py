from quizzes.experiments import Context, Result, arg, experiment


@experiment("E65")
def host_overlap(
    ctx: Context,
    host_ms: float = arg(2.0, 0, 10_000),
    device_ms: float = arg(10.0, 0, 10_000),
    steps: int = arg(100, 1, 10_000),
) -> Result:
    """Compare a step's host work before its forward pass with host work beside it: how long the device waits.

    Overlapped, as with vLLM's asynchronous scheduling: the host prepares step n + 1 while the device runs step n.

    Returns:
        `steps` steps, one after the other and overlapped. Busy: share of the time in which the device computes.
        serial_ms, overlapped_ms [ms]
        serial_busy, overlapped_busy [share]
        speedup [x]
    """
    host_free = device_free = serial = 0.0
    for _ in range(steps):
        serial += host_ms + device_ms
        prepared = host_free + host_ms
        device_free = max(prepared, device_free) + device_ms
        # The host starts on the next step when the device has taken this one.
        host_free = max(prepared, device_free - device_ms)
    busy = steps * device_ms
    return Result(
        serial_ms=serial,
        overlapped_ms=device_free,
        serial_busy=busy / serial if serial else 0.0,
        overlapped_busy=busy / device_free if device_free else 0.0,
        speedup=serial / device_free if device_free else 1.0,
    )
