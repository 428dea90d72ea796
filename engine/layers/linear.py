"""Linear maps, and several of a checkpoint's maps fused into one matrix product.

A checkpoint stores the query, key and value projections apart; one product over their stacked rows
is faster than three. `Linear` holds the stack and knows which rows belong to which part:

    qkv_proj.weight [q + k + v, in]      q_proj  rows 0 .. q
                                         k_proj  rows q .. q + k
                                         v_proj  rows q + k ..

Source: the packed modules of vLLM (model_executor/layers/linear.py) and nano-vllm. Instead of a loader
function on every parameter, a layer offers its storage under the checkpoint's names
(`checkpoint_tensors`): each is a view that loading fills in place.

Tensor parallelism splits the matrices over the ranks of a group, and joins what they compute:

    MergedColumnParallelLinear  every rank has some outputs    x [T, in]  ->  [T, out / size], nothing to say
    RowParallelLinear           every rank has some inputs     [T, in / size]  ->  sum over the ranks, [T, out]

A column-parallel layer followed by a row-parallel one needs a single sum (all-reduce) for the two. Which part of a
checkpoint's tensor a rank holds is told by `shard_of`. Source: Megatron-LM (arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from engine.parallel import Shard, current_ranks
from kernels import ops


def empty_parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A parameter without values and without gradients: loading fills it."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


class LinearMethod(Protocol):
    """Storage and multiplication of a layer's weights: the seam for quantisation (`engine/quant`).

    Life: `create_weights` when the model is built, the loader fills what `Linear.checkpoint_tensors` offers,
    `process_weights_after_loading` repacks it, `apply` runs in every step. Source: vLLM LinearMethodBase.
    """

    def create_weights(self, layer: Linear) -> None:
        """Give the layer its parameters, in the checkpoint's layout."""
        ...

    def process_weights_after_loading(self, layer: Linear) -> None:
        """Put the loaded weights into the layout that computes fastest."""
        ...

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out], bias included."""
        ...

    def is_recordable(self, layer: Linear, *, is_cuda: bool) -> bool:
        """Whether a decode graph can record `apply` (`engine/worker/decode_graphs.py`).

        On a CPU it must be nothing but our kernels, on a GPU it must not wait for a value.
        """
        ...


class UnquantizedLinearMethod:
    """One floating-point matrix [out, in]."""

    def create_weights(self, layer: Linear) -> None:
        layer.weight = empty_parameter(layer.out_features, layer.in_features, dtype=layer.dtype)

    def process_weights_after_loading(self, layer: Linear) -> None:
        packed = ops.pack_weight(layer.weight.data, gated=isinstance(layer, GatedLinear))
        del layer.weight  # a packed matrix need not be a tensor, and the plain one is not needed any more
        layer.weight = packed

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        return ops.linear(x, layer.weight, layer.bias, layer.out_dtype)

    def is_recordable(self, layer: Linear, *, is_cuda: bool) -> bool:
        return True


class Linear(nn.Module):
    """x [T, in] -> x @ weight.T + bias [T, out].

    Every projection of a model goes through `forward` of this class: a quantised matrix takes effect through
    `method`, adapters through `lora`.
    """

    weight: Any
    """The matrix [out, in], or what `method` packs it into; absent if the method stores it otherwise."""

    def __init__(
        self, in_features: int, outputs: int | dict[str, int], *, bias: bool, dtype: torch.dtype
    ) -> None:
        """outputs: size, or that of each stacked projection under its name in the checkpoint, in order."""
        super().__init__()
        self.parts = outputs if isinstance(outputs, dict) else {"": outputs}
        """Output size of each projection that the checkpoint stores apart; without a name if it is just this one."""
        self.in_features = in_features
        self.out_features = out_features = sum(self.parts.values())
        self.dtype = dtype
        self.out_dtype: torch.dtype | None = None  # of the result, where it is not that of the inputs
        self.method: LinearMethod = UnquantizedLinearMethod()
        self.lora: Any = None  # A LoRALayer (`engine/lora/layers.py`), if adapters may add to the output
        self.stored: dict[str, dict[str, Tensor]] = {}
        """Tensors in the layout of a quantised checkpoint, by part and name, until they are repacked."""
        self.matrices: list[Any] = []
        """Results of repacking a quantised matrix (`engine/quant/matrices.py`)."""
        self.bias = empty_parameter(out_features, dtype=dtype) if bias else None

    def create_weights(self) -> None:
        """Called once `method` is known (`engine/models/loader.py`): storage for loading to fill."""
        self.method.create_weights(self)

    def part_names(self, module_name: str) -> list[str]:
        """Return the checkpoint's names of the parts of this layer, which the model calls `module_name`."""
        parent = module_name.rpartition(".")[0]
        return [f"{parent}.{part}" if part else module_name for part in self.parts]

    def checkpoint_tensors(self, module_name: str) -> Iterator[tuple[str, Tensor]]:
        """(name in the checkpoint, storage that loading fills), where the model calls this layer `module_name`.

        Parts of a merged layer lie beside it: `self_attn.qkv_proj` holds `self_attn.q_proj.weight`, a view of its rows.
        """
        names, sizes = self.part_names(module_name), list(self.parts.values())
        for parameter_name, parameter in self.named_parameters(recurse=False):
            for name, rows in zip(names, parameter.data.split(sizes), strict=True):
                yield f"{name}.{parameter_name}", rows
        for name, tensors in zip(names, self.stored.values(), strict=False):
            for tensor_name, tensor in tensors.items():
                yield f"{name}.{tensor_name}", tensor

    def shard_of(self, name: str) -> Shard | None:
        """Return the part of the checkpoint's tensor of this name that this rank holds; None for all of it."""
        return None

    def finish_loading(self) -> None:
        """Called once the weights are in."""
        self.method.process_weights_after_loading(self)
        self.stored.clear()

    @property
    def is_packed(self) -> bool:
        """Whether the layer is a packed matrix and nothing else, which kernels can fuse with what is around it."""
        is_plain = self.lora is None and isinstance(self.method, UnquantizedLinearMethod)
        return is_plain and not isinstance(self.weight, Tensor)

    def forward(self, x: Tensor) -> Tensor:
        y = self.method.apply(self, x)
        if self.lora is not None:
            self.lora.add(y, x)
        return y


class RowParallelLinear(Linear):
    """A linear map whose inputs are shared out: each rank holds some columns of the weight, and the ranks' results
    are summed. The bias must enter the sum once: only the first rank keeps it."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype) -> None:
        self.group = current_ranks().tensor
        super().__init__(self.group.split(in_features), out_features, bias=bias, dtype=dtype)

    def shard_of(self, name: str) -> Shard | None:
        return None if name.endswith(".bias") else self.group.shard(1)

    def finish_loading(self) -> None:
        if not self.group.is_first:
            self.bias = None
        super().finish_loading()

    def forward(self, x: Tensor) -> Tensor:
        return self.group.all_reduce(super().forward(x))


class MergedColumnParallelLinear(Linear):
    """Projections of the same input whose outputs are shared out: each rank holds some rows of weight and bias."""

    def __init__(self, in_features: int, parts: dict[str, int], *, bias: bool, dtype: torch.dtype) -> None:
        self.group = current_ranks().tensor
        local = {name: self.group.split(size) for name, size in parts.items()}
        super().__init__(in_features, local, bias=bias, dtype=dtype)

    def shard_of(self, name: str) -> Shard | None:
        return self.group.shard(0)


class GatedLinear(MergedColumnParallelLinear):
    """The gate and up projections of an MLP."""

    def __init__(self, in_features: int, size: int, *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__(in_features, {"gate_proj": size, "up_proj": size}, bias=bias, dtype=dtype)

    def activated(self, x: Tensor) -> Tensor:
        """silu(gate(x)) * up(x): x [T, in] -> [T, size]. One pass over packed weights without adapters, otherwise two,
        with the same bits."""
        if self.is_packed and ops.fuses("gated_linear"):
            return ops.gated_linear(x, self.weight, self.bias)
        return ops.silu_and_mul(self(x))


class QKVParallelLinear(MergedColumnParallelLinear):
    """Query, key and value projections; each rank has whole heads.

    With fewer kv heads than ranks a kv head is held by several of them, those whose query heads read it:

        4 ranks, 8 query heads, 2 kv heads      rank    0    1    2    3
                                                query  0 1  2 3  4 5  6 7
                                                kv      0    0    1    1
    """

    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        num_heads: int,
        num_kv_heads: int,
        *,
        bias: bool,
        dtype: torch.dtype,
    ) -> None:
        """num_heads, num_kv_heads: of the whole model."""
        size = current_ranks().tensor.size
        self.num_kv_shards = min(size, num_kv_heads)
        num_kv_copies = num_kv_heads // self.num_kv_shards * size  # as if every rank's copy were another head
        kv_size = num_kv_copies * head_dim
        parts = {"q_proj": num_heads * head_dim, "k_proj": kv_size, "v_proj": kv_size}
        super().__init__(hidden_size, parts, bias=bias, dtype=dtype)
        self.num_heads = self.group.split(num_heads)
        self.num_kv_heads = num_kv_heads // self.num_kv_shards

    def shard_of(self, name: str) -> Shard | None:
        shard = super().shard_of(name)
        if shard is None or ".q_proj." in name:
            return shard
        copies = self.group.size // self.num_kv_shards
        return Shard(shard.dim, self.group.rank // copies, self.num_kv_shards)
