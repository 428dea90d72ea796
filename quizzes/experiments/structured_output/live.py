"""Structured output and tool calls of the live engine."""

import json
from typing import Any, Literal

from engine.sampling_params import StructuredOutputsParams
from quizzes.experiments import Context, Result, arg, experiment


class MaskedRows:
    """Counts masked rows of an engine from now on."""

    def __init__(self, llm: Any) -> None:
        self.count = 0
        self._core = llm.llm_engine.engine_core
        self._step = self._core.step
        self._core.step = self._counting

    def _counting(self) -> Any:
        outputs = self._step()
        self.count += self._core.scheduler.stats.num_masked_rows
        return outputs


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

    "named" forces get_order_status.

    Returns: Answers to questions of which every second asks for the state of an order.
        answers [answers]
        called [answers]: Answers with at least one call that parses.
        right_tool [answers]: Answers with a call of get_order_status.
        schema_valid [answers]: Whose first call has exactly the arguments that its tool declares, all of them text.
        right_argument [answers]: Order questions whose call names the right order.
        cut [answers]: Ended by max_tokens.
        masked_positions [positions]
        tools_in_prompt: Whether the model saw the tools.
    """
    from engine import SamplingParams
    from engine.zoo.dialogue import TOOLS

    named: dict[str, Any] = {"type": "function", "function": {"name": "get_order_status"}}
    numbers = [10_000 + 137 * i for i in range(answers)]
    questions = [QUESTIONS[i % len(QUESTIONS)].format(n=numbers[i]) for i in range(answers)]
    chats = [
        [
            {"role": "system", "content": "You are the assistant of a manga shop."},
            {"role": "user", "content": text},
        ]
        for text in questions
    ]
    settings: dict[str, Any] = {"load_format": "dummy"} if model == "random" else {}
    with ctx.llm(max_num_seqs=32, structured_outputs_config={"backend": "dfa"}, **settings) as llm:
        rows = MaskedRows(llm)
        params = [SamplingParams(temperature=0.7, seed=i, max_tokens=max_tokens) for i in range(answers)]
        outputs = llm.chat(
            chats, params, tools=TOOLS, tool_choice=named if choice == "named" else choice, use_tqdm=False
        )
        decode = llm.get_tokenizer().decode
        shown = "get_order_status" in decode(outputs[0].prompt_token_ids)
    functions: list[Any] = [tool["function"] for tool in TOOLS]
    properties = {function["name"]: set(function["parameters"]["required"]) for function in functions}
    first = [(output.outputs[0].tool_calls or [None])[0] for output in outputs]
    calls = [None if call is None else call["function"] for call in first]
    arguments = [{} if call is None else json.loads(call["arguments"]) for call in calls]
    return Result(
        answers=answers,
        called=sum(call is not None for call in calls),
        right_tool=sum(call is not None and call["name"] == "get_order_status" for call in calls),
        schema_valid=sum(
            call is not None
            and given.keys() == properties.get(call["name"])
            and all(isinstance(value, str) for value in given.values())
            for call, given in zip(calls, arguments, strict=True)
        ),
        right_argument=sum(
            "order" in question and given.get("order_id") == str(number)
            for question, given, number in zip(questions, arguments, numbers, strict=True)
        ),
        cut=sum(output.outputs[0].finish_reason == "length" for output in outputs),
        masked_positions=rows.count,
        tools_in_prompt=shown,
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
        rows = MaskedRows(llm)

        def ask(**extra: Any) -> list[Any]:
            params = [
                SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, **extra)
                for seed in range(answers)
            ]
            return [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]

        free = ask()
        masked = ask(structured_outputs=structure)
    whole = [completion for completion in masked if completion.finish_reason == "stop"]
    return Result(
        answers=answers,
        valid_free=sum(is_valid(completion.text) for completion in free),
        valid_masked=sum(is_valid(completion.text) for completion in masked),
        cut_masked=sum(completion.finish_reason == "length" for completion in masked),
        invalid_whole_masked=sum(not is_valid(completion.text) for completion in whole),
        distinct_masked=len({completion.text for completion in masked}),
        masked_positions=rows.count,
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
