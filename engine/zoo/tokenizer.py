"""The shop's tokenizer: byte-level BPE over pieces cut by script, and the chat template around it.

Japanese has no spaces. Cutting between kanji, hiragana and katakana keeps the last word of a title a separate
piece before any particle, so a title always has the same tokens. Digits are separate for the same reason.

    銀の港の価格は620円です。  ->  銀 | の | 港 | の | 価格 | は | 6 | 2 | 0 | 円 | です | 。
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 2048
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]
# Part of the answers, so `skip_special_tokens` keeps them.
TOOL_TOKENS = ["<tool_call>", "</tool_call>"]
PIECES = r" ?\p{Latin}+|\p{Han}+|\p{Hiragana}+|[\p{Katakana}ー]+| ?\p{N}| ?\p{L}+|\n| ?[^\s\p{L}\p{N}]+|\s"
CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8").rstrip("\n")


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learn the merges; all 256 bytes are in the vocabulary, so any text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[
            AddedToken(token, special=token in SPECIAL_TOKENS, normalized=False)
            for token in (*SPECIAL_TOKENS, *TOOL_TOKENS)
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The trainer marks all of its tokens special; the tool markers must stay visible in decoded text.
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] in SPECIAL_TOKENS
    return Tokenizer.from_str(json.dumps(state))


def tokenizer_config(max_length: int) -> dict[str, Any]:
    """Return tokenizer_config.json in the form of transformers and vLLM."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [TURN_START],
        "chat_template": CHAT_TEMPLATE,
    }


@cache
def _compiled_template() -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(CHAT_TEMPLATE)


def render_chat(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None = None,
    add_generation_prompt: bool = False,
) -> str:
    """Return the chat as one text, exactly as transformers' `apply_chat_template` does."""
    variables = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
    return _compiled_template().render(variables)


def load_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of one of the SPECIAL_TOKENS. Raises ValueError if the vocabulary lacks it."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(f"the tokenizer has no token {token}")
    return number
