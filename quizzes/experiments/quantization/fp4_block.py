from quizzes.experiments import Context, Result, arg, experiment


@experiment("E31", "E34")
def fp4_block(
    ctx: Context, values: list[float] = arg([0.7, -1.9, 3.3, 5.0], -1000, 1000, count=(1, 16))
) -> Result:
    """Round one block of weights to MXFP4 and NVFP4 (`engine/quant/fp4.py`).

    Returns:
        The values are the first of a block, filled up with zeros.
        mx_scale: A power of two (E8M0).
        mx_restored
        nv_scale: E4M3 block scale times the matrix's fp32 number.
        nv_restored
        mx_error, nv_error: Root of the mean squared error over the values.
        mx_bits, nv_bits [bits]: Per weight, scales included.
    """
    import torch

    from engine.quant.fp4 import FP4_BLOCKS, from_e8m0, quantise_mxfp4, quantise_nvfp4

    n = len(values)
    row = torch.zeros(1, 32)
    row[0, :n] = torch.tensor(values)
    mx, nv = quantise_mxfp4(row), quantise_nvfp4(row)
    found = [weight.restore()[0, :n] for weight in (mx, nv)]
    errors = [float((part - row[0, :n]).square().mean().sqrt()) for part in found]
    return Result(
        mx_scale=float(from_e8m0(mx.block_scale)[0, 0]),
        mx_restored=found[0].tolist(),
        nv_scale=float(nv.block_scale[0, 0].float() * nv.tensor_scale),  # type: ignore[operator]
        nv_restored=found[1].tolist(),
        mx_error=errors[0],
        nv_error=errors[1],
        mx_bits=4 + 8 / FP4_BLOCKS["mxfp4"],
        nv_bits=4 + 8 / FP4_BLOCKS["nvfp4"],
    )
