import sys

from engine.core.blocks import BlockPool
from engine.core.hashing import sha256
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.memory._shapes import KvDtype, attention_shape, deployment_of

TABLE_ENTRY_BYTES = 4
"""A block id in the device's block table is an int32, in vLLM and here."""


@experiment("E12")
def metadata(
    ctx: Context,
    layers: int = arg(32, 1, 512),
    kv_heads: int = arg(8, 1, 512),
    head_dim: int = arg(128, 1, 1024),
    kv_dtype: KvDtype = "bfloat16",
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Count the bookkeeping bytes per KV block: block tables on the device, hashes and block records on the host.

    Returns:
        Figures of one block.
        kv_bytes [B]
        table_bytes [B]: Block-table entry on the device.
        digest_bytes [B]: Hash on the host, with prefix caching.
        record_bytes [B]: Host memory of the Block object, its id, its hash and their places in the pool's list and
            index; depends on the version of Python.
        table_share [share]: table_bytes over KV bytes.
        host_share [share]: record_bytes over KV bytes, which lie in another memory.
    """
    per_token = deployment_of(attention_shape(layers, kv_heads, head_dim), kv_dtype).kv_bytes_per_token
    kv_bytes = int(per_token) * block_size
    (block,) = BlockPool(1001).take(1000)[-1:]
    digest = sha256(b"tokens of a block")
    pointers = 8 + 3 * 8  # its place in the pool's list; hash, key and value of the index, half of it empty
    record = sys.getsizeof(block) + sys.getsizeof(block.block_id) + sys.getsizeof(digest) + pointers
    return Result(
        kv_bytes=kv_bytes,
        table_bytes=TABLE_ENTRY_BYTES,
        digest_bytes=len(digest),
        record_bytes=record,
        table_share=TABLE_ENTRY_BYTES / kv_bytes,
        host_share=record / kv_bytes,
    )
