"""The Llama family: Llama 1 to 3, Mistral, Mixtral, Qwen2, Qwen3 (MoE), and whatever shares their layout.

    ids -> embedding -> [ norm -> attention -> + ] [ norm -> gated MLP -> + ] x layers -> norm -> hidden
                           |__________________|       |__________________|
                                residual stream: every block adds to it

Tokens of all requests lie behind each other, [T, ...] without a batch dimension; only attention knows
where one request ends. Module names are the checkpoint's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.config import ModelConfig
from engine.layers.attention import Attention
from engine.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from engine.layers.linear import GatedLinear, Linear, QKVParallelLinear, RowParallelLinear
from engine.layers.moe import FusedMoE
from engine.layers.norm import RMSNorm
from engine.layers.rope import RotaryTable
from engine.parallel import current_ranks
from kernels import ops


class LlamaAttention(nn.Module):
    """Projections, rotary positions and (Qwen3) a norm on every head around the attention itself."""

    def __init__(self, config: ModelConfig, layer_index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            self.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=config.attention_bias,
            dtype=dtype,
        )
        self.num_heads, self.num_kv_heads = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * self.head_dim,
            config.hidden_size,
            bias=config.attention_output_bias,
            dtype=dtype,
        )
        self.has_norms = config.qk_norm
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype=dtype)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype=dtype)
        index = layer_index - current_ranks().layers(config.num_hidden_layers).start
        self.attention = Attention(index, self.head_dim, config.sliding_window[layer_index])

    def forward(
        self, hidden: Tensor, residual: Tensor | None, norm: RMSNorm, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """hidden, residual [T, hidden]; cos, sin [T, head_dim / 2] -> what is new and the stream, [T, hidden] each."""
        query_and_key = (self.num_heads, self.num_kv_heads)
        # In the same pass as norm and projection, if no norm of the heads comes first.
        rotates = norm.fuses_with(self.qkv_proj) and not self.has_norms
        rotary = (cos, sin, sum(query_and_key), self.head_dim) if rotates else None
        projected, residual = norm.then(self.qkv_proj, hidden, residual, rotary=rotary)
        heads = projected.view(-1, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        query_key, value = heads.split((sum(query_and_key), self.num_kv_heads), dim=1)
        if self.has_norms:
            query, key = query_key.split(query_and_key, dim=1)
            query_key = torch.cat((self.q_norm(query), self.k_norm(key)), dim=1)
        if not rotates:
            query_key = ops.rotary_embedding(query_key, cos, sin)
        query, key = query_key.split(query_and_key, dim=1)
        return self.o_proj(self.attention(query, key, value).flatten(1)), residual


class LlamaMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with gate and up as one product."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        size = config.intermediate_size
        self.gate_up_proj = GatedLinear(config.hidden_size, size, bias=config.mlp_bias, dtype=dtype)
        self.down_proj = RowParallelLinear(size, config.hidden_size, bias=config.mlp_bias, dtype=dtype)

    def forward(self, hidden: Tensor, residual: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        gated, residual = norm.then(self.gate_up_proj, hidden, residual)
        return self.down_proj(gated), residual


class LlamaDecoderLayer(nn.Module):
    """Attention and MLP, each behind its norm. Takes and returns what is new and the stream to add it to."""

    def __init__(self, config: ModelConfig, layer_index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, layer_index, dtype)
        moe = config.moe
        is_mixture = moe is not None and moe.layers[layer_index]
        self.mlp = FusedMoE(config, dtype) if is_mixture else LlamaMLP(config, dtype)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)

    def forward(
        self, hidden: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden, residual = self.self_attn(hidden, residual, self.input_layernorm, cos, sin)
        if isinstance(self.mlp, LlamaMLP):
            return self.mlp(hidden, residual, self.post_attention_layernorm)
        hidden, residual = self.post_attention_layernorm.add_and_norm(hidden, residual)
        return self.mlp(hidden), residual


Layer = type[LlamaDecoderLayer]


class LlamaLayers(nn.Module):
    """The layers of this pipeline stage, named by their number in the whole model, and the last one's norm."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, layer: Layer = LlamaDecoderLayer) -> None:
        super().__init__()
        layers = current_ranks().layers(config.num_hidden_layers)
        self.layers = nn.ModuleDict({str(index): layer(config, index, dtype) for index in layers})
        if current_ranks().pipeline.is_last:
            self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.rotary = RotaryTable(config.rope, config.head_dim, config.max_position_embeddings)

    def run_layers(self, hidden: Tensor, residual: Tensor | None, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer's output [T, hidden] and the residual stream that it has yet to be added to."""
        cos, sin = self.rotary(positions)
        for layer in self.layers.values():
            hidden, residual = layer(hidden, residual, cos, sin)
        assert residual is not None  # every stage has a layer
        return hidden, residual


class LlamaModel(LlamaLayers):
    """Everything below the output head, or with pipeline parallelism, one stage of it.

    Between two stages travel the last layer's output and the residual stream.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, layer: Layer) -> None:
        super().__init__(config, dtype, layer)
        self.stage = current_ranks().pipeline
        self.hidden_size, self.dtype = config.hidden_size, dtype
        if self.stage.is_first or (self.stage.is_last and config.tie_word_embeddings):
            self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size, dtype=dtype)

    def forward(self, embedded: Tensor | None, positions: Tensor) -> Tensor | None:
        """embedded [T, hidden], None in all stages but the first; positions int64 [T]."""
        hidden, residual = embedded, None
        if hidden is None:
            shape = (2, len(positions), self.hidden_size)
            received = torch.empty(shape, dtype=self.dtype, device=positions.device)
            hidden, residual = self.stage.receive_previous(received)
        hidden, residual = self.run_layers(hidden, residual, positions)
        if self.stage.is_last:
            return self.norm.add_and_norm(hidden, residual)[0]
        self.stage.send_next(torch.stack((hidden, residual)))
        return None


class LlamaForCausalLM(nn.Module):
    """A decoder with its output head, see `loader.CausalLM`. Call it inside `set_forward_context`.

    A family with other layers derives from this class, and sets `layer` to its own.
    """

    layer: Layer = LlamaDecoderLayer

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dtype = getattr(torch, config.dtype)
        self.config = config
        self.model = LlamaModel(config, dtype, self.layer)
        if current_ranks().pipeline.is_last:
            tied_to = self.model.embed_tokens if config.tie_word_embeddings else None
            self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, dtype=dtype, tied_to=tied_to)

    def forward(
        self, input_ids: Tensor, positions: Tensor, inputs_embeds: Tensor | None = None
    ) -> Tensor | None:
        if not self.model.stage.is_first:
            return self.model(None, positions)
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return self.model(embedded, positions)

    def embed_tokens(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_tokens(input_ids)

    def compute_logits(self, hidden: Tensor) -> Tensor | None:
        return self.lm_head(hidden)


class EagleLlamaForCausalLM(LlamaLayers):
    """An EAGLE head: layers between another model's hidden states and its output table. Embedding is the target's too.

        embedding of the next token -> embed_proj  \\
                                                    + -> layer -> norm -> a guess of the next hidden state
        hidden state -> hidden_norm -> hidden_proj /

    Sources: EAGLE, Li et al. 2024; vLLM model_executor/models/llama_eagle.py. As in EAGLE-3 (Li et al. 2025) there are
    norms in front and behind. The two projections are the halves of the paper's `fc`, which reads both behind each
    other: apart they need no copy of their inputs, and their sum is taken by the layer's first norm.
    """

    def __init__(self, config: ModelConfig) -> None:
        dtype, size = getattr(torch, config.dtype), config.hidden_size
        super().__init__(config, dtype)
        self.config = config
        self.hidden_norm = RMSNorm(size, config.rms_norm_eps, dtype=dtype)
        self.embed_proj = Linear(size, size, bias=False, dtype=dtype)
        self.hidden_proj = Linear(size, size, bias=False, dtype=dtype)

    def forward(self, embedded: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
        """embedded, hidden [T, hidden], positions int64 [T] -> the next states [T, hidden]; writes the head's KV."""
        start = self.embed_proj(embedded), self.hidden_proj(self.hidden_norm(hidden))
        return self.norm.add_and_norm(*self.run_layers(*start, positions))[0]
