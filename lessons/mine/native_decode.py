"""The learner's C++ kernel of the lab cpp-paged-decode, called by the engine for rows with one query."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor

MAX_HEAD_DIM, MAX_GROUP = 256, 8
"""Limits of the lab's contract: size of a head, query heads per kv head."""


class NativeDecode:
    """Attention of one query per row over the paged cache. Threads share the rows of a layer."""

    def __init__(self, library: bytes) -> None:
        """library: the compiled file, with the lab's function `paged_decode`. Raises OSError, AttributeError."""
        with NamedTemporaryFile(suffix=".so") as file:  # the loader keeps the mapping when the file is gone
            file.write(library)
            file.flush()
            self._function = ctypes.CDLL(file.name).paged_decode
        self._pool = ThreadPoolExecutor(thread_name_prefix="decode")
        self._function.restype = None
        self._function.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int] * 7 + [ctypes.c_float]

    @staticmethod
    def takes(query: Tensor, kv: Tensor) -> bool:
        """Whether the lab's contract covers these shapes and types.

        query: [rows, heads, head_dim]. kv: [blocks, 2, kv_heads, block_size, head_dim], maybe a view of all layers.
        """
        group = query.shape[1] // kv.shape[2]
        is_fp32 = query.dtype == kv.dtype == torch.float32 and kv.device.type == "cpu"
        lies_whole = kv[0].is_contiguous() and kv.stride(0) % kv[0].numel() == 0
        return is_fp32 and lies_whole and group <= MAX_GROUP and query.shape[2] <= MAX_HEAD_DIM

    def __call__(self, query: Tensor, kv: Tensor, table: Tensor, seq_lens: Tensor, scale: float) -> Tensor:
        """Return the attention of rows with one query each, like query.

        table: [rows, max_blocks], ids of blocks. seq_lens: [rows].
        """
        query = query.contiguous()
        out = torch.empty_like(query)
        table = (table * (kv.stride(0) // kv[0].numel())).to(torch.int32).contiguous()
        seq_lens = seq_lens.to(torch.int32).contiguous()
        _, heads, head_dim = query.shape
        sizes = (heads, kv.shape[2], head_dim, kv.shape[3], table.shape[1], 0)

        def attend(rows: range) -> None:
            parts = query[rows.start], kv, table[rows.start], seq_lens[rows.start :], out[rows.start]
            self._function(*[each.data_ptr() for each in parts], len(rows), *sizes, scale)

        threads = torch.get_num_threads()
        share = -(-len(query) // threads)
        parts = [range(first, min(first + share, len(query))) for first in range(0, len(query), share)]
        for _ in self._pool.map(attend, parts):  # ctypes releases the GIL
            pass
        return out
