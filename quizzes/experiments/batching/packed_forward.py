"""E29: what really goes into a forward pass of the live engine, and whether company changes anybody's answer."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from quizzes.experiments import Context, experiment

if TYPE_CHECKING:
    from engine import LLM


@dataclass(frozen=True)
class Packed:
    """Of the first step, which holds all prompts."""

    input_shape: list[int]
    """Of the token ids that the model gets."""
    forward_tokens: Annotated[int, "tokens"]
    padded_tokens: Annotated[int, "tokens"]
    """A rectangle of rows x longest would have so many."""
    forward_passes: Annotated[int, "passes"]
    """Of the first step: one, whatever the lengths are."""
    equal_outputs: Annotated[int, "requests"]
    """Requests that say the same in company as alone."""
    requests: Annotated[int, "requests"]


@experiment("E29")
def packed_forward(
    ctx: Context,
    *,
    lens: Annotated[list[Annotated[int, Field(ge=1, le=300)]], Field(min_length=1, max_length=12)] = (
        7,
        90,
        33,
        150,
        1,
    ),
    output: Annotated[int, Field(ge=1, le=16)] = 6,
) -> Packed:
    """Prompts of different lengths in one step of the live engine, greedy, together and each alone.

    The model is watched from outside: the shape of the token ids of every forward pass is written down.
    """
    from engine import SamplingParams

    rng = Random(1)
    prompts = [{"prompt_token_ids": [rng.randrange(300, 2000) for _ in range(length)]} for length in lens]
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    with ctx.llm(enable_prefix_caching=False, enforce_eager=True) as llm:
        shapes = _watch(llm)
        together = [out.outputs[0].token_ids for out in llm.generate(prompts, params, use_tqdm=False)]
        first = shapes[: len(shapes) - (output - 1)]
        alone = [llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids for prompt in prompts]
    return Packed(
        list(first[0]),
        sum(shape[0] for shape in first),
        len(lens) * max(lens),
        len(first),
        sum(list(a) == list(b) for a, b in zip(together, alone, strict=True)),
        len(lens),
    )


def _watch(llm: LLM) -> list[tuple[int, ...]]:
    """Shapes of the token ids that the model gets from now on, in order."""
    shapes: list[tuple[int, ...]] = []
    runner: Any = llm.llm_engine.engine_core.executor.worker.runner  # type: ignore[attr-defined]
    runner.model.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    return shapes
