from typing import Literal

from quizzes.experiments import Context, Result, arg, experiment, greedy


@experiment("E66")
def stop_live(
    ctx: Context,
    how: Literal["eos", "length", "stop_string", "stop_id", "abort"] = "stop_string",
    max_tokens: int = arg(32, 4, 64),
    after: int = arg(8, 1, 40),
    min_tokens: int = arg(0, 0, 64),
) -> Result:
    """End a request of the live model in a given way, and see which component notices it and which blocks remain.

    The same question is answered twice: to the end, and with a stopping rule made from token number `after`.

    Returns:
        One greedy answer, ended in one way.
        finish_reason
        stop_reason: The stop string or stop id that ended it, as text; empty for end-of-sequence, length and abort.
        output_tokens [tokens]
        text_chars [characters]
        full_tokens [tokens]: Tokens of the same answer without the stopping rule.
        noticed_by: core: the scheduler saw a token. frontend: the text had to be read. client: it disconnected.
        blocks_in_use_after [blocks]
    """
    from engine import SamplingParams

    free = greedy(max_tokens)
    with ctx.llm(traced=True) as llm:
        core = llm.llm_engine.engine_core
        prompt = llm.llm_engine.input_processor.chat_prompt([{"role": "user", "content": "Hello"}])
        (whole,) = llm.generate(prompt, free, use_tqdm=False)
        ids = whole.outputs[0].token_ids
        after = min(after, len(ids))
        noticed: list[str] = []
        finish = core.abort

        def aborting(request_ids):  # type: ignore[no-untyped-def]
            names = list(request_ids)
            if names and not noticed:
                noticed.append("client" if how == "abort" else "frontend")
            return finish(names)

        core.abort = aborting
        if how == "abort":
            text, tokens, reason = "", 0, "abort"
            stream = llm.stream(prompt, free)
            for delta in stream:
                text += delta.outputs[0].text
                tokens += len(delta.outputs[0].token_ids)
                if tokens >= after:
                    break
            stream.close()
            stop_reason = None
        else:
            piece = llm.get_tokenizer().decode(ids[:after]).strip()[-4:]
            rules = {
                "eos": SamplingParams(temperature=0, max_tokens=max_tokens, min_tokens=min_tokens),
                "length": free,
                "stop_string": greedy(max_tokens, stop=piece, min_tokens=min_tokens),
                "stop_id": greedy(max_tokens, stop_token_ids=[ids[after - 1]], min_tokens=min_tokens),
            }
            (output,) = llm.generate(prompt, rules[how], use_tqdm=False)
            done = output.outputs[0]
            text, tokens, reason = done.text, len(done.token_ids), done.finish_reason or ""
            stop_reason = done.stop_reason
        return Result(
            finish_reason=reason,
            stop_reason="" if stop_reason is None else str(stop_reason),
            output_tokens=tokens,
            text_chars=len(text),
            full_tokens=len(ids),
            noticed_by=noticed[0] if noticed else "core",
            blocks_in_use_after=core.scheduler.kv.pool.num_used,
        )
