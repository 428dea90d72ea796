"""A mixture of experts: many small MLPs, of which every token uses a few.

    hidden [T, H] -> router: each token's k best experts and their weights
                  -> sort the T * k visits by expert, so that each expert computes its visitors in one product

        visits of tokens 0 1 2 (k = 2)     t0:e1  t0:e3 | t1:e1  t1:e0 | t2:e3  t2:e1
        sorted by expert                   e0: t1 | e1: t0 t1 t2 | e3: t0 t2            group_ends = [1, 4, 4, 6]

                  -> down(silu(gate(x)) * up(x)) per expert, back into the order of the tokens, weighted sum over k

Over several ranks either every expert is cut like a dense MLP (tensor parallel), or each rank holds whole experts
(expert parallel): less communication inside an expert, but the ranks wait for the one whose experts are popular
(`tokens_per_expert`). Both end in one all_reduce.

Sources: Shazeer et al. 2017, Mixtral (Jiang et al. 2024), GShard (Lepikhin et al. 2020) for expert parallelism;
vLLM model_executor/layers/fused_moe/layer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from engine.config import ModelConfig
from engine.layers.linear import empty_parameter
from engine.parallel import Shard, current_ranks
from kernels import ops


class FusedMoE(nn.Module):
    """Router and experts of one layer, or the part of them that this rank has."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        assert config.moe is not None
        self.moe = moe = config.moe
        self.group = current_ranks().tensor
        self.shares_out_experts = moe.expert_parallel and self.group.size > 1
        if self.shares_out_experts:
            num_local, self.size = self.group.split(moe.num_experts), moe.intermediate_size
            self.first_expert = self.group.rank * num_local
        else:
            num_local, self.size = moe.num_experts, self.group.split(moe.intermediate_size)
            self.first_expert = 0
        self.router = empty_parameter(moe.num_experts, config.hidden_size, dtype=dtype)
        self.gate_up = empty_parameter(num_local, 2 * self.size, config.hidden_size, dtype=dtype)
        self.down = empty_parameter(num_local, config.hidden_size, self.size, dtype=dtype)
        self.num_local = num_local
        self.tokens_per_expert = torch.zeros(moe.num_experts, dtype=torch.int64, device="cpu")
        """Visits so far, of all experts: what says how uneven the load is."""
        self._packed: list[tuple[Any, Any]] = []

    # -- loading

    def checkpoint_tensors(self, module_name: str) -> Iterator[tuple[str, Tensor]]:
        """(name in the checkpoint, storage that loading fills), where the model calls this layer `module_name`."""
        names = self.moe.names
        parent = f"{module_name.rpartition('.')[0]}.{names.block}"
        yield f"{parent}.gate.weight", self.router.data
        for index in range(self.num_local):
            expert = f"{parent}.experts.{self.first_expert + index}"
            yield f"{expert}.{names.gate}.weight", self.gate_up.data[index, : self.size]
            yield f"{expert}.{names.up}.weight", self.gate_up.data[index, self.size :]
            yield f"{expert}.{names.down}.weight", self.down.data[index]

    def shard_of(self, name: str) -> Shard | None:
        if "experts." not in name or self.shares_out_experts:
            return None
        return self.group.shard(1 if name.endswith(f"{self.moe.names.down}.weight") else 0)

    def finish_loading(self) -> None:
        """Called once the weights are in. A CPU takes its experts one by one, in the layout of `ops.linear`."""
        self.router_weight = ops.pack_weight(self.router.data)
        del self.router
        if self.gate_up.device.type != "cpu":
            return
        self._packed = [
            (ops.pack_weight(gate_up.contiguous()), ops.pack_weight(down.contiguous()))
            for gate_up, down in zip(self.gate_up.data, self.down.data, strict=True)
        ]
        del self.gate_up, self.down

    # -- computing

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [T, H] -> [T, H]."""
        weights, experts = self._route(hidden)
        visits = experts.flatten()
        order = visits.argsort(stable=True)
        counts = visits.bincount(minlength=self.moe.num_experts)
        self.tokens_per_expert += counts.cpu()
        first = int(counts[: self.first_expert].sum())
        local_counts = counts[self.first_expert : self.first_expert + self.num_local]
        ends = local_counts.cumsum(0)
        mine = order[first : first + int(ends[-1])]
        rows = hidden[mine // self.moe.num_experts_per_tok]
        results = hidden.new_zeros(len(visits), hidden.shape[1])
        results[mine] = self._experts(rows, ends.to(torch.int32))
        # The k results of a token are added in the order of its own choice: the same alone and in a batch.
        out = (results.view(len(hidden), -1, hidden.shape[1]) * weights[..., None].to(hidden.dtype)).sum(1)
        return self.group.all_reduce(out)

    def _route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Weights fp32 [T, k] and experts int64 [T, k] of every token, best first."""
        logits = ops.linear(hidden, self.router_weight).float()
        weights, experts = logits.softmax(-1).topk(self.moe.num_experts_per_tok, dim=-1)
        if self.moe.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, experts

    def _experts(self, x: Tensor, group_ends: Tensor) -> Tensor:
        """Rows sorted by expert, x [n, H] -> [n, H]."""
        if not self._packed:
            gate_up = ops.grouped_linear(x, self.gate_up.data, group_ends)
            return ops.grouped_linear(ops.silu_and_mul(gate_up), self.down.data, group_ends)
        out, start = torch.empty_like(x), 0
        for (gate_up_weight, down_weight), end in zip(self._packed, group_ends.tolist(), strict=True):
            if end > start:
                gate_up = ops.linear(x[start:end], gate_up_weight)
                out[start:end] = ops.linear(ops.silu_and_mul(gate_up), down_weight)
            start = end
        return out
