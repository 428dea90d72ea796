from quizzes.experiments import Context, Result, arg, experiment, greedy
from quizzes.experiments.lifecycle._spy import Log, watch


@experiment("E14")
def call_order(ctx: Context, max_tokens: int = arg(8, 1, 64)) -> Result:
    """Trace one prompt through the live engine, from `LLM.generate` to text, in call order.

    Returns:
        Each stage once, in the order of its first call.
        order: Stages among request_id, tokenize, validate, queue, schedule, prefix_lookup, blocks, forward, update,
            detokenize.
        text
        num_forward, num_schedule [calls]
        output_tokens [tokens]
    """
    log, counts = Log(), {"forward": 0, "schedule": 0}

    def count(stage: str) -> None:
        counts[stage] += 1
        log.write(stage)

    with ctx.llm(max_num_seqs=4, traced=True) as llm:
        engine = llm.llm_engine
        scheduler, kv = engine.engine_core.scheduler, engine.engine_core.scheduler.kv
        watch(engine.tokenizer, "encode", lambda: log.write("tokenize"))
        watch(engine.input_processor, "process", lambda: log.write("request_id"))
        watch(scheduler, "add", lambda: log.write("queue"))
        watch(scheduler, "schedule", lambda: count("schedule"))
        watch(kv, "match", lambda: log.write("prefix_lookup"))
        watch(kv, "admit", lambda: log.write("blocks"))
        watch(engine.engine_core.executor, "submit", lambda: count("forward"))
        watch(scheduler, "update", lambda: log.write("update"))
        watch(engine.output_processor, "update", lambda: log.write("detokenize"))
        params = greedy(max_tokens)
        (output,) = llm.generate("Do you have this manga?", params, use_tqdm=False)
    return Result(
        order=log.first_order(),
        text=output.outputs[0].text,
        num_forward=counts["forward"],
        num_schedule=counts["schedule"],
        output_tokens=len(output.outputs[0].token_ids),
    )
