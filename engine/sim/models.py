"""Named models as shapes: parameters, KV bytes and work per token.

Parameters are counted from the shape; no published totals are stored. The tests compare the counts with
model cards and checkpoints. A shape holds the fields of config.json, so every figure can be checked by hand:

    attention   h x (H*d)  +  2 x h x (KV*d)  +  (H*d) x h      q, k and v, o
    MLP         3 x h x intermediate                            gate, up, down; once per expert in a MoE
    embedding   vocab x h, twice unless tied

Shapes: config.json of the named repositories. MLA: DeepSeek-V2 (2405.04434), section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.sim.hardware import look_up


@dataclass(frozen=True)
class MLA:
    """Multi-head latent attention: one compressed vector per token and layer instead of keys and values."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class MoE:
    """Mixture of experts: each token passes `top_k` of `num_experts` small MLPs and the shared ones."""

    num_experts: int
    top_k: int
    intermediate_size: int
    num_shared_experts: int = 0
    num_dense_layers: int = 0  # the first layers, with one MLP of the model's `intermediate_size`
    has_router_bias: bool = False


@dataclass(frozen=True)
class ModelShape:
    """The shape of a decoder-only transformer: everything that time and memory depend on."""

    name: str
    repository: str  # source of the shape: a Hugging Face id, or a path in this repository
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    mla: MLA | None = None
    moe: MoE | None = None

    @property
    def embedding_params(self) -> int:
        """Parameters of the input table, and of the output head unless it is tied."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def attention_params(self) -> int:
        """Attention parameters of one layer, including biases and head norms."""
        h = self.hidden_size
        if self.mla is not None:
            return self._mla_params(self.mla)
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        bias = q + 2 * kv if self.qkv_bias else 0
        return 2 * h * q + 2 * h * kv + bias + (2 * self.head_dim if self.qk_norm else 0)

    def _mla_params(self, mla: MLA) -> int:
        h, heads = self.hidden_size, self.num_heads
        q = h * mla.q_lora_rank + mla.q_lora_rank * heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        kv_down = h * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        kv_up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        norms = mla.q_lora_rank + mla.kv_lora_rank
        return q + kv_down + kv_up + heads * mla.v_head_dim * h + norms

    @property
    def num_moe_layers(self) -> int:
        return self.num_layers - self.moe.num_dense_layers if self.moe else 0

    @property
    def expert_params(self) -> int:
        """Parameters of one expert of one layer; 0 in a dense model."""
        return 3 * self.hidden_size * self.moe.intermediate_size if self.moe else 0

    @property
    def routed_params(self) -> int:
        """Parameters of all routed experts in all layers."""
        return self.num_moe_layers * self.moe.num_experts * self.expert_params if self.moe else 0

    @property
    def common_params(self) -> int:
        """Parameters used by every token: all but embeddings and routed experts."""
        num_dense = self.num_layers - self.num_moe_layers
        total = self.num_layers * (self.attention_params + 2 * self.hidden_size) + self.hidden_size
        total += num_dense * 3 * self.hidden_size * self.intermediate_size
        if self.moe:
            router = self.hidden_size * self.moe.num_experts
            router += self.moe.num_experts if self.moe.has_router_bias else 0
            shared = self.moe.num_shared_experts * self.expert_params
            total += self.num_moe_layers * (router + shared)
        return total

    @property
    def num_params(self) -> int:
        return self.embedding_params + self.common_params + self.routed_params

    @property
    def active_params(self) -> int:
        """Parameters used by one token, including embeddings, as counted on model cards."""
        return self.embedding_params + self.common_params + self.active_routed_params

    @property
    def active_routed_params(self) -> int:
        return self.num_moe_layers * self.moe.top_k * self.expert_params if self.moe else 0

    def adapter_params(self, rank: int) -> int:
        """Return the parameters of an adapter of every projection and dense MLP (q, k, v, o, gate, up, down)."""
        h, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = 2 * (h + q) + 2 * (h + kv)
        num_dense = self.num_layers - self.num_moe_layers
        return rank * (self.num_layers * attention + num_dense * 3 * (h + self.intermediate_size))

    def kv_elements_per_token(self, tp: int = 1) -> int:
        """Return the numbers stored per token on one of `tp` GPUs, over all layers.

        Key and value heads are divided among the GPUs until each has one; from there on, and for MLA's latent
        vector from the start, every GPU keeps a copy.
        """
        if self.mla is not None:
            return self.num_layers * (self.mla.kv_lora_rank + self.mla.qk_rope_head_dim)
        return self.num_layers * 2 * max(1, self.num_kv_heads // tp) * self.head_dim

    def kv_tokens_held(self, num_tokens: int) -> int:
        """Return the tokens of a sequence whose KV can still be read: the window, if any."""
        return min(num_tokens, self.sliding_window) if self.sliding_window else num_tokens

    @property
    def attention_flops_per_pair(self) -> int:
        """Multiplications and additions for one (query, key) pair, over all layers.

        MLA computes on the latent vector itself (weights absorbed), where a score and a sum are wider.
        """
        if self.mla is not None:
            widths = 2 * self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
            return self.num_layers * 2 * self.num_heads * widths
        return self.num_layers * 4 * self.num_heads * self.head_dim

    @property
    def attention_kind(self) -> str:
        if self.mla is not None:
            return "MLA"
        if self.num_kv_heads == 1:
            return "MQA"
        kind = "MHA" if self.num_kv_heads == self.num_heads else "GQA"
        return f"{kind}+SWA" if self.sliding_window else kind


# name, repository: layers, hidden, intermediate, heads, KV heads, head dim, vocabulary, positions; flags
_TABLE = """
shop             engine/zoo/models/shop           6   256   640   8   4  32   2048   2048 tied
shop-draft       engine/zoo/models/shop-draft     3   128   112   4   4  32   2048   2048 tied
dummy-103m       app/bench/models.py             12   768  3072  12   2  64   2048   2048 tied
dummy-386m       app/bench/models.py             24   896  4864  14   2  64  32000   2048 tied
llama-2-7b       meta-llama/Llama-2-7b-hf        32  4096 11008  32  32 128  32000   4096
llama-2-13b      meta-llama/Llama-2-13b-hf       40  5120 13824  40  40 128  32000   4096
llama-2-70b      meta-llama/Llama-2-70b-hf       80  8192 28672  64   8 128  32000   4096
llama-3-8b       meta-llama/Meta-Llama-3-8B      32  4096 14336  32   8 128 128256   8192
llama-3-70b      meta-llama/Meta-Llama-3-70B     80  8192 28672  64   8 128 128256   8192
llama-3.1-8b     meta-llama/Llama-3.1-8B         32  4096 14336  32   8 128 128256 131072
llama-3.1-70b    meta-llama/Llama-3.1-70B        80  8192 28672  64   8 128 128256 131072
llama-3.1-405b   meta-llama/Llama-3.1-405B      126 16384 53248 128   8 128 128256 131072
mistral-7b       mistralai/Mistral-7B-v0.1       32  4096 14336  32   8 128  32000  32768
mixtral-8x7b     mistralai/Mixtral-8x7B-v0.1     32  4096 14336  32   8 128  32000  32768
qwen2.5-0.5b     Qwen/Qwen2.5-0.5B               24   896  4864  14   2  64 151936  32768 bias tied
qwen2.5-1.5b     Qwen/Qwen2.5-1.5B               28  1536  8960  12   2 128 151936  32768 bias tied
qwen2.5-3b       Qwen/Qwen2.5-3B                 36  2048 11008  16   2 128 151936  32768 bias tied
qwen2.5-7b       Qwen/Qwen2.5-7B                 28  3584 18944  28   4 128 152064  32768 bias
qwen2.5-14b      Qwen/Qwen2.5-14B                48  5120 13824  40   8 128 152064  32768 bias
qwen2.5-32b      Qwen/Qwen2.5-32B                64  5120 27648  40   8 128 152064  32768 bias
qwen2.5-72b      Qwen/Qwen2.5-72B                80  8192 29568  64   8 128 152064  32768 bias
qwen3-0.6b       Qwen/Qwen3-0.6B                 28  1024  3072  16   8 128 151936  40960 norm tied
qwen3-1.7b       Qwen/Qwen3-1.7B                 28  2048  6144  16   8 128 151936  40960 norm tied
qwen3-4b         Qwen/Qwen3-4B                   36  2560  9728  32   8 128 151936  40960 norm tied
qwen3-8b         Qwen/Qwen3-8B                   36  4096 12288  32   8 128 151936  40960 norm
qwen3-14b        Qwen/Qwen3-14B                  40  5120 17408  40   8 128 151936  40960 norm
qwen3-32b        Qwen/Qwen3-32B                  64  5120 25600  64   8 128 151936  40960 norm
qwen3-30b-a3b    Qwen/Qwen3-30B-A3B              48  2048  6144  32   4 128 151936  40960 norm
qwen3-235b-a22b  Qwen/Qwen3-235B-A22B            94  4096 12288  64   4 128 151936  40960 norm
deepseek-v3      deepseek-ai/DeepSeek-V3         61  7168 18432 128 128 128 129280 163840
"""
_FLAGS = {"tied": "tie_word_embeddings", "bias": "qkv_bias", "norm": "qk_norm"}
_SPECIAL: dict[str, dict[str, Any]] = {
    "mistral-7b": {"sliding_window": 4096},
    "mixtral-8x7b": {"moe": MoE(8, 2, 14336)},
    "qwen3-30b-a3b": {"moe": MoE(128, 8, 768)},
    "qwen3-235b-a22b": {"moe": MoE(128, 8, 1536)},
    "deepseek-v3": {
        "mla": MLA(1536, 512, 128, 64, 128),
        "moe": MoE(256, 8, 2048, 1, 3, has_router_bias=True),
    },
}


def _shape(name: str, repository: str, *columns: str) -> ModelShape:
    settings: dict[str, Any] = {_FLAGS[word]: True for word in columns[8:]} | _SPECIAL.get(name, {})
    return ModelShape(name, repository, *map(int, columns[:8]), **settings)  # type: ignore[misc, arg-type]


MODELS = {row.split()[0]: _shape(*row.split()) for row in _TABLE.strip().splitlines()}
"""Shapes by name, smallest family first."""


def get_model(name: str) -> ModelShape:
    """Return the shape of a model by name or Hugging Face id. Raises ConfigError with the closest name otherwise."""
    by_repository = {shape.repository.lower(): shape for shape in MODELS.values() if "/" in shape.repository}
    return look_up("model", name, {**by_repository, **MODELS}, shown=list(MODELS))
