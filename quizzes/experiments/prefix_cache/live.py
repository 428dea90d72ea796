"""The prefix cache of the live engine."""

from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any, Literal

from engine.sampling_params import SamplingParams
from quizzes.experiments import Context, Result, arg, experiment, greedy, paired_ratio


class Watched:
    """Records from now on. `llm`: an engine with one scheduler."""

    def __init__(self, llm: Any) -> None:
        self.requests: list[Any] = []
        """In order of arrival."""
        self.steps: list[Any] = []
        """StepStats, one per step."""
        self.blocks: list[int] = []
        """Blocks in use during each step, before finished requests free theirs."""
        self._scheduler = llm.llm_engine.engine_core.scheduler
        self._add, self._update = self._scheduler.add, self._scheduler.update
        self._scheduler.add, self._scheduler.update = self.add, self.update

    def add(self, request: Any) -> None:
        self.requests.append(request)
        self._add(request)

    def update(self, *args: Any) -> Any:
        self.blocks.append(self._scheduler.kv.pool.num_used)
        outputs = self._update(*args)
        self.steps.append(replace(self._scheduler.stats))
        return outputs

    def total(self, name: str) -> int:
        """Return the sum of a counter over all steps."""
        return sum(getattr(stats, name) for stats in self.steps)


@experiment("E07", determinism="statistical", seconds=30)
def cached_ttft(ctx: Context, prompt: int = arg(800, 32, 1500), answer: int = arg(12, 1, 32)) -> Result:
    """Time the first token of a live engine with a cold and with a warm prefix cache, and compare the answers.

    Returns: One prompt of the shipped model, cold over warm; above 1 the cache helps.
        speedup, lo [x]
        hi [x]: Bootstrap 95 % interval.
        computed_cold, computed_warm [tokens]
        tokens_equal: The greedy answer after a hit equals that after a full prefill, token for token.
        repeats
    """
    with ctx.llm(max_model_len=prompt + answer + 16) as llm:
        ask = {"prompt_token_ids": [3 + 7 * i % 2000 for i in range(prompt)]}

        def warm() -> None:
            llm.generate([ask], greedy(1), use_tqdm=False)

        def cold() -> None:
            llm.reset_prefix_cache()
            warm()

        ratio = paired_ratio(cold, warm, seconds=4.0)
        llm.reset_prefix_cache()
        computed, hit = (llm.generate([ask], greedy(answer), use_tqdm=False)[0] for _ in range(2))
    return Result(
        speedup=ratio.median,
        **ratio.interval,
        computed_cold=prompt - computed.num_cached_tokens,
        computed_warm=prompt - hit.num_cached_tokens,
        tokens_equal=computed.outputs[0].token_ids == hit.outputs[0].token_ids,
        repeats=ratio.repeats,
    )


@experiment("E58", "E47", seconds=30)
def disk_tier(ctx: Context, prompt: int = arg(200, 17, 800), answer: int = arg(6, 1, 16)) -> Result:
    """Share KV between engines through a folder of blocks, and compare with an engine that has only its own cache.

    One prompt in three engines: the first writes its blocks to the folder, the second has only its own cache, the
    third reads the folder.

    Returns: One engine serves a prompt and ends; another one gets the same prompt.
        own_hit [tokens]: Cached tokens when the first engine gets the prompt again.
        other_hit [tokens]: Cached tokens in a second engine that shares nothing with the first.
        shared_hit [tokens]: Cached tokens in a second engine that uses the same folder.
        shared_source: Where those were.
        bytes_read, block_bytes [bytes]
        tokens_equal: All of them give the same greedy answer.
    """
    tokens = [3 + 7 * i % 2000 for i in range(prompt)]
    settings: dict[str, Any] = {"max_model_len": prompt + answer + 16, "num_gpu_blocks_override": 128}

    def ask(llm: Any) -> Any:
        return llm.generate([{"prompt_token_ids": tokens}], greedy(answer), use_tqdm=False)[0]

    with TemporaryDirectory() as folder:
        shared: dict[str, Any] = {"kv_offloading_backend": f"disk:{folder}", "kv_offloading_size": 0.05}
        with ctx.llm(**settings, **shared) as first:
            outputs = [ask(first), ask(first)]
        with ctx.llm(**settings) as other:
            outputs.append(ask(other))
        with ctx.llm(**settings, **shared) as third:
            watched = Watched(third)
            outputs.append(ask(third))
            block_bytes = third.llm_engine.engine_core.config.cache.tiers.block_bytes
    _, own, other_hit, shared_hit = (output.num_cached_tokens for output in outputs)
    return Result(
        own_hit=own,
        other_hit=other_hit,
        shared_hit=shared_hit,
        shared_source=",".join(sorted(watched.requests[-1].cached_tokens_by_source)),
        bytes_read=watched.total("kv_bytes_received"),
        block_bytes=block_bytes,
        tokens_equal=all(o.outputs[0].token_ids == outputs[0].outputs[0].token_ids for o in outputs),
    )


@experiment("E64", seconds=20)
def image_hits(
    ctx: Context,
    same_image: bool = True,
    text_differs: Literal["nowhere", "front", "behind"] = "nowhere",
    words_before: int = arg(20, 0, 60),
    words_behind: int = arg(20, 1, 60),
    block_size: int = arg(16, 4, 64),
) -> Result:
    """Send prompts with images and look at placeholder tokens, cache hits and encoder runs.

    Two prompts with one image each, on the shipped model with the toy encoder of engine.multimodal. text_differs: the
    second prompt has another first word, or another word right after the image.

    Returns: Figures of the second prompt.
        prompt_tokens [tokens]
        placeholder_tokens [tokens]: Tokens that stand for the image.
        image_at [position]; cached_tokens [tokens]
        encoder_runs [runs]: Encoder runs for both prompts.
        same_token_ids: Both prompts have the same token ids.
    """
    import numpy as np

    from engine.multimodal.encoder import NUM_TOKENS

    front = "price" if text_differs == "front" else "stock"
    behind = "price" if text_differs == "behind" else "stock"
    outputs = []
    with ctx.llm(
        limit_mm_per_prompt={"image": 1}, max_model_len=512, block_size=block_size, enforce_eager=True
    ) as llm:
        watched = Watched(llm)
        for grey, first, second in ((60, "stock", "stock"), (60 if same_image else 200, front, behind)):
            text = f"{first}{' manga' * words_before} <image> {second}{' manga' * words_behind}"
            picture = np.full((40, 40, 3), grey, np.uint8)
            prompt = {"prompt": text, "multi_modal_data": {"image": picture}}
            outputs += llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)
    ids = [output.prompt_token_ids for output in outputs]
    return Result(
        prompt_tokens=len(ids[1]),
        placeholder_tokens=NUM_TOKENS,
        image_at=ids[1].index(0),
        cached_tokens=outputs[1].num_cached_tokens,
        encoder_runs=watched.total("encoder_cache_queries") - watched.total("encoder_cache_hits"),
        same_token_ids=ids[0] == ids[1],
    )


@experiment("E57", seconds=20)
def window_on_full_model(
    ctx: Context,
    window: int = arg(64, 8, 2048),
    prompt: int = arg(300, 8, 1000),
    answer: int = arg(12, 2, 32),
) -> Result:
    """Force a sliding window on the shipped model, which was trained with full attention, and compare its outputs.

    Returns: Full attention against the same weights with a window.
        same_tokens: Greedy answers are equal.
        first_difference [position]: First output position that differs; -1 if none does.
        logprob_change [nats]: Largest difference of a prompt token's log probability.
        window_blocks, full_blocks [blocks]: Blocks of the request at the end, with the window and without.
    """
    tokens = [3 + 7 * i % 2000 for i in range(prompt)]
    limited = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}

    def run(**settings: Any) -> tuple[list[int], list[float], int]:
        """Return (answer, log probabilities of the prompt's tokens, blocks held before the last token)."""
        params = greedy(answer, prompt_logprobs=0)
        with ctx.llm(max_model_len=prompt + answer + 16, **settings) as llm:
            watched = Watched(llm)
            (output,) = llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
        entries = zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=True)
        chosen = [entry[token].logprob for token, entry in entries if entry is not None]
        return list(output.outputs[0].token_ids), chosen, watched.blocks[-1]

    full, cut = run(), run(hf_overrides=limited)
    differs = [a != b for a, b in zip(full[0], cut[0], strict=True)]
    return Result(
        same_tokens=not any(differs),
        first_difference=differs.index(True) if any(differs) else -1,
        logprob_change=max(abs(a - b) for a, b in zip(full[1], cut[1], strict=True)),
        window_blocks=cut[2],
        full_blocks=full[2],
    )
