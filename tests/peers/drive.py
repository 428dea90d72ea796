"""Run one job through an engine and describe what came out. The same code drives both engines: our names are vLLM's.

A job is JSON, so that it can cross into vLLM's environment, and this file imports nothing of either engine:

    model       folder of the checkpoint
    engine      keyword arguments of LLM
    rounds      [[prompt token ids, ...], ...]: one round after the other, so that later ones can hit the prefix
                cache that earlier ones filled
    sampling    SamplingParams for all prompts, or a list with one for each prompt of a round
    adapters    [folder or null, ...], one for each prompt of a round: its LoRA adapter
    beam        BeamSearchParams: search instead of sampling
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def run_job(job: dict[str, Any], llm: Any, names: Any) -> dict[str, Any]:
    """Return the outputs of every prompt of every round.

    llm: an LLM made for this job. names: the module that has SamplingParams, StructuredOutputsParams,
    LoRARequest and BeamSearchParams.
    """
    if job["beam"]:
        params = names.BeamSearchParams(**job["beam"])
        searches = [
            search for prompts in job["rounds"] for search in llm.beam_search(_as_prompts(prompts), params)
        ]
        return {"requests": [], "searches": [_describe_search(search) for search in searches]}
    requests = []
    for prompts in job["rounds"]:
        outputs = llm.generate(
            _as_prompts(prompts),
            _sampling(job["sampling"], names),
            lora_request=_adapters(job["adapters"], names),
            use_tqdm=False,
        )
        requests += [_describe(output) for output in outputs]
    return {"requests": requests, "searches": []}


def _as_prompts(prompts: list[list[int]]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": ids} for ids in prompts]


def _sampling(sampling: dict[str, Any] | list[dict[str, Any]], names: Any) -> Any:
    if isinstance(sampling, list):
        return [_sampling(one, names) for one in sampling]
    if structure := sampling.get("structured_outputs"):
        sampling = sampling | {"structured_outputs": names.StructuredOutputsParams(**structure)}
    return names.SamplingParams(**sampling)


def _adapters(folders: Sequence[str | None], names: Any) -> Any:
    if not folders:
        return None
    numbers = {folder: i for i, folder in enumerate(sorted({f for f in folders if f}), 1)}
    return [names.LoRARequest(f"adapter-{numbers[f]}", numbers[f], f) if f else None for f in folders]


def _describe(output: Any) -> dict[str, Any]:
    return {
        "completions": [
            {
                "token_ids": list(completion.token_ids),
                "finish_reason": completion.finish_reason,
                "logprobs": _plain(completion.logprobs),
            }
            for completion in output.outputs
        ],
        "prompt_logprobs": _plain(output.prompt_logprobs),
        "num_cached_tokens": output.num_cached_tokens,
    }


def _describe_search(search: Any) -> list[dict[str, Any]]:
    return [{"tokens": list(beam.tokens), "cum_logprob": beam.cum_logprob} for beam in search.sequences]


def _plain(logprobs: Any) -> list[dict[str, float]]:
    """Per position {token id: logprob}; ids as text, as JSON has them. A position without any is empty."""
    return [
        {str(token): entry.logprob for token, entry in (position or {}).items()}
        for position in logprobs or []
    ]
