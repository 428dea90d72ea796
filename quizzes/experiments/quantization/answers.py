from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment, worker_of


@experiment("E31", "E32", seconds=40)
def answers(
    ctx: Context,
    quantization: Literal["none", "rtn", "int8", "fp8", "llm_int8", "mxfp4", "nvfp4"] = "fp8",
    kv_cache_dtype: Literal["auto", "fp8", "int8_per_token_head"] = "auto",
    cases: int = arg(40, 1, 120),
) -> Result:
    """Compare the answers of the model `shop` in fewer bits with its full-precision answers on unseen questions.

    Two engines answer the same test questions greedily, without calibration.

    Returns:
        right_float, right [answers]: Right to the last character.
        lost [share]: (right_float - right) / cases.
        same [answers]: Word for word what the float model says.
        cases [answers]
        kv_bytes_ratio [x]: KV bytes per block of the float engine over this one's.
    """
    from engine.zoo.corpus import draw_cases

    chosen = draw_cases(cases, seed=9)[:cases]
    method = None if quantization == "none" else quantization
    expected, whole = _say(ctx, [case.prompt for case in chosen], {})
    found, part = _say(
        ctx, [case.prompt for case in chosen], {"quantization": method, "kv_cache_dtype": kv_cache_dtype}
    )
    right_float = sum(text == case.answer for text, case in zip(expected, chosen, strict=True))
    right = sum(text == case.answer for text, case in zip(found, chosen, strict=True))
    same = sum(a == b for a, b in zip(expected, found, strict=True))
    return Result(
        right_float=right_float,
        right=right,
        lost=(right_float - right) / cases,
        same=same,
        cases=cases,
        kv_bytes_ratio=whole / part,
    )


def _say(ctx: Context, prompts: list[str], settings: dict[str, Any]) -> tuple[list[str], int]:
    """Answers, and the bytes of a KV block."""
    from engine import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=96)
    with ctx.llm(max_num_seqs=32, num_gpu_blocks_override=2048, **settings) as llm:
        worker = worker_of(llm)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [output.outputs[0].text for output in outputs], worker.runner.kv_cache.blocks.shape[1]
