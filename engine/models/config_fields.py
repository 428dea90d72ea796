"""Every field of a checkpoint's config.json: read, harmless, or refused unless it has the value that we compute.

    read       `hf_config.py`, `rope_config.py` and the families use it after a check of its type (`fields.py`)
    HARMLESS   no logit depends on it: names, training, formats of outputs, settings of generation
    NEUTRAL    other values change what the model computes, in a way that this engine does not compute

A field in none of them is unknown to the architecture's transformers class, too (tests/models/test_config_fields.py).
transformers and vLLM ignore such a field, and so does this engine, with a warning that names it: checkpoints on the Hub
hold many, and refusing them all would refuse most checkpoints.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from engine.config import ConfigError
from engine.models.family import Family
from engine.models.fields import short

logger = logging.getLogger(__name__)

HARMLESS = frozenset(
    # Training
    "attention_dropout hidden_dropout embd_pdrop resid_pdrop initializer_range pretraining_tp router_aux_loss_coef "
    "router_jitter_noise output_router_logits gradient_checkpointing use_bfloat16 problem_type id2label label2id "
    "num_labels finetuning_task task_specific_params classifier_dropout "
    # Names and versions
    "name_or_path transformers_version auto_map tokenizer_class unsloth_version unsloth_fixed custom_pipelines "
    "transformers.js_config "
    # How transformers computes and what it returns, of which the logits are the same
    "use_cache return_dict output_attentions output_hidden_states tie_last_hidden_states chunk_size_feed_forward "
    "torchscript attn_implementation experts_implementation tf_legacy_loss use_return_dict is_decoder "
    # Tokens that the engine takes from the tokenizer or does not use
    "pad_token_id sep_token_id decoder_start_token_id prefix tie_encoder_decoder cross_attention_hidden_size "
    # Layers that only one family has: the weights say what there is, and weights that the model lacks are refused
    "attention_bias mlp_bias max_window_layers use_sliding_window "
    # Settings of generation, which transformers removes from the configuration of a model
    "max_length max_new_tokens min_length min_new_tokens do_sample early_stopping num_beams num_beam_groups "
    "diversity_penalty temperature top_k top_p top_h min_p typical_p epsilon_cutoff eta_cutoff repetition_penalty "
    "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences "
    "output_scores output_logits return_dict_in_generate forced_bos_token_id forced_eos_token_id "
    "remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens".split()
)
"""Fields of which no logit depends in inference. Names that begin with an underscore are transformers' own notes."""

NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "is_encoder_decoder": ((False, None), "a decoder is computed, and no encoder"),
    "add_cross_attention": ((False, None), "there is no cross attention"),
    "is_causal": ((True,), "every token sees the tokens before it, and none after it"),
    "use_bidirectional_attention": (
        (False, None),
        "every token sees the tokens before it, and none after it",
    ),
    "attention_chunk_size": ((None,), "attention in chunks of the context is not computed"),
    "dual_chunk_attention_config": ((None,), "attention in two chunks is not computed"),
    "per_layer_config": ((None, {}), "all layers have the same shape"),
    "mlp_layer_types": ((None,), "decoder_sparse_step and mlp_only_layers say which layers have experts"),
    "pruned_heads": ((None, {}), "every layer has all heads"),
    "kv_sharing_modes": ((None,), "every layer has its own keys and values"),
    "num_kv_shared_layers": ((0, None), "every layer has its own keys and values"),
    "no_rope_layers": ((None, []), "every layer rotates its heads"),
    "no_rope_layer_interval": ((None,), "every layer rotates its heads"),
    "rope_interleave": ((False, None), "pairs of dimensions lie half a head apart"),
    "use_mrope": ((False, None), "a token has one position"),
    "rope_interleaved": ((False, None), "pairs of dimensions lie half a head apart"),
    "rope_local_base_freq": ((None,), "all layers rotate with one base frequency"),
    "alibi": ((False, None), "positions are rotated, not added as a bias"),
    "clip_qkv": ((None,), "queries, keys and values are not clipped"),
    "qk_norm": ((False, None), "only Qwen3 has norms on its heads, without this field"),
    "use_qk_norm": ((False, None), "only Qwen3 has norms on its heads, without this field"),
    "query_pre_attn_scalar": ((None,), "scores are divided by the root of head_dim"),
    "attention_multiplier": ((None,), "scores are divided by the root of head_dim"),
    "attn_logit_softcapping": ((None,), "scores are not capped"),
    "final_logit_softcapping": ((None,), "logits are not capped"),
    "logit_scale": ((1, None), "logits are not scaled"),
    "logits_scaling": ((1, None), "logits are not scaled"),
    "embedding_multiplier": ((1, None), "embeddings are not scaled"),
    "residual_multiplier": ((1, None), "the residual stream is not scaled"),
    "scale_emb": ((1, None), "embeddings are not scaled"),
    "bias": ((False, None), "attention_bias says whether projections have biases"),
    "ada_rms_norm_t_cond": ((False, None), "norms do not depend on a time step"),
    "shared_expert_intermediate_size": ((0, None), "there are no shared experts"),
    "n_shared_experts": ((0, None), "there are no shared experts"),
    "num_shared_experts": ((0, None), "there are no shared experts"),
    "first_k_dense_replace": ((0, None), "mlp_only_layers names the layers without experts"),
    "routed_scaling_factor": ((1, None), "the experts' outputs are not scaled"),
    "scoring_func": (("softmax", None), "experts are chosen by softmax"),
}
"""Fields that load with these values only, and what the engine computes instead of other values, except for a family
that reads them. By others of them, families of transformers and vLLM that are not supported compute something else."""


def check_fields(raw: dict[str, Any], family: Family, source: Path | str) -> None:
    """Raise ConfigError for a field whose value this engine does not compute; warn of unknown fields."""
    model_type = raw.get("model_type") or family.model_type
    if model_type != family.model_type:
        raise ConfigError(
            f"{source}: model_type {model_type!r} is not that of {family.architecture} ({family.model_type!r}), so "
            "transformers would load another model; correct one of the two, or override it with hf_overrides"
        )
    for name, (values, instead) in NEUTRAL.items():
        if name in raw and name not in family.reads and raw[name] not in values:
            raise ConfigError(
                f"{source}: {name} {short(raw[name])} is not supported: {instead}; use a checkpoint without it, or "
                f"compute as if it were absent with hf_overrides={{{name!r}: {values[0]!r}}}"
            )
    known = {*family.all_reads, *HARMLESS, *NEUTRAL}
    if unknown := [str(name) for name in raw if name not in known and not str(name).startswith("_")]:
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        logger.warning("%s: unknown fields are ignored: %s%s", source, ", ".join(unknown[:8]), more)
