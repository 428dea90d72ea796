from tempfile import TemporaryDirectory
from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, greedy
from quizzes.experiments.prefix_cache._live import Watched


@experiment("E58", "E47", seconds=30)
def disk_tier(ctx: Context, prompt: int = arg(200, 17, 800), answer: int = arg(6, 1, 16)) -> Result:
    """Share KV between engines through a folder of blocks, and compare with an engine that has only its own cache.

    One prompt in three engines: the first writes its blocks to the folder, the second has only its own cache, the
    third reads the folder.

    Returns:
        One engine serves a prompt and ends; another one gets the same prompt.
        own_hit [tokens]: Cached tokens when the first engine gets the prompt again.
        other_hit [tokens]: Cached tokens in a second engine that shares nothing with the first.
        shared_hit [tokens]: Cached tokens in a second engine that uses the same folder.
        shared_source: Where those were.
        bytes_read, block_bytes [bytes]
        tokens_equal: All of them give the same greedy answer.
    """
    tokens = [3 + 7 * i % 2000 for i in range(prompt)]
    params = greedy(answer)
    settings: dict[str, Any] = {"max_model_len": prompt + answer + 16, "num_gpu_blocks_override": 128}

    def ask(llm: Any) -> Any:
        (output,) = llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
        return output

    with TemporaryDirectory() as folder:
        shared: dict[str, Any] = {
            **settings,
            "kv_offloading_backend": f"disk:{folder}",
            "kv_offloading_size": 0.05,
        }
        with ctx.llm(**shared) as first:
            outputs = [ask(first), ask(first)]
        with ctx.llm(**settings) as other:
            outputs.append(ask(other))
        with ctx.llm(**shared) as third:
            watched = Watched(third)
            outputs.append(ask(third))
            block_bytes = third.llm_engine.engine_core.config.cache.tiers.block_bytes
    hits = [output.num_cached_tokens for output in outputs]
    return Result(
        own_hit=hits[1],
        other_hit=hits[2],
        shared_hit=hits[3],
        shared_source=",".join(sorted(watched.requests[-1].cached_tokens_by_source)),
        bytes_read=watched.total("kv_bytes_received"),
        block_bytes=block_bytes,
        tokens_equal=all(o.outputs[0].token_ids == outputs[0].outputs[0].token_ids for o in outputs),
    )
