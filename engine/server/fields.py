"""Fields of vLLM's requests: each has its effect here, or none there either, or is refused.

`VLLM` records vLLM's names; tests/peers/test_vllm_fields.py compares it with vLLM's classes. The other fields of a
body are ignored, as by vLLM. `python -m engine.server.fields` writes the table of engine/server/README.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from engine.server import protocol
from engine.server.errors import ApiError

_GENERATION = (
    "model frequency_penalty logit_bias logprobs max_tokens n presence_penalty response_format seed stop stream "
    "stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking length_penalty "
    "stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens "
    "spaces_between_special_tokens truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs "
    "logprob_token_ids bad_words add_special_tokens structured_outputs priority request_id session_id "
    "return_tokens_as_token_ids return_token_ids routed_experts_prompt_start return_token_offsets mm_payload "
    "return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params vllm_xargs repetition_detection "
    "thinking_token_budget stream_interval echo"
)
_TEMPLATE = (
    "messages tools add_generation_prompt continue_final_message add_special_tokens chat_template chat_template_kwargs "
    "media_io_kwargs mm_processor_kwargs"
)
VLLM: dict[str, tuple[type[BaseModel], frozenset[str]]] = {
    path: (model, frozenset(names.split()))
    for path, model, names in (
        ("/v1/completions", protocol.CompletionRequest, f"prompt suffix prompt_embeds {_GENERATION}"),
        (
            "/v1/chat/completions",
            protocol.ChatCompletionRequest,
            f"top_logprobs max_completion_tokens tool_choice reasoning_effort include_reasoning parallel_tool_calls "
            f"documents return_prompt_text {_TEMPLATE} {_GENERATION}",
        ),
        ("/tokenize, text", protocol.TokenizeRequest, "model prompt add_special_tokens return_token_strs"),
        ("/tokenize, messages", protocol.TokenizeChatRequest, f"model return_token_strs {_TEMPLATE}"),
        ("/detokenize", protocol.DetokenizeRequest, "model tokens"),
        (
            "/v1/load_lora_adapter",
            protocol.LoadLoRARequest,
            "lora_name lora_path load_inplace is_3d_lora_weight",
        ),
        ("/v1/unload_lora_adapter", protocol.UnloadLoRARequest, "lora_name lora_int_id"),
        ("stream_options", protocol.StreamOptions, "include_usage continuous_usage_stats"),
        ("response_format", protocol.ResponseFormat, "type json_schema"),
        ("response_format.json_schema", protocol.JsonSchemaFormat, "name description schema strict"),
    )
}
"""Place of an object in the API -> our class, and the names of vLLM's fields."""


class Refusal(NamedTuple):
    """Answer to a field that asks for what is not here."""

    status: int
    """501: vLLM has it; 400: vLLM refuses it too, for models as those here."""
    remedy: str
    neutral: tuple[Any, ...] = ()
    """Values that ask for nothing, beside the default, null and empty ones."""


REFUSED = {
    "use_beam_search": Refusal(501, "beam search is offline only: LLM.beam_search"),
    "logprob_token_ids": Refusal(501, "use logprobs with enough alternatives"),
    "kv_transfer_params": Refusal(501, "KV transfer is offline only: prep disagg"),
    "ec_transfer_params": Refusal(501, "the encoder of images runs in this engine"),
    "watermarking": Refusal(501, "outputs have no watermark", (False,)),
    "repetition_detection": Refusal(501, "use stop, max_tokens or a repetition_penalty"),
    "stream_interval": Refusal(
        501, "a chunk has the tokens of a step, or more if the client reads slowly", (1,)
    ),
    "vllm_xargs": Refusal(501, "there are no extensions to read it"),
    "mm_processor_kwargs": Refusal(501, "images are offline only: LLM.generate"),
    "media_io_kwargs": Refusal(501, "images are offline only: LLM.generate"),
    "routed_experts_prompt_start": Refusal(501, "routed experts are not returned"),
    "is_3d_lora_weight": Refusal(501, "give one matrix per projection"),
    "thinking_token_budget": Refusal(400, "the server has no reasoning parser", (-1,)),
    "suffix": Refusal(400, "models here do not fill in the middle"),
    "prompt_embeds": Refusal(400, "give text or token ids"),
    "chat_template": Refusal(400, "the template of a request is not run, the model's own is used"),
}
"""Field -> what a request that uses it is told."""

WITHOUT_EFFECT = {
    "priority": "only --scheduling-policy priority reads it",
    "user": "vLLM ignores it too",
    "length_penalty": "only beam search reads it",
    "session_id": "a key for routing; prep gateway keeps sessions together by their prefix",
    "include_reasoning": "only a reasoning parser reads it",
    "return_token_offsets": "only /render paths read it",
    "mm_payload": "only /render paths read it",
    "return_mm_kwargs": "only /render paths read it",
    "lora_int_id": "the name alone decides",
    "spaces_between_special_tokens": "only slow tokenizers read it",
    "name": "a label",
    "description": "a label",
    "strict": "the schema is always enforced",
}
"""Field -> why it changes no answer, in vLLM either."""


def refuse(body: BaseModel) -> None:
    """Raise ApiError for a field that asks for what is not here."""
    for name, field in type(body).model_fields.items():
        if (refusal := REFUSED.get(name)) is not None:
            value = getattr(body, name)
            if value not in (None, field.default, "", [], {}, *refusal.neutral):
                raise ApiError(refusal.status, f"{name} is not supported: {refusal.remedy}", param=name)


def table() -> str:
    """Return the fields that differ as a Markdown table."""
    lines = ["| field | here | why |", "|---|---|---|"]
    rows = [(name, f"status {field.status}", field.remedy) for name, field in REFUSED.items()]
    rows += [(name, "no effect, nor in vLLM", why) for name, why in WITHOUT_EFFECT.items()]
    return "\n".join(lines + [f"| `{name}` | {here} | {why} |" for name, here, why in rows])


BEGIN, END = "<!-- fields: begin -->\n", "\n<!-- fields: end -->"
README = Path(__file__).with_name("README.md")


def with_table(text: str) -> str:
    """Return the text of README.md with the table of today."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
