from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, greedy, worker_of


@experiment("E24", "E25")
def rows_computed(ctx: Context, prompt: int = arg(100, 2, 1000), prompt_logprobs: bool = False) -> Result:
    """Count rows through the projections and the output head, and keys read, while `shop` reads and writes two tokens.

    Hooks on the layers count. prompt_logprobs: also request the log-probabilities of the prompt.

    Returns:
        The first step (prefill) and the second (decode) of one request.
        prefill_qkv [rows]: Positions that went through the first layer's query, key and value projections.
        prefill_logits [rows]: Positions whose logits were computed.
        decode_qkv, decode_logits [rows]
        decode_keys [keys]: Positions that the decode step's query attended to, its own included.
    """
    counts: dict[str, list[int]] = {"qkv": [], "logits": [], "keys": []}
    with ctx.llm(enforce_eager=True, enable_prefix_caching=False, max_num_batched_tokens=2048) as llm:
        worker = worker_of(llm)
        layer = next(iter(worker.model.model.layers.values()))
        handle = layer.self_attn.qkv_proj.register_forward_pre_hook(
            lambda _, inputs: counts["qkv"].append(len(inputs[0]))
        )
        build, compute = worker.backend.build, worker.model.compute_logits

        def counted_build(metadata: Any) -> None:
            counts["keys"].append(max(metadata.seq_lens_cpu))
            counts["logits"].append(0)
            build(metadata)

        def counted_logits(hidden: Any) -> Any:
            counts["logits"][-1] += len(hidden)
            return compute(hidden)

        worker.backend.build, worker.model.compute_logits = counted_build, counted_logits
        tokens = [ctx.rng.randrange(10, 2000) for _ in range(prompt)]
        params = greedy(2, prompt_logprobs=1 if prompt_logprobs else None)
        llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)
        handle.remove()
    return Result(
        prefill_qkv=counts["qkv"][0],
        prefill_logits=counts["logits"][0],
        decode_qkv=counts["qkv"][1],
        decode_logits=counts["logits"][1],
        decode_keys=counts["keys"][1],
    )
