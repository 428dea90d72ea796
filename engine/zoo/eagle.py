"""An EAGLE head: one decoder layer that predicts the target's next hidden state, and from it the next tokens.

The target's last hidden state does not contain the token that was then sampled, so the head reads both:

    position       i                i + 1            i + 2
    target         f_i              f_i+1            f_i+2         hidden states after the last norm
    head reads     f_i, t_i+1       g, t_i+2         g', t_i+3     its own predictions from the second step on
    head predicts  g ~ f_i+1        g' ~ f_i+2       ...           the target's output table maps them to tokens

Training matches its use: pass d reads the predictions of pass d - 1, and its attention sees keys of true
states up to the position where drafting began.

Sources: EAGLE, Li et al. 2024 (section 3). From EAGLE-3, Li et al. 2025: the passes over predictions (training-time
test), and norms in front of `fc` and behind the layer, because a state is eight times smaller than an embedding here.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from .export import hf_config, load_model, replace_folder
from .model import DecoderLayer, ModelConfig, RMSNorm, rope_tables, rotate, split_heads
from .optimizer import MasterOptimizer
from .registry import MODELS
from .tokenizer import END_OF_TEXT, TURN_END, token_id
from .trainer import Batch, Trainer

PASSES = 3  # number of consecutive drafts in training
FIRST_PASS_ONLY = 0.4  # share of the training with one pass: poor early predictions are useless as input
PASS_WEIGHT = 0.8  # relative to the previous pass: drafts of a pass count only if the earlier ones were right
STATE_WEIGHT = 0.5  # weight of the distance between states, relative to the cross entropy of their tokens


class _KeysValues(NamedTuple):
    """Keys and values of one pass, for itself and later passes: [batch, heads, length, head_dim]."""

    keys: Tensor
    values: Tensor


class EagleHead(nn.Module):
    """Predict the next hidden state from a hidden state and the next token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList([DecoderLayer(config)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, embedded: Tensor, hidden: Tensor, earlier: list[_KeysValues]) -> Tensor:
        """One pass: embeddings of the next tokens and hidden states, [batch, length, hidden] each.

        `earlier` holds the keys and values of the previous passes; this pass appends its keys and values.
        """
        layer = cast(DecoderLayer, self.layers[0])
        x = self.fc(torch.cat([embedded, self.hidden_norm(hidden)], dim=-1))
        x = x + self._attend(layer, layer.input_layernorm(x), earlier)
        return self.norm(x + layer.mlp(layer.post_attention_layernorm(x)))

    def _attend(self, layer: DecoderLayer, x: Tensor, earlier: list[_KeysValues]) -> Tensor:
        """Attend: query i of pass d reads key i of pass d, key i - 1 of pass d - 1, and so on, then those of pass 0."""
        attention, length = layer.self_attn, x.shape[1]
        cos, sin = rope_tables(self.config, torch.arange(length))
        query = rotate(split_heads(attention.q_proj(x), attention.heads), cos, sin)
        group = attention.heads // attention.kv_heads
        key = rotate(split_heads(attention.k_proj(x), attention.kv_heads), cos, sin).repeat_interleave(
            group, 1
        )
        value = split_heads(attention.v_proj(x), attention.kv_heads).repeat_interleave(group, 1)
        earlier.append(_KeysValues(key, value))
        if len(earlier) == 1:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            mixed = _attend_across_passes(query, earlier)
        return attention.o_proj(mixed.transpose(1, 2).flatten(2))


def _attend_across_passes(query: Tensor, passes: list[_KeysValues]) -> Tensor:
    """Softmax over the early keys of the first pass and one key of each later pass: see `EagleHead._attend`."""
    length, scale = query.shape[2], query.shape[3] ** -0.5
    far = torch.ones(length, length, dtype=torch.bool).tril(1 - len(passes))
    scores = (query @ passes[0].keys.mT * scale).masked_fill(~far, -torch.inf)
    near = list(enumerate(passes[:0:-1]))  # keys of this pass first, then one position back, ...
    for back, part in near:
        score = (query * _moved_right(part.keys, back)).sum(-1, keepdim=True) * scale
        score[:, :, :back] = -torch.inf  # no such position
        scores = torch.cat([scores, score], dim=-1)
    weights = scores.float().softmax(-1).to(query.dtype)
    mixed = weights[..., :length] @ passes[0].values
    for back, part in near:
        mixed = mixed + weights[..., length + back, None] * _moved_right(part.values, back)
    return mixed


def _moved_right(x: Tensor, places: int) -> Tensor:
    """Shift rows right: row i of the result is row i - places, the first rows are zero."""
    return F.pad(x, (0, 0, places, 0))[:, :, : x.shape[2]]


class EagleTrainer(Trainer):
    """Trains a head for a frozen shipped model on the answers of the corpus. `exact` is that of the first drafts."""

    def build(self) -> None:
        self.target = load_model(MODELS / self.recipe.target, torch.bfloat16)
        head = EagleHead(self.recipe.model)
        head.norm.load_state_dict(self.target.model.norm.state_dict())
        self.optimizer = MasterOptimizer(head, self.recipe.weight_decay)
        self.model = head.to(torch.bfloat16)
        self.position.level = len(self.levels) - 1

    def loss(self, batch: Batch, progress: float) -> tuple[Tensor, float]:
        """Return the loss over all passes, and the share of correct answer tokens in the first."""
        with torch.no_grad():
            true, _ = self.target.hidden(batch.tokens)
            embedded = self.target.model.embed_tokens(batch.tokens[:, 1:])
        length = batch.tokens.shape[1]
        # Target state p predicts answer token p + 1. The head predicts state p at position p - 1.
        rows, columns = batch.places // length, batch.places % length
        inside = columns > PASSES
        rows, columns = rows[inside], columns[inside]
        wanted = true[rows, columns]
        with torch.no_grad():
            chances = self.target.logits(wanted).float().softmax(-1)
        hidden, total = true[:, :-1], wanted.new_zeros((), dtype=torch.float32)
        earlier: list[_KeysValues] = []
        accuracy: list[float] = []
        for index in range(1 if progress < FIRST_PASS_ONLY else PASSES):
            guess = self.model(embedded, hidden, earlier)
            guessed = guess[rows, columns - 1]
            logits = self.target.logits(guessed).float()
            tokens = -(chances * logits.log_softmax(-1)).sum(-1).mean()
            states = F.smooth_l1_loss(guessed.float(), wanted.float())
            total = total + PASS_WEIGHT**index * (tokens + STATE_WEIGHT * states)
            accuracy.append(float((logits.argmax(-1) == chances.argmax(-1)).float().mean()))
            hidden = torch.cat([true[:, :1], guess[:, :-1]], dim=1)
        return total, accuracy[0]

    def export(self, folder: Path) -> Path:
        return export_head(folder, self.recipe.model, self.optimizer.weights, self.tokenizer)


def export_head(folder: Path, config: ModelConfig, weights: dict[str, Tensor], tokenizer: Tokenizer) -> Path:
    """Replace `folder` by this head in bfloat16, with `fc` in the halves that engine/models/llama.py reads."""
    fields = hf_config(config, token_id(tokenizer, TURN_END), token_id(tokenizer, END_OF_TEXT))
    fields["architectures"] = ["EagleLlamaForCausalLM"]
    embed_proj, hidden_proj = weights["fc.weight"].chunk(2, dim=1)
    named = {"embed_proj.weight": embed_proj, "hidden_proj.weight": hidden_proj, **weights}
    del named["fc.weight"]
    return replace_folder(folder, {"config.json": fields}, named)
