"""Turn requests of the debug port, such as `{"prompt": "..."}`, into requests of the core."""

from __future__ import annotations

from typing import Any

from engine.core.request import Request
from engine.frontend.input_processor import InputProcessor, InvalidRequestError, Prompt
from engine.lora.request import LoRARegistry
from engine.sampling_params import SamplingParams

PROMPTS = ("messages", "prompt", "prompt_token_ids")
OPTIONS = ("request_id", "max_tokens", "temperature", "seed", "ignore_eos", "priority", "lora")


def read_requests(
    processor: InputProcessor, loras: LoRARegistry | None, request_id: str, wish: dict[str, Any]
) -> list[Request]:
    """Return the core's requests for a prompt (text, token ids or chat messages) with options.

    Their tokens are seen in the trace only. The default seed is 0, so that they do not change the seeds that the
    engine draws for other requests.
    """
    unknown = wish.keys() - {*PROMPTS, *OPTIONS}
    given = [name for name in PROMPTS if name in wish]
    if unknown or len(given) != 1:
        problem = f"it does not know {', '.join(sorted(unknown))}" if unknown else f"got {given or 'none'}"
        raise InvalidRequestError(
            f"a request has one of {', '.join(PROMPTS)}, and may have {', '.join(OPTIONS)}; {problem}"
        )
    prompt: Prompt = wish[given[0]]
    if given[0] == "messages":
        prompt = processor.chat_prompt(wish["messages"])
    params = SamplingParams(
        max_tokens=wish.get("max_tokens", 32),
        temperature=wish.get("temperature", 0.0),
        seed=wish.get("seed", 0),
        ignore_eos=bool(wish.get("ignore_eos", False)),
    )
    lora = None
    if wish.get("lora"):
        if loras is None:
            raise InvalidRequestError("this engine takes no adapters: start it with enable_lora=True")
        lora = loras.find(wish["lora"])
    priority = wish.get("priority", 0)
    return processor.process(request_id, prompt, params, lora_request=lora, priority=priority).children
