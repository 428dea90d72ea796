"""Tool calls: parsed from what a model says, or forced on it by a grammar."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from engine import LLM, SamplingParams
from engine.frontend.tool_choice import ToolCallStream, ToolChoice, ToolError, ToolPlan, parse_tool_calls
from engine.outputs import RequestOutput
from engine.zoo.dialogue import TOOLS, tool_call
from tests.seeds import seeds

NO_PARAMETERS = {"type": "function", "function": {"name": "open_today"}}
MESSAGES = [{"role": "user", "content": "Where is my order 12345?"}]
ORDER = tool_call("get_order_status", order_id="12345")


def calls(text: str) -> list[tuple[str, Any]]:
    found = [call["function"] for call in parse_tool_calls(text)[1]]
    return [(function["name"], json.loads(function["arguments"])) for function in found]


# -- the parser


def test_content_and_calls_are_taken_apart() -> None:
    content, found = parse_tool_calls(f"Let me see.{ORDER} and {tool_call('reserve_title', title='東京')}!")
    assert content == "Let me see. and !"
    first, second = found
    assert first["type"] == "function" and first["id"] != second["id"]
    assert first["function"] == {"name": "get_order_status", "arguments": '{"order_id": "12345"}'}
    assert json.loads(second["function"]["arguments"]) == {"title": "東京"}


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call>{not json}</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>["get_order_status"]</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "argum',
    ],
)
def test_what_is_no_call_stays_content(broken: str) -> None:
    assert parse_tool_calls(f"Hm. {broken}") == (f"Hm. {broken}", [])


def test_a_call_whose_end_tag_was_cut_off_is_a_call_if_its_json_is_whole() -> None:
    assert calls(ORDER.removesuffix("</tool_call>")) == [("get_order_status", {"order_id": "12345"})]


@pytest.mark.parametrize("seed", seeds(30))
def test_calls_and_content_are_those_of_a_reader_tag_by_tag(seed: int) -> None:
    rng = random.Random(seed)
    parts = ["Yes.", ORDER, "<tool", "<tool_call>{", "</tool_call>", "<", tool_call("f"), "東京", " "]
    text = "".join(rng.choices(parts, k=5))
    content, found, rest = "", [], text
    while "<tool_call>" in rest:
        before, _, rest = rest.partition("<tool_call>")
        inside, end, rest = rest.partition("</tool_call>")
        try:
            found.append(json.loads(inside)["name"])
            content += before
        except ValueError:
            content += f"{before}<tool_call>{inside}{end}"
    assert parse_tool_calls(text)[0] == content + rest
    assert [name for name, _ in calls(text)] == found


def test_content_that_can_be_no_tag_is_not_held_back() -> None:
    stream = ToolCallStream()
    assert stream.push("Yes.<tool") == ("Yes.", [])
    assert stream.push("box>") == ("<toolbox>", [])


# -- the choice


@pytest.mark.parametrize(
    ("tools", "choice", "complaint"),
    [
        (None, "required", "needs tools"),
        (TOOLS, "sometimes", "tool_choice must be"),
        (TOOLS, {"type": "function"}, "tool_choice must be"),
        (TOOLS, {"function": {"name": "fly"}}, "not among the tools: get_order_status, reserve_title"),
        ([TOOLS[0], TOOLS[0]], "auto", "names of their own"),
        ([{"type": "function"}], "auto", r"tools\[0\] must be like"),
        ([{"function": {"name": "f", "parameters": []}}], "auto", "must be a JSON schema"),
    ],
)
def test_tools_and_choices_that_make_no_sense_are_refused(tools: Any, choice: Any, complaint: str) -> None:
    with pytest.raises(ToolError, match=complaint):
        ToolPlan.of(tools, choice)


def test_a_forced_choice_and_a_structure_of_ones_own_exclude_each_other() -> None:
    with pytest.raises(ToolError, match="use one"):
        ToolPlan.of(TOOLS, "required").constrain(SamplingParams(structured_outputs={"regex": "a"}))


@pytest.fixture(scope="module")
def shop() -> Iterator[LLM]:
    with LLM("shop", structured_outputs_config={"backend": "dfa"}, num_gpu_blocks_override=256) as llm:
        yield llm


def chat(llm: LLM, choice: Any, tools: Any = TOOLS, **params: Any) -> Any:
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 80, **params})
    return llm.chat(MESSAGES, sampling, tools=tools, tool_choice=choice)[0].outputs


def functions(completion: Any) -> list[tuple[str, Any]]:
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in completion.tool_calls]


def test_auto_parses_what_the_shop_model_says(shop: LLM) -> None:
    completion = chat(shop, "auto")[0]
    assert functions(completion) == [("get_order_status", {"order_id": "12345"})] and completion.text == ""


def test_required_and_named_force_a_call(shop: LLM) -> None:
    assert functions(chat(shop, "required")[0]) == [("get_order_status", {"order_id": "12345"})]
    named = {"type": "function", "function": {"name": "reserve_title"}}
    ((name, arguments),) = functions(chat(shop, named)[0])
    assert name == "reserve_title" and isinstance(arguments["title"], str)
    assert functions(chat(shop, "required", tools=[NO_PARAMETERS])[0]) == [("open_today", {})]


def test_none_shows_the_tools_and_reads_no_call(shop: LLM) -> None:
    def ask(choice: ToolChoice) -> RequestOutput:
        return shop.chat(MESSAGES, SamplingParams(max_tokens=60), tools=TOOLS, tool_choice=choice)[0]

    answer, called = ask("none"), ask("auto")
    assert answer.prompt == called.prompt and "get_order_status" in (answer.prompt or "")
    assert answer.outputs[0].token_ids == called.outputs[0].token_ids
    assert called.outputs[0].tool_calls and answer.outputs[0].tool_calls is None
    assert "get_order_status" in answer.outputs[0].text


def test_required_parses_at_any_temperature_unless_it_is_cut_off(shop: LLM) -> None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    completions = chat(shop, "required", temperature=2.0, n=30, seed=1, max_tokens=60)
    ended = [completion for completion in completions if completion.finish_reason == "stop"]
    assert ended, "none of them ended"
    for completion in ended:
        ((name, arguments),) = functions(completion)
        jsonschema.validate(arguments, schemas[name])
    cut = chat(shop, "required", max_tokens=4)[0]
    assert cut.finish_reason == "length" and cut.tool_calls == [] and cut.text == ""


def test_tools_of_a_conversation_batch_are_read_for_each(shop: LLM) -> None:
    outputs = shop.chat([MESSAGES, MESSAGES], SamplingParams(temperature=0, max_tokens=80), tools=TOOLS)
    assert [functions(output.outputs[0]) for output in outputs] == [
        [("get_order_status", {"order_id": "12345"})]
    ] * 2


def test_the_shop_model_says_json_that_validates_where_a_schema_asks_for_it(shop: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 20},
            "price": {"type": "integer", "minimum": 0, "maximum": 9999},
        },
        "required": ["title", "price"],
    }
    structure = {"json": schema, "disable_any_whitespace": True}
    sampling = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=80, structured_outputs=structure)
        for seed in range(12)
    ]
    completions = [output.outputs[0] for output in shop.generate(["Our pick as JSON: "] * 12, sampling)]
    ended = [completion for completion in completions if completion.finish_reason == "stop"]
    assert len(ended) > 6
    for completion in ended:
        jsonschema.validate(json.loads(completion.text), schema)
