"""Adapters on the live engine: exactness and time."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from quizzes.experiments import Context, NeedsHardware, Result, arg, experiment, generate, greedy
from quizzes.experiments.context import worker_of
from quizzes.experiments.measure import paired_ratio

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def write(folder: Path, rank: int, targets: Sequence[str], seed: int) -> Path:
    """Write a random adapter for the shop model, strong enough to change its output."""
    import torch
    from safetensors.torch import load_file, save_file

    from engine.zoo.registry import MODELS

    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in load_file(str(MODELS / "shop" / "model.safetensors")).items():
        if name.split(".")[-2] in targets:
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            rows, columns = weight.shape
            for half, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                noise = torch.randn(shape, generator=generator)
                tensors[f"{prefix}.lora_{half}.weight"] = noise * 0.5 / shape[1] ** 0.5
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "base_model_name_or_path": "shop", "bias": "none"}
    ranks = {"r": rank, "lora_alpha": rank, "target_modules": list(targets)}
    (folder / "adapter_config.json").write_text(json.dumps(config | ranks))
    return folder


def merge(adapter: Path, folder: Path) -> Path:
    """Write the shop model with W + s B A in place of W, in fp32."""
    from safetensors.torch import load_file, save_file

    from engine.zoo.registry import MODELS

    shutil.copytree(MODELS / "shop", folder)
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    halves = load_file(str(adapter / "adapter_model.safetensors"))
    weights = {name: weight.float() for name, weight in load_file(str(folder / "model.safetensors")).items()}
    for name in weights:
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{prefix}.lora_A.weight" in halves:
            a, b = (halves[f"{prefix}.lora_{half}.weight"].float() for half in "AB")
            weights[name] = weights[name] + scale * (b @ a)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


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

    Returns: Two adapters and the base in one batch, and each adapter alone as a merged model.
        worst_difference [nats]: Largest difference of a log-probability between the mixed batch and the merged models.
        same_tokens
        different_answers [answers]: Distinct answers of base and adapters.
        adapters_in_one_step [adapters]
        too_large: Outcome for an adapter whose rank exceeds max_lora_rank.
        message: Message of the refusal.
        truncated_difference [nats]: Largest difference between the larger adapter and its cut to max_lora_rank.
    """
    from engine import LLM
    from engine.frontend.input_processor import InvalidRequestError

    prompt, params = "Readers of Silver Harbor enjoy", greedy(max_tokens, logprobs=2048)
    modules = [ATTENTION + MLP] * 2 if same_modules else [ATTENTION, MLP]
    common: dict[str, Any] = {"dtype": "float32", "max_logprobs": 2048, "max_num_seqs": 8}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        paths = [write(folder / f"a{i}", rank, modules[i], 10 + i) for i, rank in enumerate(ranks)]
        large = write(folder / "large", too_large, ATTENTION + MLP, 77)
        message = ""
        with ctx.llm(enable_lora=True, max_loras=3, max_lora_rank=max_lora_rank, **common) as llm:
            adapters = [llm.load_lora_adapter(path.name, str(path)) for path in paths]
            mixed = generate(llm, [prompt] * 3, params, lora_request=[None, *adapters])
            widest = len(worker_of(llm).lora.slot_of)
            try:
                llm.load_lora_adapter("large", str(large))
            except InvalidRequestError as error:
                message = str(error).replace(place, "")

        def merged(path: Path) -> Any:
            weights = merge(path, folder / f"m-{path.name}")
            with LLM(str(weights), num_gpu_blocks_override=64, **common) as llm:
                return generate(llm, [prompt], params)[0]

        pairs = list(zip(mixed[1:], map(merged, paths), strict=True))
        whole, cut = merged(large), merged(truncate(large, folder / "cut", min(max_lora_rank, too_large)))
    return Result(
        worst_difference=max(difference(a, b) for a, b in pairs),
        same_tokens=all(list(a.token_ids) == list(b.token_ids) for a, b in pairs),
        different_answers=len({round(next(iter(one.logprobs[0].values())).logprob, 3) for one in mixed}),
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


def difference(a: Any, b: Any) -> float:
    """Return the largest difference of log-probabilities at the first position; later ones may follow other tokens."""
    ours, theirs = a.logprobs[0], b.logprobs[0]
    return float(max(abs(ours[token].logprob - theirs[token].logprob) for token in ours))


SHIPPED = ("recommend", "support", "ja")


@experiment("E44", seconds=60, megabytes=2500, determinism="statistical")
def overhead(
    ctx: Context,
    adapters: int = arg(3, 1, 3),
    batch: int = arg(8, 1, 32),
    tokens: int = arg(24, 4, 64),
    seconds: float = arg(6.0, 1, 20),
    device: Literal["auto", "cuda"] = "auto",
) -> Result:
    """Time decoding with LoRA adapters against the base alone, in interleaved pairs.

    device: cuda requires a GPU, auto takes the best available.

    Returns: Time of a decoded batch with adapters over the time without; 1.1 is 10 % more.
        ratio, lo [x]
        hi [x]: Bootstrap 95 % interval of the median.
        penalty [share]: Loss of throughput: 1 - 1 / ratio.
        penalty_lo, penalty_hi [share]; repeats [pairs]; adapters [adapters]
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise NeedsHardware("this asks what adapters cost on a GPU, and there is none (CUDA)")
    prompts = [[30 + (11 * row + i) % 1500 for i in range(8)] for row in range(batch)]
    with ctx.llm(
        enable_lora=True, max_loras=3, max_num_seqs=batch, enable_prefix_caching=False, device=device
    ) as llm:
        loaded = [llm.load_lora_adapter(name, f"shop-lora-{name}") for name in SHIPPED[:adapters]]
        with_adapters = [loaded[row % adapters] for row in range(batch)]

        def run(loras: list[Any] | None) -> None:
            generate(llm, prompts, greedy(tokens), lora_request=loras)

        ratio = paired_ratio(lambda: run(with_adapters), lambda: run(None), seconds=seconds)
    return Result(
        ratio=ratio.median,
        **ratio.interval,
        penalty=1 - 1 / ratio.median,
        penalty_lo=1 - 1 / ratio.lo,
        penalty_hi=1 - 1 / ratio.hi,
        repeats=ratio.repeats,
        adapters=adapters,
    )
