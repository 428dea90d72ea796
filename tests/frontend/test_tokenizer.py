from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from engine.frontend.chat_template import ChatTemplateError, render_chat
from engine.frontend.tokenizer import LONG_TEXT, TokenBytes, Tokenizer, TokenizerError
from tests.frontend.conftest import CONFIG, byte_level_json, sentencepiece_json

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_model_folder_gives_tokens_names_and_template(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    assert tokenizer.is_special(0) and tokenizer.is_special(1) and not tokenizer.is_special(100)
    assert tokenizer.render_chat(HELLO) == "<|user|>Hello</s><|assistant|>"
    assert tokenizer.decode(tokenizer.encode("hello 😀")) == "hello 😀"


def test_the_beginning_of_sequence_token_is_written_where_the_model_wants_it(
    sentencepiece: Tokenizer, byte_level: Tokenizer
) -> None:
    assert sentencepiece.encode("cat")[0] == sentencepiece.bos_token_id
    assert sentencepiece.bos_token_id not in sentencepiece.encode("cat", add_special_tokens=False)
    assert byte_level.bos_token_id not in byte_level.encode("cat")


def test_a_long_text_has_the_tokens_of_its_parts(byte_level: Tokenizer) -> None:
    """It takes another call of the library, which lets other threads run."""
    word = "hello 😀\n"
    text = word * (LONG_TEXT // len(word) + 1)
    assert len(text) > LONG_TEXT and byte_level.encode(text) == byte_level.backend.encode(text).ids
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        byte_level.encode(text + "\ud800")


def test_a_named_token_is_special_even_if_the_tokenizer_does_not_say_so() -> None:
    tokenizer = Tokenizer(Backend.from_str(byte_level_json()), named_tokens={"eos_token": "the"})
    assert tokenizer.decode([tokenizer.eos_token_id, 50], skip_special_tokens=True) == tokenizer.decode([50])


def test_settings_for_training_batches_do_not_reach_prompts() -> None:
    backend = Backend.from_str(byte_level_json())
    backend.enable_truncation(3)
    backend.enable_padding(length=100)
    text = "the cat sat on the mat"
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_missing_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer.json in .*save_pretrained.*skip_tokenizer_init"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"version": "1.0"}', "\udcff"])
def test_a_broken_tokenizer_is_named(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(TokenizerError, match="tokenizer.json"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(("content", "expected"), [("{", "not valid JSON"), ("[]", "JSON object")])
def test_a_broken_tokenizer_config_is_named(folder: Path, content: str, expected: str) -> None:
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(TokenizerError, match=f"tokenizer_config.json.*{expected}"):
        Tokenizer.from_folder(folder)


def test_a_decoder_that_cannot_work_token_by_token_is_refused(folder: Path) -> None:
    backend = Backend.from_str(byte_level_json())
    backend.decoder = decoders.WordPiece()
    (folder / "tokenizer.json").write_text(backend.to_str())
    with pytest.raises(TokenizerError, match="WordPiece.*ByteLevel, Metaspace"):
        Tokenizer.from_folder(folder)


def test_without_a_decoder_tokens_are_joined_with_spaces(folder: Path) -> None:
    backend = Backend.from_str(sentencepiece_json())
    backend.decoder = None
    tokenizer = Tokenizer(backend)
    ids = [300, 301, 302]
    assert tokenizer.decode(ids) == " ".join(backend.id_to_token(i) for i in ids)


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_metaspace_drops_the_first_space_only_if_it_has_put_it_there(scheme: str) -> None:
    backend = Backend.from_str(sentencepiece_json())
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    ids = backend.encode("the cat", add_special_tokens=False).ids
    assert Tokenizer(backend).decode(ids) == backend.decode(ids)


def test_an_added_token_is_its_own_text_even_outside_the_byte_alphabet() -> None:
    backend = Backend.from_str(byte_level_json())
    backend.add_tokens(["ñandú"])
    assert Tokenizer(backend).decode([backend.token_to_id("ñandú")]) == "ñandú"


def test_every_byte_has_one_character_in_the_byte_level_alphabet() -> None:
    rule = TokenBytes(byte_level=True)
    backend = Backend.from_str(byte_level_json())
    single = [token for token in backend.get_vocab() if len(token) == 1]
    assert sorted(rule.of_token(token, is_added=False)[0] for token in single) == list(range(256))


# Chat templates


TEMPLATES = {
    "blocks": (
        "{{ bos_token }}\n{% for m in messages %}\n    {% if m.role == 'system' %}\n{{ m.content | trim }}\n"
        "    {% else %}\n[{{ m['role'] }}] {{ m['content'] }}\n    {% endif %}\n{% endfor %}\n"
        "{%- if add_generation_prompt %}\n[assistant]{% endif %}"
    ),
    "json": "{{ messages | tojson(indent=2) }}{{ tools | tojson }}{{ {'b': '<é>', 'a': 1} | tojson }}",
    "json by position": "{{ tools | tojson(true, 2, (',', ':'), true) }}{{ messages | tojson(false) }}",
    "loops": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    ),
    "generation": (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ style }}"
    ),
    "missing": "{% for m in messages %}{{ m.tool_calls is defined }}{{ m.name }}{% endfor %}",
    "date": "{{ strftime_now('%Y') }}",
}
CONVERSATION = [
    {"role": "system", "content": "  Be <brief> & kind. "},
    {"role": "user", "content": "Grüße 😀", "tool_calls": None},
    {"role": "assistant", "content": "Hallo "},
]
TOOLS = [{"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_in_transformers(name: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    without_none = [{k: v for k, v in message.items() if v is not None} for message in CONVERSATION]
    variables: dict[str, Any] = {"bos_token": "<s>", "style": "x", "tools": TOOLS}
    for options in (
        {"add_generation_prompt": True},
        {"add_generation_prompt": False, "continue_final_message": name in ("blocks", "generation")},
    ):
        ours = render_chat(TEMPLATES[name], CONVERSATION, **variables, **options)
        theirs, _ = utils.render_jinja_template(
            [without_none], chat_template=TEMPLATES[name], **variables, **options
        )
        assert ours == theirs[0]


def test_a_template_that_trims_can_still_be_continued() -> None:
    template = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render_chat(template, [{"role": "assistant", "content": "Once "}], **options) == "<Once"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in %}", "does not compile: line 1"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.nothing.at_all }}", "refuses these messages"),
        ("{{ messages[0].content + 1 }}", "refuses these messages"),
        ("{{ messages.append(1) }}", "refuses these messages"),
        ("{{ ''.__class__.__mro__ }}", "refuses these messages"),
    ],
)
def test_a_template_that_fails_says_why(template: str, expected: str) -> None:
    with pytest.raises(ChatTemplateError, match=expected):
        render_chat(template, HELLO)


@pytest.mark.parametrize("messages", [[], "Hello", [{"content": "Hello"}], ["Hello"], None])
def test_messages_of_the_wrong_shape_are_shown_the_right_one(messages: Any) -> None:
    with pytest.raises(ChatTemplateError, match="role"):
        render_chat("", messages)


def test_the_final_message_is_either_answered_or_continued(byte_level: Tokenizer) -> None:
    with pytest.raises(ChatTemplateError, match="choose one"):
        byte_level.render_chat(HELLO, add_generation_prompt=True, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="text as the last message"):
        render_chat("", [{"role": "user"}], add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="changes the final message"):
        render_chat("{{ 1 }}", HELLO, add_generation_prompt=False, continue_final_message=True)


def test_a_file_goes_before_the_template_in_the_config(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("from the file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("{{ bos_token }}rag")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.render_chat(HELLO) == "from the file"
    assert tokenizer.render_chat(HELLO, chat_template="rag") == "<s>rag"
    assert tokenizer.render_chat(HELLO, chat_template="{{ messages[0].content }}!") == "Hello!"


def test_of_several_templates_tools_choose_theirs(folder: Path) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.render_chat(HELLO) == "plain"
    assert tokenizer.render_chat(HELLO, tools=TOOLS) == "tools"


def test_without_a_template_chat_says_what_to_do(sentencepiece: Tokenizer, folder: Path) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template; give one"):
        sentencepiece.render_chat(HELLO)
    templates = [{"name": "rag", "template": "x"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    with pytest.raises(ChatTemplateError, match=r"from \['rag'\]"):
        Tokenizer.from_folder(folder).render_chat(HELLO)
