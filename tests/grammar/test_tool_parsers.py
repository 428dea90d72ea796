"""Parsers of tool calls: every format, whole and as a stream, whatever the pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.config.settings import ConfigError
from engine.frontend.tool_choice import ToolCallStream, parse_tool_calls
from engine.frontend.tool_parsers import FORMATS, Piece, check_tool_parser, make_tool_parser, read_calls
from engine.frontend.tool_parsers.pythonic import as_json
from engine.frontend.tool_parsers.source import Malformed

Calls = list[tuple[str, object]]


def whole(name: str, text: str) -> tuple[str, Calls]:
    content, calls = read_calls(make_tool_parser(name), text)
    return content, [(called, json.loads(arguments)) for called, arguments in calls]


def streamed(name: str, pieces: Sequence[str]) -> tuple[str, Calls]:
    """Return content and calls as a client puts them together; a call whose arguments do not parse is none."""
    stream, content = ToolCallStream(name), ""
    names: list[str] = []
    arguments: list[str] = []
    for number, piece in enumerate([*pieces, ""]):
        text, deltas = stream.push(piece, is_last=number == len(pieces))
        content += text
        for delta in deltas:
            if "name" in delta["function"]:
                assert delta["index"] == len(names) and delta["id"] and delta["type"] == "function"
                names.append(delta["function"]["name"])
                arguments.append("")
            arguments[delta["index"]] += delta["function"]["arguments"]
    calls: Calls = []
    for called, text in zip(names, arguments, strict=True):
        try:
            calls.append((called, json.loads(text)))
        except ValueError:
            continue
    assert stream.num_complete == len(calls)
    return content, calls


TWO: Calls = [("find", {"title": "One } Piece", "n": [1, {"a": None}]}), ("open_today", {})]


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        (
            "hermes",
            'Yes.<tool_call>\n{"name": "find", "arguments": {"title": "One } Piece", "n": [1, {"a": null}]}}\n'
            '</tool_call><tool_call>{"arguments": {}, "name": "open_today"}</tool_call>',
            "Yes.",
        ),
        (
            "llama3_json",
            'Yes.<|python_tag|>{"type": "function", "name": "find", "parameters": {"title": "One } Piece", '
            '"n": [1, {"a": null}]}}; {"parameters": {}, "name": "open_today"}',
            "Yes.",
        ),
        (
            "mistral",
            'Yes.[TOOL_CALLS]find{"title": "One } Piece", "n": [1, {"a": null}]}[TOOL_CALLS]open_today[ARGS]{}',
            "Yes.",
        ),
        (
            "mistral",
            'Yes.[TOOL_CALLS] [{"name": "find", "arguments": {"title": "One } Piece", "n": [1, {"a": null}]}}, '
            '{"name": "open_today", "arguments": {}}]',
            "Yes.",
        ),
        ("pythonic", "Yes.\n[find(title='One } Piece', n=[1, {'a': None}]), open_today()]", "Yes.\n"),
    ],
)
def test_text_and_parallel_calls_are_taken_apart_in_every_format(name: str, text: str, content: str) -> None:
    assert whole(name, text) == (content, TWO) == streamed(name, list(text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_json", 'if (a) { return {"name": "x"}; }'),
        ("llama3_json", '{"name": "Kim", "age": 3}'),
        ("llama3_json", '{"name": 1, "parameters": {}}'),
        ("llama3_json", '{"name": {"name": "f", "parameters": {}}, "parameters": {}}'),
        ("llama3_json", '{"name": "f", "parameters": [1]}'),
        ("llama3_json", "<|python_tag|>print(1)"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS]two words{}"),
        ("mistral", "[TOOL_CALLS][ARGS]{}"),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral", "[TOOL] [1]"),
        ("pythonic", "[1, 2]"),
        ("pythonic", "[see(3)]"),
        ("pythonic", "see [open_today()]"),
        ("pythonic", "[f(a=1, a=2)]"),
        ("pythonic", "[f(a=g(1))]"),
        ("pythonic", "[f(a=1)"),
        ("pythonic", "[2f(a=1)]"),
        ("pythonic", "[f(a=1e999)]"),
        ("pythonic", "[f(a='" + "x\n" + "')]"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 100_000),
    ],
)
def test_malformed_calls_stay_text(name: str, text: str) -> None:
    assert whole(name, text) == (text, [])
    assert streamed(name, list(text[:500]))[1] == []


def test_a_stream_has_the_name_first_and_the_arguments_as_they_grow() -> None:
    text = '{"name": "find", "parameters": {"title": "One Piece"}} '
    stream = ToolCallStream("llama3_json")
    news = [delta for character in text for delta in stream.push(character)[1]]
    assert news[0]["function"] == {"name": "find", "arguments": "{"}
    grown = [delta["function"]["arguments"] for delta in news]
    assert "".join(grown) == '{"title": "One Piece"}' and len(grown) > 20


def test_a_stream_never_closes_the_arguments_of_a_call_that_breaks_off_after_them() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1}} and more</tool_call>!'
    assert whole("hermes", text) == (text, [])
    stream = ToolCallStream()
    news = [delta for character in text for delta in stream.push(character)[1]]
    assert "".join(delta["function"]["arguments"] for delta in news) == '{"a": 1'
    assert stream.num_complete == 0


FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool", '{"name": "f", "arguments": ', '{"arguments": '],
    "llama3_json": ["<|python_tag|>", '{"name": "f", "parameters": ', "; ", '{"name": 1, ', "<|"],
    "mistral": ["[TOOL_CALLS]", "f", "[ARGS]", '[{"name": "f", "arguments": ', "]", "["],
    "pythonic": ["[", "f(", "a=", "b='x\"', ", "c=[1, {'k': -2}]", ")", "]", ", ", "\n", "g()", "'''"],
}
COMMON = [
    "{}",
    '{"a": [1, "\\u00e9}"]}',
    "}",
    "{",
    '"',
    "Yes. ",
    " ",
    "東京",
    '"name": "g"',
    "\\",
    ", ",
    "12",
]
GOOD = {
    "hermes": ['<tool_call>{"name": "f", "arguments": {"a": {}}}</tool_call>'],
    "llama3_json": ['{"name": "f", "parameters": {"a": {}}}', '{"parameters": {"a": 1.5e3}, "name": "h"}'],
    "mistral": ['[TOOL_CALLS]f{"a": {}}', '[TOOL_CALLS] [{"name": "f", "arguments": {}}]'],
    "pythonic": ["\n[f(a='x', b=(1, 2))]"],
}


@st.composite
def cuts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A format, and a text of it in pieces."""
    name = draw(st.sampled_from(sorted(GOOD)))
    parts = st.sampled_from([*GOOD[name] * 3, *FRAGMENTS[name], *COMMON])
    text = "".join(draw(st.lists(parts, max_size=8)))
    ends = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return name, [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(cuts())
@example(("pythonic", ["[f(a='x", "'), ", "g()", "]"]))
def test_any_cut_of_a_text_gives_its_calls_and_its_content(case: tuple[str, list[str]]) -> None:
    name, pieces = case
    text = "".join(pieces)
    parser = make_tool_parser(name)
    found = [piece for each in pieces for piece in parser.push(each)] + parser.finish()

    class Replay:
        def push(self, text: str) -> list[Piece]:
            return found

        def finish(self) -> list[Piece]:
            return []

    assert read_calls(Replay(), text) == read_calls(make_tool_parser(name), text)
    content, calls = whole(name, text)
    assert streamed(name, pieces)[1] == calls
    if not calls:
        assert content == text  # nothing is lost


@given(st.integers(1, 4), st.sampled_from(sorted(GOOD)))
def test_the_text_around_calls_is_kept(count: int, name: str) -> None:
    [call, *_] = GOOD[name]
    text = "東京{" + ("\n" + call.strip("\n") + "\nYes.") * count
    content, calls = whole(name, text)
    assert len(calls) == count and re.sub(r"\s", "", content) == "東京{" + "Yes." * count


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_character_of_a_long_output_is_read_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.frontend.tool_parsers.source import Source

    fed: list[int] = []
    feed = Source.feed

    def counted(self: Source, text: str) -> None:
        fed.append(len(self.text) + len(text))  # all text that the parser keeps to read
        feed(self, text)

    monkeypatch.setattr(Source, "feed", counted)
    openings = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]"}
    text = openings.get(name, "") + '{"name": "f", "arguments": {"a": "' + "x" * 20_000
    stream = ToolCallStream(name)
    for character in text:
        stream.push(character)
    assert sum(fed) <= 2 * len(text)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'a' \"b\"", "ab"), ("(1, -2.5)", [1, -2.5]), ("{'a': True}", {"a": True}), ("null", None),
        ('"""a"b"""', 'a"b'), (r"'\d\n'", "\\d\n"), ("{1, 2}", [1, 2]),
    ],
)  # fmt: skip
def test_python_literals_become_json(literal: str, value: object) -> None:
    assert json.loads(as_json(literal)) == value


@pytest.mark.parametrize(
    "code", ["__import__('os')", "a.b", "f'{x}'", "1 +", "b'x'", "{**{}}", "[x for x in y]", "", "1j"]
)
def test_what_is_no_literal_is_never_evaluated(code: str) -> None:
    with pytest.raises(Malformed):
        as_json(code)


def test_an_unknown_parser_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        ConfigError, match="unknown tool_call_parser 'llama3-json'; did you mean 'llama3_json'"
    ):
        check_tool_parser("llama3-json")
    with pytest.raises(ConfigError, match="known: hermes, llama3_json"):
        check_tool_parser("xyz")


def test_ids_of_mistral_calls_have_nine_letters_and_digits() -> None:
    _, [call] = parse_tool_calls("[TOOL_CALLS]f{}", "mistral")
    assert re.fullmatch(r"[A-Za-z0-9]{9}", call["id"])
