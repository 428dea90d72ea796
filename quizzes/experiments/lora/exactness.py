import json
import tempfile
from pathlib import Path
from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment, greedy, worker_of
from quizzes.experiments.lora._peft import ATTENTION, MLP, merge, write


@experiment("E43", seconds=60, megabytes=3000)
def exactness(
    ctx: Context,
    ranks: list[int] = arg([8, 16], 1, 64, count=(2, 2)),
    max_lora_rank: Literal[8, 16, 32, 64] = 16,
    too_large: int = arg(32, 2, 128),
    same_modules: bool = False,
    max_tokens: int = arg(6, 1, 16),
) -> Result:
    """Serve two adapters and the base in one batch, and compare them with merged weights.

    Random adapters of different ranks on the fp32 shop model; a third exceeds max_lora_rank. same_modules: both adapt
    all seven matrices; otherwise the first adapts attention and the second the MLP.

    Returns:
        Two adapters and the base in one batch, and each adapter alone as a merged model.
        worst_difference [nats]: Largest difference of a log-probability between the mixed batch and the merged models.
        same_tokens
        different_answers [answers]: Distinct answers of base and adapters.
        adapters_in_one_step [adapters]
        too_large: Outcome for an adapter whose rank exceeds max_lora_rank.
        message: Message of the refusal.
        truncated_difference [nats]: Largest difference between the larger adapter and the same adapter cut to
            max_lora_rank.
    """
    from engine import LLM
    from engine.frontend.input_processor import InvalidRequestError

    prompt = "Readers of Silver Harbor enjoy"
    params = greedy(max_tokens, logprobs=2048)
    modules = [ATTENTION + MLP] * 2 if same_modules else [ATTENTION, MLP]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        paths = [write(folder / f"a{i}", rank, modules[i], 10 + i) for i, rank in enumerate(ranks)]
        large = write(folder / "large", too_large, ATTENTION + MLP, 77)
        message, widest = "", 0
        settings: dict[str, Any] = {
            "enable_lora": True,
            "max_loras": 3,
            "max_lora_rank": max_lora_rank,
            "dtype": "float32",
        }
        everything: dict[str, Any] = {"max_logprobs": 2048, "max_num_seqs": 8}
        with ctx.llm(**everything, **settings) as llm:
            adapters = [llm.load_lora_adapter(path.name, str(path)) for path in paths]
            mixed = llm.generate([prompt] * 3, params, lora_request=[None, *adapters], use_tqdm=False)
            widest = len(worker_of(llm).lora.slot_of)
            try:
                llm.load_lora_adapter("large", str(large))
            except InvalidRequestError as error:
                message = str(error).replace(place, "")

        def merged(path: Path) -> Any:
            with LLM(str(path), dtype="float32", num_gpu_blocks_override=64, **everything) as llm:
                return llm.generate([prompt], params, use_tqdm=False)[0]

        alone = [merged(merge(path, folder / f"m-{path.name}")) for path in paths]
        whole = merged(merge(large, folder / "m-large"))
        cut = merged(merge(truncate(large, folder / "cut", min(max_lora_rank, too_large)), folder / "m-cut"))
    return Result(
        worst_difference=max(difference(a, b) for a, b in zip(mixed[1:], alone, strict=True)),
        same_tokens=all(tokens(a) == tokens(b) for a, b in zip(mixed[1:], alone, strict=True)),
        different_answers=len({round(first_logprob(output), 3) for output in mixed}),
        adapters_in_one_step=widest,
        too_large="refused" if message else "served",
        message=message,
        truncated_difference=difference(whole, cut),
    )


def truncate(adapter: Path, folder: Path, rank: int) -> Path:
    """Cut an adapter to the first `rank` rows of A and columns of B."""
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    tensors = load_file(str(adapter / "adapter_model.safetensors"))
    config = json.loads((adapter / "adapter_config.json").read_text())
    cut = {
        name: (tensor[:rank] if "lora_A" in name else tensor[:, :rank]).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(cut, str(folder / "adapter_model.safetensors"))
    (folder / "adapter_config.json").write_text(json.dumps({**config, "r": rank, "lora_alpha": rank}))
    return folder


def tokens(output: Any) -> list[int]:
    return list(output.outputs[0].token_ids)


def first_logprob(output: Any) -> float:
    return float(next(iter(output.outputs[0].logprobs[0].values())).logprob)


def difference(a: Any, b: Any) -> float:
    """Return the largest difference of log-probabilities at the first position; later ones may follow other tokens."""
    ours, theirs = a.outputs[0].logprobs[0], b.outputs[0].logprobs[0]
    return float(max(abs(ours[token].logprob - theirs[token].logprob) for token in ours))
