"""Requests of the API. Names, types and defaults are vLLM's; unknown fields are ignored, as there.

Source: vLLM entrypoints/openai/chat_completion/protocol.py, completion/protocol.py, entrypoints/serve/tokenize.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**63 - 1)]
StopStrings = Annotated[list[str], Field(max_length=4)]
"""As in vLLM (VLLM_MAX_STOP_STRINGS): each is looked for in the text of each step."""


def _is_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must have printable characters only")
    return text


def _is_salt(text: str) -> str:
    if set(text) & set("@/\\\0"):
        raise ValueError("must not contain @, /, a backslash or NUL")
    return text


CacheSalt = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_is_salt)]
Name = Annotated[str, Field(max_length=128), AfterValidator(_is_printable)]
"""A text that goes into logs, metrics and answers."""


def _stop_at_first_error(schema: Any) -> None:
    """Set `fail_fast` on every container in a schema of pydantic, which is made of dicts and lists."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "set", "frozenset", "tuple", "dict"):
            schema["fail_fast"] = True
        for name, part in schema.items():
            if name != "metadata":
                _stop_at_first_error(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _stop_at_first_error(part)


class ApiModel(BaseModel):
    """A body, or an object in one. Lists and mappings are validated up to their first wrong element."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Bound the number of errors: by default each element has one for each form that it might have."""
        schema = handler(source)
        _stop_at_first_error(schema)
        return schema


class StreamOptions(ApiModel):
    include_usage: bool | None = False
    """Send a last chunk with the usage."""
    continuous_usage_stats: bool | None = False
    """Send the usage so far with every chunk."""


class JsonSchemaFormat(ApiModel):
    name: str
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(ApiModel):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None


class GenerationRequest(ApiModel):
    """Fields that completions and chat completions have in common."""

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    response_format: ResponseFormat | None = None
    seed: Int64 | None = None
    stop: str | StopStrings | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(le=2)] | None = None
    top_p: float | None = None
    user: str | None = None

    # Not in OpenAI's API
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    structured_outputs: dict[str, Any] | None = None
    priority: Int64 = 0
    request_id: Name | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: CacheSalt | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    logprob_token_ids: list[int] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    watermarking: bool | None = None
    repetition_detection: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None
    session_id: str | None = None
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] = 0
    return_token_offsets: bool | None = False
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None


class CompletionRequest(GenerationRequest):
    n: int = 1
    prompt: list[TokenId] | list[list[TokenId]] | str | list[str] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    max_tokens: int | None = 16
    suffix: str | None = None
    add_special_tokens: bool = True
    prompt_embeds: Any = None


class ChatTemplateFields(ApiModel):
    """Fields that determine how messages become a prompt."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


class ChatCompletionRequest(GenerationRequest, ChatTemplateFields):
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    """False: answers have the first call only."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """A variable of the chat template."""
    include_reasoning: bool = True
    documents: list[dict[str, str]] | None = None
    """A variable of the chat template."""
    return_prompt_text: bool | None = None
    echo: bool = False


class TokenizeRequest(ApiModel):
    """Text, or messages."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatRequest(ChatTemplateFields):
    model: str | None = None
    return_token_strs: bool | None = False


class DetokenizeRequest(ApiModel):
    model: str | None = None
    tokens: list[TokenId]


class LoadLoRARequest(ApiModel):
    lora_name: Name
    lora_path: str
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadLoRARequest(ApiModel):
    lora_name: str
    lora_int_id: int | None = None
