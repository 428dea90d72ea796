"""POST /tokenize and /detokenize.

Source: vLLM entrypoints/serve/tokenize.
"""

from __future__ import annotations

from fastapi.responses import JSONResponse

from engine.server import chat
from engine.server.errors import ApiError
from engine.server.fields import refuse
from engine.server.protocol import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest
from engine.server.service import Service


def tokenize(service: Service, body: TokenizeRequest | TokenizeChatRequest) -> JSONResponse:
    """Return the token ids of a text, or of messages as their template renders them."""
    tokenizer = service.tokenizer
    service.models.find(body.model)
    refuse(body)
    if isinstance(body, TokenizeRequest):
        tokens = tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)
    else:
        tokens = chat.render(service, body)["prompt_token_ids"]
    strings = [tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None
    return JSONResponse(
        {
            "count": len(tokens),
            "max_model_len": service.max_model_len,
            "tokens": tokens,
            "token_strs": strings,
        }
    )


def detokenize(service: Service, body: DetokenizeRequest) -> JSONResponse:
    """Return the text of token ids."""
    tokenizer = service.tokenizer
    service.models.find(body.model)
    if wrong := [token for token in body.tokens if token >= tokenizer.vocab_size]:
        message = f"token {wrong[0]} is not in the vocabulary (0 to {tokenizer.vocab_size - 1})"
        raise ApiError(400, message, param="tokens")
    return JSONResponse({"prompt": tokenizer.decode(body.tokens)})
