from quizzes.experiments import Context, Result, arg, experiment

LANES, SECTOR = 32, 32


@experiment("E27")
def kv_layout(
    ctx: Context,
    num_layers: int = arg(32, 1, 128),
    kv_heads: int = arg(8, 1, 128),
    block_size: int = arg(16, 1, 256),
    head_dim: int = arg(128, 32, 256, multiple_of=32),
    bytes_per_number: int = arg(2, 1, 4),
) -> Result:
    """Show the strides of the KV cache and the memory sectors that one warp's loads touch along either axis.

    Reads the strides of `engine/attention/backend.py` from a tensor that takes no memory.

    Returns:
        One layer's cache, [num_blocks, 2, kv_heads, block_size, head_dim] with a stride between blocks.
        block_bytes [B]: Distance between two blocks; all layers lie between.
        token_stride [numbers]: Distance between two positions of a block.
        head_stride, key_to_value [numbers]
        sectors_along_dim [sectors]: 32-byte sectors when 32 lanes load neighbouring numbers of one key.
        sectors_along_tokens [sectors]: The same when 32 lanes load one dimension of 32 positions in order.
    """
    import torch

    from engine.attention.backend import kv_cache_shape

    shape = kv_cache_shape(64, num_layers, kv_heads, block_size, head_dim)
    view = torch.empty(shape, device="meta")[:, 0]
    block, part, head, token, _ = view.stride()

    def sectors(numbers: list[int]) -> int:
        return len({number * bytes_per_number // SECTOR for number in numbers})

    along_tokens = [i // block_size * block + i % block_size * token for i in range(LANES)]
    return Result(
        block_bytes=block * bytes_per_number,
        token_stride=token,
        head_stride=head,
        key_to_value=part,
        sectors_along_dim=sectors(list(range(LANES))),
        sectors_along_tokens=sectors(along_tokens),
    )
