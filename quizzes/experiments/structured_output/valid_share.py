import json
from typing import Any, Literal

from engine.sampling_params import StructuredOutputsParams
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.structured_output._masked_rows import MaskedRows

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

    Returns:
        Answers to the same prompts.
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
