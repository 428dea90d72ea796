from quizzes.experiments import Context, Result, arg, experiment


@experiment("E32", "E01")
def kv_bytes(
    ctx: Context,
    num_layers: int = arg(32, 1, 200),
    kv_heads: int = arg(8, 1, 128),
    head_dim: int = arg(128, 8, 512),
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Count the bytes of a KV block by cache type, scales included (`engine/quant/kv_cache.py`).

    Returns:
        bf16 [B]: Per block.
        fp8, int8_per_token_head [B]
        int8_scale_bytes [B]: Bytes of the scales.
        fp8_ratio [x]: bf16 over fp8.
        int8_ratio [x]: bf16 over int8_per_token_head: how many times more tokens fit.
    """
    import torch

    from engine.quant.kv_cache import KVCacheLayout

    types = (torch.bfloat16, torch.float8_e4m3fn, torch.int8)
    bf16, fp8, int8 = (KVCacheLayout(num_layers, kv_heads, block_size, head_dim, dtype) for dtype in types)
    return Result(
        bf16=bf16.bytes_per_block,
        fp8=fp8.bytes_per_block,
        int8_per_token_head=int8.bytes_per_block,
        int8_scale_bytes=int8.scale_bytes,
        fp8_ratio=bf16.bytes_per_block / fp8.bytes_per_block,
        int8_ratio=bf16.bytes_per_block / int8.bytes_per_block,
    )
