"""Sampling parameters of a request, and the checks that vLLM's server makes before its engine does.

Source: `to_sampling_params` in vLLM entrypoints/openai/*/protocol.py.
"""

from __future__ import annotations

from typing import Any

from engine.frontend.input_processor import CONTEXT
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.server.errors import ApiError
from engine.server.fields import refuse
from engine.server.protocol import CompletionRequest, GenerationRequest, ResponseFormat

OPTIONAL = (
    "frequency_penalty", "presence_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "n",
)  # fmt: skip
"""null means the default."""
COPIED = (
    "logit_bias", "seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
    "skip_special_tokens", "spaces_between_special_tokens", "allowed_token_ids", "bad_words",
)  # fmt: skip


def check(request: GenerationRequest) -> None:
    """Refuse what this engine lacks, and combinations that mean nothing."""
    refuse(request)
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options needs stream=true", param="stream_options")
    if request.prompt_logprobs and request.stream:
        raise ApiError(400, "prompt_logprobs are not available with stream=true", param="prompt_logprobs")


def sampling_params(
    request: GenerationRequest, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
) -> SamplingParams:
    """Return the parameters of a request. Raises ValueError for one that is out of range."""
    chosen: dict[str, Any] = {name: getattr(request, name) for name in COPIED}
    chosen |= {name: value for name in OPTIONAL if (value := getattr(request, name)) is not None}
    structure = structured_outputs(request)
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        **chosen,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured_outputs=structure,  # type: ignore[arg-type]  # a dict is converted
        output_kind=kind,
    )


def structured_outputs(request: GenerationRequest) -> dict[str, Any] | None:
    """Return the constraint of `structured_outputs` or of `response_format`."""
    given = {name: value for name, value in (request.structured_outputs or {}).items() if value is not None}
    wanted = _of_response_format(request.response_format, request)
    if request.structured_outputs is not None and not given:
        message = (
            "structured_outputs is empty; give json, regex, choice, grammar or json_object, or leave it out"
        )
        raise ApiError(400, message, param="structured_outputs")
    if given and wanted:
        message = "response_format and structured_outputs both say what the output is; use one"
        raise ApiError(400, message, param="response_format")
    return given or wanted


def _of_response_format(form: ResponseFormat | None, request: GenerationRequest) -> dict[str, Any] | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"json_object": True}
    if form.type == "structural_tag":
        import json

        return {"structural_tag": json.dumps(request.model_dump()["response_format"])}
    if form.json_schema is None or form.json_schema.json_schema is None:
        message = 'response_format of type json_schema needs {"json_schema": {"name": ..., "schema": {...}}}'
        raise ApiError(400, message, param="response_format")
    return {"json": form.json_schema.json_schema}


def check_room(num_prompt_tokens: int, max_tokens: int | None, max_model_len: int, name: str) -> None:
    """Refuse a request whose answer cannot have the length that it asks for."""
    room = max_model_len - num_prompt_tokens
    if max_tokens is not None and max_tokens > room > 0:
        raise ApiError(
            400,
            f"{CONTEXT.format(max_model_len)} and the prompt has {num_prompt_tokens:,}, so the answer has room for "
            f"{room:,}, not {max_tokens:,}; lower {name} or shorten the prompt",
            param=name,
        )


def completion_prompts(request: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts of a request: texts or lists of token ids."""
    prompt = request.prompt
    if prompt is None or prompt == []:
        raise ApiError(400, "prompt must be text, token ids, or a list of these", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [prompt]  # type: ignore[list-item]
    return list(prompt)  # type: ignore[arg-type]
