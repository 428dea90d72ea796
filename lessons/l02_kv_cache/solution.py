"""Reference solutions of lesson 02."""

# ruff: noqa: E402, F811, N803

# exercise 02.1
import torch
from torch import Tensor


class KVCache:
    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, max_len: int) -> None:
        self._store = torch.zeros(num_layers, 2, max_len, num_kv_heads, head_dim)
        self._filled = [0] * num_layers
        self._max_len = max_len

    @property
    def length(self) -> int:
        return min(self._filled)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        start = self._filled[layer]
        end = start + len(k)
        if end > self._max_len:
            raise ValueError(f"{end} tokens do not fit into a cache of {self._max_len}")
        self._store[layer, 0, start:end] = k
        self._store[layer, 1, start:end] = v
        self._filled[layer] = end
        return self._store[layer, 0, :end], self._store[layer, 1, :end]


# exercise 02.2
import torch
from torch import Tensor


def attend(q: Tensor, K: Tensor, V: Tensor, first_position: int) -> Tensor:
    n, heads, head_dim = q.shape
    length, kv_heads, _ = K.shape
    grouped = q.reshape(n, kv_heads, heads // kv_heads, head_dim)
    scores = torch.einsum("nkgd,lkd->kgnl", grouped, K) / head_dim**0.5
    positions = first_position + torch.arange(n)
    later = torch.arange(length) > positions[:, None]
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return torch.einsum("kgnl,lkd->nkgd", weights, V).reshape(n, heads, head_dim)


# exercise 02.3
def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_value


def tokens_that_fit(memory_bytes: int, weight_bytes: int, bytes_per_token: int) -> int:
    return max(0, memory_bytes - weight_bytes) // bytes_per_token
