"""Call order and endings of requests on the live engine."""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment, generate, greedy
from quizzes.experiments.lifecycle.steps import Log, watch


@experiment("E14")
def call_order(ctx: Context, max_tokens: int = arg(8, 1, 64)) -> Result:
    """Trace one prompt through the live engine, from `LLM.generate` to text, in call order.

    Returns: Each stage once, in the order of its first call.
        order: Stages among request_id, tokenize, validate, queue, schedule, prefix_lookup, blocks, forward, update,
            detokenize.
        text; num_forward, num_schedule [calls]; output_tokens [tokens]
    """
    log, calls = Log(), Counter[str]()

    def reached(stage: str) -> None:
        calls[stage] += 1
        log.write(stage)

    with ctx.llm(max_num_seqs=4, traced=True) as llm:
        engine = llm.llm_engine
        scheduler = engine.engine_core.scheduler
        for owner, method, stage in (
            (engine.tokenizer, "encode", "tokenize"),
            (engine.input_processor, "process", "request_id"),
            (scheduler, "add", "queue"),
            (scheduler, "schedule", "schedule"),
            (scheduler.kv, "match", "prefix_lookup"),
            (scheduler.kv, "admit", "blocks"),
            (engine.engine_core.executor, "submit", "forward"),
            (scheduler, "update", "update"),
            (engine.output_processor, "update", "detokenize"),
        ):
            watch(owner, method, partial(reached, stage))
        (output,) = generate(llm, "Do you have this manga?", greedy(max_tokens))
    return Result(
        order=log.first_order(),
        text=output.text,
        num_forward=calls["forward"],
        num_schedule=calls["schedule"],
        output_tokens=len(output.token_ids),
    )


@experiment("E66")
def stop_live(
    ctx: Context,
    how: Literal["eos", "length", "stop_string", "stop_id", "abort"] = "stop_string",
    max_tokens: int = arg(32, 4, 64),
    after: int = arg(8, 1, 40),
    min_tokens: int = arg(0, 0, 64),
) -> Result:
    """End a request of the live model in a given way, and see which component notices it and which blocks remain.

    Returns: One greedy answer, ended by a rule made from token number `after` of the whole answer.
        finish_reason
        stop_reason: The stop string or stop id that ended it, as text; empty for end-of-sequence, length and abort.
        output_tokens [tokens]; text_chars [characters]
        full_tokens [tokens]: Tokens of the same answer without the stopping rule.
        noticed_by: core: the scheduler saw a token. frontend: the text had to be read. client: it disconnected.
        blocks_in_use_after [blocks]
    """
    with ctx.llm(traced=True) as llm:
        core = llm.llm_engine.engine_core
        prompt = llm.llm_engine.input_processor.chat_prompt([{"role": "user", "content": "Hello"}])
        (whole,) = generate(llm, prompt, greedy(max_tokens))
        ids = whole.token_ids
        after = min(after, len(ids))
        noticed: list[str] = []
        finish = core.abort

        def aborting(request_ids: Iterable[str]) -> Any:
            names = list(request_ids)
            if names:
                noticed.append("client" if how == "abort" else "frontend")
            return finish(names)

        core.abort = aborting
        if how == "abort":
            text, tokens, reason, stop_reason = "", 0, "abort", None
            stream = llm.stream(prompt, greedy(max_tokens))
            for delta in stream:
                text += delta.outputs[0].text
                tokens += len(delta.outputs[0].token_ids)
                if tokens >= after:
                    break
            stream.close()
        else:
            piece = llm.get_tokenizer().decode(ids[:after]).strip()[-4:]
            rules: dict[str, dict[str, Any]] = {
                "eos": {"ignore_eos": False, "min_tokens": min_tokens},
                "length": {},
                "stop_string": {"stop": piece, "min_tokens": min_tokens},
                "stop_id": {"stop_token_ids": [ids[after - 1]], "min_tokens": min_tokens},
            }
            (done,) = generate(llm, prompt, greedy(max_tokens, **rules[how]))
            text, tokens, reason, stop_reason = (
                done.text,
                len(done.token_ids),
                done.finish_reason,
                done.stop_reason,
            )
        return Result(
            finish_reason=reason or "",
            stop_reason="" if stop_reason is None else str(stop_reason),
            output_tokens=tokens,
            text_chars=len(text),
            full_tokens=len(ids),
            noticed_by=noticed[0] if noticed else "core",
            blocks_in_use_after=core.scheduler.kv.pool.num_used,
        )
