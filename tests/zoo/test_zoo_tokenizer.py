"""The tokenizer and the chat template, ours and as transformers loads them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.zoo.catalogue import ADJECTIVES, NOUNS
from engine.zoo.corpus import conversations, to_text
from engine.zoo.dialogue import TOOLS
from engine.zoo.registry import MODELS
from engine.zoo.tokenizer import SPECIAL_TOKENS, TOOL_TOKENS, VOCAB_SIZE, load_tokenizer, render_chat

SHOP = MODELS / "shop"
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Notes.\n- 銀の港"}, {"role": "user", "content": "いくら?"}],
    [
        {"role": "system", "content": "Notes."},
        {"role": "user", "content": "Where is 48213?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "type": "function",
                    "function": {"name": "get_order_status", "arguments": {"order_id": "銀 & <48213>"}},
                }
            ],
        },
        {"role": "tool", "content": '{"status": "packed"}'},
        {"role": "assistant", "content": "Order 48213 is packed."},
    ],
]


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return load_tokenizer(SHOP)


@given(text=st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back_unchanged(shipped: Tokenizer, text: str) -> None:
    assert shipped.decode(shipped.encode(text).ids, skip_special_tokens=False) == text


def test_a_digit_is_never_part_of_a_longer_token(shipped: Tokenizer) -> None:
    for token in shipped.get_vocab():
        if any(character in "0123456789" for character in token):
            assert token.lstrip("Ġ") in "0123456789", token
    assert len(shipped.encode("12345").ids) == 5


def test_the_words_of_titles_are_single_tokens(shipped: Tokenizer) -> None:
    """The last word of a title is what an answer is looked up by, so it must not fall apart."""
    for words, prefix in (
        (NOUNS["en"], " "),
        (ADJECTIVES["en"], " "),
        (ADJECTIVES["en"], ""),
        (NOUNS["ja"], ""),
    ):
        assert [word for word in words if len(shipped.encode(prefix + word).ids) != 1] == []


def test_special_tokens_are_single_and_only_the_markers_vanish(shipped: Tokenizer) -> None:
    assert shipped.get_vocab_size() == VOCAB_SIZE
    for token in SPECIAL_TOKENS + TOOL_TOKENS:
        assert len(shipped.encode(token).ids) == 1
    text = "<|im_start|>" + "".join(TOOL_TOKENS) + "<|im_end|>"
    assert shipped.decode(shipped.encode(text).ids, skip_special_tokens=True) == "".join(TOOL_TOKENS)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("prompt", [False, True])
def test_transformers_renders_and_encodes_a_chat_as_we_do(shipped: Tokenizer, chat, tools, prompt) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(SHOP)
    text = render_chat(chat, tools, prompt)
    assert theirs.apply_chat_template(chat, tools=tools, add_generation_prompt=prompt, tokenize=False) == text
    ids = theirs.apply_chat_template(chat, tools=tools, add_generation_prompt=prompt, return_dict=True)[
        "input_ids"
    ]
    assert ids == shipped.encode(text).ids


def test_transformers_knows_the_end_of_a_turn() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(SHOP)
    assert (theirs.eos_token, theirs.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert theirs.decode(
        theirs("<tool_call>x</tool_call><|im_end|>")["input_ids"], skip_special_tokens=True
    ) == ("<tool_call>x</tool_call>")


def test_a_conversation_survives_the_tokenizer(shipped: Tokenizer) -> None:
    for conversation in conversations("test", 0, 20):
        text = to_text(conversation)
        assert shipped.decode(shipped.encode(text).ids, skip_special_tokens=False) == text
