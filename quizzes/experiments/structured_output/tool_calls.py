import json
from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.structured_output._masked_rows import MaskedRows

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

    Returns:
        Answers to questions of which every second asks for the state of an order.
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
