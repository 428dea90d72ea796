"""Structured output and tool calls of the live engine."""

import json
from typing import Any, Literal

from engine.sampling_params import StructuredOutputsParams
from quizzes.experiments import Context, Result, arg, experiment, generate


def count_masked_rows(llm: Any) -> list[int]:
    """Return a list that gets the masked rows of each step from now on."""
    core, counts = llm.llm_engine.engine_core, []
    step = core.step

    def counting() -> Any:
        outputs = step()
        counts.append(core.scheduler.stats.num_masked_rows)
        return outputs

    core.step = counting
    return counts


QUESTIONS = ("Where is my order {n}?", "What does Silver Harbor cost?", "Hello!", "Has order {n} been sent?")


@experiment("E42", seconds=40, megabytes=2500)
def tool_calls(
    ctx: Context,
    choice: Literal["auto", "none", "required", "named"] = "auto",
    model: Literal["trained", "random"] = "trained",
    answers: int = arg(12, 1, 32),
    max_tokens: int = arg(96, 1, 200),
) -> Result:
    """Chat with two tools under each tool_choice and see whether a tool is called, and whether the call is valid.

    Returns: Answers to questions, every second one for the state of an order. "named" forces get_order_status.
        answers [answers]
        called [answers]: Answers with at least one call that parses.
        right_tool [answers]: Answers with a call of get_order_status.
        schema_valid [answers]: Whose first call has exactly the arguments that its tool declares, all of them text.
        right_argument [answers]: Order questions whose call names the right order.
        cut [answers]: Ended by max_tokens.
        masked_positions [positions]
    """
    from engine import SamplingParams
    from engine.zoo.dialogue import TOOLS

    named: dict[str, Any] = {"type": "function", "function": {"name": "get_order_status"}}
    numbers = [10_000 + 137 * i for i in range(answers)]
    questions = [QUESTIONS[i % len(QUESTIONS)].format(n=number) for i, number in enumerate(numbers)]
    system = {"role": "system", "content": "You are the assistant of a manga shop."}
    chats = [[system, {"role": "user", "content": text}] for text in questions]
    settings: dict[str, Any] = {"load_format": "dummy"} if model == "random" else {}
    with ctx.llm(max_num_seqs=32, structured_outputs_config={"backend": "dfa"}, **settings) as llm:
        rows = count_masked_rows(llm)
        params = [SamplingParams(temperature=0.7, seed=i, max_tokens=max_tokens) for i in range(answers)]
        forced = named if choice == "named" else choice
        outputs = llm.chat(chats, params, tools=TOOLS, tool_choice=forced, use_tqdm=False)
    functions: list[Any] = [tool["function"] for tool in TOOLS]
    required = {function["name"]: set(function["parameters"]["required"]) for function in functions}
    called: list[tuple[str, dict[str, Any], str]] = []
    for output, question, number in zip(outputs, questions, numbers, strict=True):
        for call in (output.outputs[0].tool_calls or [])[:1]:
            expected = str(number) if "order" in question else ""
            called.append((call["function"]["name"], json.loads(call["function"]["arguments"]), expected))
    return Result(
        answers=answers,
        called=len(called),
        right_tool=sum(name == "get_order_status" for name, _, _ in called),
        schema_valid=sum(
            given.keys() == required.get(name) and all(isinstance(value, str) for value in given.values())
            for name, given, _ in called
        ),
        right_argument=sum(bool(number) and given.get("order_id") == number for _, given, number in called),
        cut=sum(output.outputs[0].finish_reason == "length" for output in outputs),
        masked_positions=sum(rows),
    )


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "genre": {"enum": ["mystery", "romance", "fantasy"]},
        "volumes": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["genre", "volumes"],
    "additionalProperties": False,
}
LONGEST = 40
"""Maximum tokens of an answer without optional white space."""


@experiment("E41", seconds=40, megabytes=2500)
def valid_share(
    ctx: Context,
    model: Literal["trained", "random"] = "random",
    answers: int = arg(16, 1, 48),
    max_tokens: int = arg(64, 1, 128),
    temperature: float = arg(1.0, 0, 5),
) -> Result:
    """Count valid JSON with and without a grammar, from a trained and from a random model, whole and cut off.

    Asks for JSON of a small schema. random: the shop model's layout with random weights.

    Returns: Answers to the same prompts.
        answers [answers]
        valid_free, valid_masked [answers]: Answers valid against the schema, without and with a grammar.
        cut_masked [answers]: Answers with the grammar that max_tokens cut off.
        invalid_whole_masked [answers]: Invalid answers with the grammar that ended on their own.
        distinct_masked [answers]: Different texts among the masked ones.
        masked_positions [positions]: Rows that a mask was applied to, drafts counted one each.
    """
    from engine import SamplingParams

    prompts = [f"Catalogue entry {number} as JSON: " for number in range(answers)]
    structure = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    settings: dict[str, Any] = {"load_format": "dummy"} if model == "random" else {}
    with ctx.llm(max_num_seqs=64, structured_outputs_config={"backend": "dfa"}, **settings) as llm:
        rows = count_masked_rows(llm)

        def ask(**extra: Any) -> list[Any]:
            extra |= {"temperature": temperature, "max_tokens": max_tokens}
            return generate(llm, prompts, [SamplingParams(seed=seed, **extra) for seed in range(answers)])

        free, masked = ask(), ask(structured_outputs=structure)
    whole = [completion for completion in masked if completion.finish_reason == "stop"]
    return Result(
        answers=answers,
        valid_free=sum(is_valid(completion.text) for completion in free),
        valid_masked=sum(is_valid(completion.text) for completion in masked),
        cut_masked=sum(completion.finish_reason == "length" for completion in masked),
        invalid_whole_masked=sum(not is_valid(completion.text) for completion in whole),
        distinct_masked=len({completion.text for completion in masked}),
        masked_positions=sum(rows),
    )


def is_valid(text: str) -> bool:
    """Return whether a text is a JSON object with exactly the two fields of SCHEMA."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and value.keys() == {"genre", "volumes"}
        and value["genre"] in SCHEMA["properties"]["genre"]["enum"]
        and type(value["volumes"]) is int
        and 0 <= value["volumes"] <= 99
    )
