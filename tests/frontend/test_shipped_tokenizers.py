"""Every tokenizer we ship, against transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.frontend.detokenizer import Detokenizer
from engine.frontend.tokenizer import Tokenizer
from engine.zoo.registry import MODELS

FOLDERS = sorted(path.parent for path in MODELS.glob("*/tokenizer.json"))
CHAT = [
    {"role": "system", "content": "Be kind.\n"},
    {"role": "user", "content": "Ist der Film da? 映画はありますか 😀"},
    {"role": "assistant", "content": "Ja."},
    {"role": "user", "content": "Danke <|im_end|>"},
]


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def reference(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def test_a_stream_adds_up_and_is_the_tokenizer_librarys_text(folder: Path) -> None:
    """10,000 random sequences."""
    tokenizer = Tokenizer.from_folder(folder)
    rng = random.Random(5)
    for _ in range(10_000):
        sequence = rng.choices(range(tokenizer.vocab_size), k=rng.randrange(1, 16))
        detokenizer = Detokenizer(tokenizer, [])
        streamed = "".join(detokenizer.push([token_id]) for token_id in sequence) + detokenizer.flush()
        assert streamed == tokenizer.backend.decode(sequence, skip_special_tokens=True), sequence


def test_ids_text_and_chats_are_those_of_transformers(folder: Path, reference: Any) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (
        reference.bos_token_id,
        reference.eos_token_id,
    )
    for message in CHAT:
        ids = reference.encode(message["content"])
        assert tokenizer.encode(message["content"]) == ids
        for skip in (True, False):
            text = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == text
    for options in (
        {"add_generation_prompt": True},
        {"add_generation_prompt": False, "continue_final_message": True},
    ):
        rendered = reference.apply_chat_template(CHAT, tokenize=False, **options)
        assert tokenizer.render_chat(CHAT, **options) == rendered
        ids = reference.apply_chat_template(CHAT, tokenize=True, return_dict=False, **options)
        assert tokenizer.encode(rendered, add_special_tokens=False) == ids
