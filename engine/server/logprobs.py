"""Log-probabilities in the two shapes of OpenAI's API.

Source: vLLM entrypoints/openai/completion/serving.py (`_create_completion_logprobs`), chat_completion/serving.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.frontend.tokenizer import Tokenizer
from engine.outputs import Logprob

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot hold."""

Positions = Sequence[dict[int, Logprob] | None]


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Positions,
    num_top: int,
    tokenizer: Tokenizer,
    *,
    first_offset: int = 0,
    as_ids: bool = False,
) -> dict[str, Any]:
    """Return the logprobs of a completion.

    positions: per token its own logprob and the most likely ones; None for the first token of a prompt.
    first_offset: characters before these tokens. as_ids: name tokens "token_id:17".
    """
    tokens = [_name(token_id, tokenizer, as_ids) for token_id in token_ids]
    offsets, offset = [], first_offset
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    own = [
        None if position is None else _finite(position[token_id].logprob)
        for token_id, position in zip(token_ids, positions, strict=True)
    ]
    top = [None if position is None else _top(position, num_top, tokenizer, as_ids) for position in positions]
    return {"text_offset": offsets, "token_logprobs": own, "tokens": tokens, "top_logprobs": top}


def chat_logprobs(
    token_ids: Sequence[int],
    positions: Positions,
    num_top: int,
    tokenizer: Tokenizer,
    *,
    as_ids: bool = False,
) -> dict[str, Any]:
    """Return the logprobs of a message."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=True):
        assert position is not None
        alternatives = [
            _entry(name, logprob.logprob, tokenizer, as_ids)
            for index, (name, logprob) in enumerate(position.items())
            if num_top and (index < num_top or num_top == -1)
        ]
        content.append(
            {**_entry(token_id, position[token_id].logprob, tokenizer, as_ids), "top_logprobs": alternatives}
        )
    return {"content": content}


def prompt_logprobs(positions: Positions | None) -> list[dict[int, dict[str, Any]] | None] | None:
    """Return those of a prompt, as vLLM adds them to an answer."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            token_id: {
                "logprob": _finite(logprob.logprob),
                "rank": logprob.rank,
                "decoded_token": logprob.decoded_token,
            }
            for token_id, logprob in position.items()
        }
        for position in positions
    ]


def _entry(token_id: int, logprob: float, tokenizer: Tokenizer, as_ids: bool) -> dict[str, Any]:
    name = _name(token_id, tokenizer, as_ids)
    return {"token": name, "logprob": _finite(logprob), "bytes": list(name.encode(errors="replace"))}


def _top(position: dict[int, Logprob], num_top: int, tokenizer: Tokenizer, as_ids: bool) -> dict[str, float]:
    """The token itself and the most likely ones: OpenAI's API shows up to one more than was asked for."""
    return {
        _name(token_id, tokenizer, as_ids): _finite(logprob.logprob)
        for index, (token_id, logprob) in enumerate(position.items())
        if num_top == -1 or index <= num_top
    }


def _name(token_id: int, tokenizer: Tokenizer, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else tokenizer.token_text(token_id)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
