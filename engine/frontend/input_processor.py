"""Validate a caller's prompt and parameters and turn them into requests of the core.

Requests that would fail later are rejected here, before anything is queued. Source: vLLM v1/engine/input_processor.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, TypedDict

from engine.config import EngineConfig
from engine.config.settings import InvalidRequestError as InvalidRequestError
from engine.core.request import MultiModalFeature, Request
from engine.frontend.chat_template import ChatMessage
from engine.frontend.parallel_sampling import NUM_SEEDS, SubmittedRequest, fan_out
from engine.frontend.tokenizer import Tokenizer
from engine.lora.request import LoRARegistry, LoRARequest
from engine.multimodal.inputs import MARKER, place_images
from engine.sampling_params import RequestOutputKind, SamplingParams, list_of
from prep_common.text import counted, shown

MAX_BAD_WORDS = 128
MAX_BAD_WORDS_TOKENS = 1024
"""Spellings of bad words in a request, and their tokens, as in vLLM (VLLM_MAX_NUM_BAD_WORDS, ..._TOTAL_TOKENS)."""


IDS = "prompt_token_ids must be a list of token ids"
CONTEXT = "this model's maximum context length is {:,} tokens (max_model_len)"
"""Beginning of errors about long prompts; clients such as LiteLLM recognise the words, which are vLLM's."""


class PromptDict(TypedDict, total=False):
    """A prompt as text or token ids, with details. Text beside token ids is only copied to the output."""

    prompt: str
    prompt_token_ids: Sequence[int]
    cache_salt: str  # Share cached prefixes only with requests of the same salt
    multi_modal_data: dict[str, Any]
    """`{"image": pixels}` or a list of them, uint8 [height, width, 3] each; <image> in the text marks their places."""


Prompt = str | Sequence[int] | PromptDict


class InputProcessor:
    """Validate and translate requests for one engine."""

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer | None, loras: LoRARegistry | None = None
    ) -> None:
        """loras: adapters that requests may name; None: the engine serves none."""
        self.tokenizer = tokenizer
        self._loras = loras
        self._vocab_size = config.model.vocab_size
        self._max_model_len = config.scheduler.max_model_len
        self._has_kv_connector = config.kv_transfer is not None
        self._policy = config.scheduler.policy
        self._max_logprobs = config.max_logprobs
        self._max_images = config.max_images
        eos = {*config.model.eos_token_ids, tokenizer.eos_token_id if tokenizer else None}
        self.eos_token_ids = frozenset(
            token for token in eos if token is not None and token < self._vocab_size
        )
        self._seeds = random.Random(config.seed)

    def process(
        self, request_id: str, prompt: Prompt, params: SamplingParams, **options: Any
    ) -> SubmittedRequest:
        """Validate a request and split it into requests of the core; `options`: those of `begin`."""
        submitted = self.begin(request_id, prompt, params, **options)
        submitted.children.extend(submitted.rest)
        return submitted

    def begin(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        arrival_time: float | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> SubmittedRequest:
        """Validate a request. Its children are not made yet: each is when `rest` is read.

        The adapter of `lora_request` must be loaded (`LLMEngine.add_lora`).
        """
        checked_params(params)
        if not isinstance(request_id, str):
            raise InvalidRequestError(f"request_id must be text, got {shown(request_id)}")
        if type(priority) is not int:
            raise InvalidRequestError(
                f"priority must be an integer (lower runs first), got {shown(priority)}"
            )
        if priority and self._policy != "priority":
            raise InvalidRequestError(
                f"priority {priority} would be ignored: start the engine with scheduling_policy='priority'"
            )
        text, token_ids, features = self._parse(prompt)
        self._check_length(token_ids)
        cache_salt = prompt.get("cache_salt") if isinstance(prompt, dict) else None
        if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
            raise InvalidRequestError(f"cache_salt must be text that is not empty, got {shown(cache_salt)}")
        request = Request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=self._resolve(params, len(token_ids)),
            arrival_time=time.monotonic() if arrival_time is None else arrival_time,
            priority=priority,
            eos_token_ids=self.eos_token_ids,
            seed=(self._seeds.randrange(NUM_SEEDS) if params.seed is None else params.seed) % NUM_SEEDS,
            lora_key=self.lora_key(lora_request),
            cache_salt=cache_salt,
            mm_features=features,
        )
        arrived, children = request.arrival_time, fan_out(request, params.num_completions)
        return SubmittedRequest(
            request_id, text, token_ids, params, arrived, [], lora_request, trace_headers, children
        )

    def process_embedding(self, request_id: str, prompt: Prompt, **options: Any) -> SubmittedRequest:
        """Return a request for the embedding of a prompt. It generates one token, so that the core ends it."""
        one_token = SamplingParams(
            max_tokens=1, temperature=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        submitted = self.process(request_id, prompt, one_token, **options)
        submitted.children[0].wants_embedding = True
        return submitted

    def chat_prompt(
        self,
        messages: Sequence[ChatMessage],
        *,
        opening: str = "",
        add_special_tokens: bool = False,
        is_truncated: bool = False,
        **options: Any,
    ) -> PromptDict:
        """Render a conversation as a prompt; `options`: those of `chat_template.render_chat`, and `chat_template`.

        opening: text with which the answer begins. add_special_tokens: write them again; the template has already
        written them. is_truncated: the prompt may be too long, because the caller shortens it.
        """
        tokenizer = self._need_tokenizer("chat messages")
        text = tokenizer.render_chat(messages, **options) + opening
        if not is_truncated:
            self.check_characters(text)
        return {
            "prompt": text,
            "prompt_token_ids": tokenizer.encode(text, add_special_tokens=add_special_tokens),
        }

    # The prompt

    def _parse(self, prompt: Prompt) -> tuple[str | None, list[int], list[MultiModalFeature]]:
        """Return text if known, token ids, and the positions of the images."""
        if isinstance(prompt, str):
            return prompt, self._encode(prompt), []
        if not isinstance(prompt, dict):
            return None, _checked_ids(prompt, "a prompt must be text or a list of token ids"), []
        if images := _images_of(prompt):
            return self._place_images(prompt, images)
        is_known = prompt.keys() <= PromptDict.__annotations__.keys()
        if not is_known or not prompt.keys() & {"prompt", "prompt_token_ids"}:
            raise InvalidRequestError(
                'a prompt dict holds "prompt" or "prompt_token_ids", and optionally "cache_salt" and '
                f'"multi_modal_data"; got the keys {sorted(map(str, prompt))}'
            )
        text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        return text, self._encode(text) if token_ids is None else _checked_ids(token_ids, IDS), []

    def _place_images(
        self, prompt: PromptDict, images: list[Any]
    ) -> tuple[str, list[int], list[MultiModalFeature]]:
        if len(images) > self._max_images:
            raise InvalidRequestError(
                f"the prompt has {counted(len(images), 'image')} and this engine takes {self._max_images}; "
                f"start it with limit_mm_per_prompt={{'image': {len(images)}}}"
            )
        text = prompt.get("prompt")
        if not isinstance(text, str) or "prompt_token_ids" in prompt:
            raise InvalidRequestError(
                f'an image needs a text prompt ("prompt", without "prompt_token_ids") that marks its place: {MARKER}'
            )
        try:
            return text, *place_images(text, images, self._need_tokenizer("a text prompt").encode)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from None

    def _encode(self, text: Any) -> list[int]:
        if not isinstance(text, str):
            raise InvalidRequestError(f"a prompt must be text or a list of token ids, got {shown(text)}")
        tokenizer = self._need_tokenizer("a text prompt")
        self.check_characters(text)
        return tokenizer.encode(text)

    def check_characters(self, text: str) -> None:
        """Refuse a text that is too long whatever its tokens are: megabytes take seconds to tokenise.

        Source: vLLM renderers/params.py, _text_len_check.
        """
        most = self._max_model_len * self._need_tokenizer("a text prompt").max_chars_per_token
        if len(text) > most:
            raise InvalidRequestError(
                f"{CONTEXT.format(self._max_model_len)}, which have at most {most:,} characters, and the prompt has "
                f"{len(text):,}; shorten it"
            )

    def _check_length(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise InvalidRequestError("the prompt is empty; give at least one token to continue from")
        self._check_in_vocabulary("prompt_token_ids", token_ids)
        if len(token_ids) >= self._max_model_len:
            raise InvalidRequestError(
                f"{CONTEXT.format(self._max_model_len)}, of which the answer needs one at least, and the prompt has "
                f"{len(token_ids):,}; shorten it or raise max_model_len"
            )

    # The parameters

    def _resolve(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """Return the parameters of one completion, with every None and -1 replaced by its limit."""
        room = self._max_model_len - num_prompt_tokens
        if params.min_tokens > room:
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}, but a prompt of {counted(num_prompt_tokens, 'token')} leaves room "
                f"for {room} (max_model_len={self._max_model_len})"
            )
        if "kv_transfer_params" in (params.extra_args or ()) and not self._has_kv_connector:
            raise InvalidRequestError(
                "kv_transfer_params would be ignored: this engine has no KV connector; start it with "
                "kv_transfer_config"
            )
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self._check_in_vocabulary(name, getattr(params, name) or ())
        if params.stop:
            self._need_tokenizer("a stop string")
        if params.structured_outputs is not None:
            self._need_tokenizer("a structured output")
            if not self.eos_token_ids:
                raise InvalidRequestError(
                    "structured outputs end with end-of-sequence, and neither this model nor its tokenizer names one"
                )
        ranks = params.num_completions > params.n  # by log-probabilities, whether or not the caller sees them
        logprobs = 0 if ranks and params.logprobs is None else params.logprobs
        resolved = replace(
            params,
            n=1,
            best_of=None,
            max_tokens=room if params.max_tokens is None else params.max_tokens,
            logprobs=self._num_logprobs("logprobs", logprobs),
            prompt_logprobs=self._num_logprobs("prompt_logprobs", params.prompt_logprobs),
        )
        resolved.bad_words_token_ids = self._bad_words(params.bad_words or ())
        return resolved

    def _num_logprobs(self, name: str, value: int | None) -> int | None:
        if value is None:
            return None
        number = self._vocab_size if value == -1 else value
        limit = self._vocab_size if self._max_logprobs == -1 else min(self._max_logprobs, self._vocab_size)
        if number > limit:
            raise InvalidRequestError(
                f"{name} must be at most {limit}, got {value}; start the engine with a larger max_logprobs "
                f"(-1 allows the whole vocabulary of {self._vocab_size})"
            )
        return number

    def _bad_words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the token ids of all spellings of bad words."""
        spellings: list[list[int]] = []
        for word in words:
            spellings += self._spellings(word)
            if len(spellings) > MAX_BAD_WORDS or sum(map(len, spellings)) > MAX_BAD_WORDS_TOKENS:
                raise InvalidRequestError(
                    f"bad_words holds {counted(len(words), 'word')}, and the spellings of all may be {MAX_BAD_WORDS} "
                    f"with {MAX_BAD_WORDS_TOKENS:,} tokens (a word has one at the start of a text and one after a "
                    "space); leave some out"
                )
        return spellings

    def _spellings(self, word: str) -> list[list[int]]:
        """Return the token ids of a bad word at the start of a text and after a space."""
        tokenizer = self._need_tokenizer("bad_words")
        if len(word) > (most := MAX_BAD_WORDS_TOKENS * tokenizer.max_chars_per_token):
            raise InvalidRequestError(
                f"bad_words holds a word of {len(word):,} characters; at most {most:,} are possible"
            )
        spellings: list[list[int]] = []
        for text in (word.lstrip(), " " + word.lstrip()):
            token_ids = tokenizer.encode(text, add_special_tokens=False)
            # With a space only if it is one token less: a lone space token before it is no other word.
            first = spellings[0] if spellings else None
            is_new = first is None or (token_ids[:1] != first[:1] and len(token_ids) == len(first))
            if token_ids and is_new:
                spellings.append(token_ids)
        if not spellings:
            raise InvalidRequestError(f"bad_words holds {shown(word)}, which has no tokens; leave it out")
        return spellings

    def lora_key(self, request: LoRARequest | None) -> str | None:
        """Return the key of the weights that an adapter has now. Raises InvalidRequestError if there are none."""
        if request is None:
            return None
        if not isinstance(request, LoRARequest):
            raise InvalidRequestError(f"lora_request must be a LoRARequest, got {shown(request)}")
        if self._loras is None:
            raise InvalidRequestError(
                f"adapter {request.lora_name!r} cannot be used: start the engine with enable_lora=True"
            )
        key = self._loras.key(replace(request, load_inplace=False))
        if key is None:
            raise InvalidRequestError(f"adapter {request.lora_name!r} is not loaded")
        return key

    # Checks

    def _check_in_vocabulary(self, name: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise InvalidRequestError(
                    f"{name} holds {token_id}, which is not in the model's vocabulary "
                    f"(0 to {self._vocab_size - 1})"
                )

    def _need_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidRequestError(
                f"{what} needs a tokenizer, and the engine was started with skip_tokenizer_init=True; "
                "give token ids"
            )
        return self.tokenizer


def checked_params(params: Any) -> SamplingParams:
    """Return `params`. Raises InvalidRequestError if they are of another class."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"sampling_params must be SamplingParams, got {shown(params)}")
    return params


def _images_of(prompt: PromptDict) -> list[Any]:
    """Return the images of a prompt as a list."""
    data = prompt.get("multi_modal_data")
    if not data:
        return []
    if not isinstance(data, dict) or data.keys() != {"image"}:
        raise InvalidRequestError(
            f'multi_modal_data must be {{"image": pixels or a list of them}}, got {shown(data)}'
        )
    images = data["image"]
    return list(images) if isinstance(images, (list, tuple)) else [images]


def _checked_ids(token_ids: Any, rule: str) -> list[int]:
    """Return plain integers; those of another type, such as numpy's, are converted. rule: start of the error."""
    listed = None if isinstance(token_ids, (str, bytes)) else list_of(token_ids)
    if listed is None:
        raise InvalidRequestError(f"{rule}, got {shown(token_ids)}")
    for token_id in listed:
        if type(token_id) is not int and (isinstance(token_id, bool) or not isinstance(token_id, Integral)):
            raise InvalidRequestError(f"prompt_token_ids must hold integers, got {shown(token_id)}")
    return list(map(int, listed))
