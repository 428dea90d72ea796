from typing import Any, Literal

from engine.config import EngineArgs
from quizzes.experiments import Context, Result, experiment


@experiment("E46", seconds=30, megabytes=2500)
def shards(
    ctx: Context, split: Literal["tensor", "pipeline", "data"] = "tensor", size: Literal[1, 2, 4] = 2
) -> Result:
    """Count what each rank holds: a slice of every matrix (TP), some of the layers (PP), or everything (DP).

    Builds every rank's part of the model in this process, as its worker would.

    Returns:
        The shop model on `size` ranks.
        parameters [parameters]: By rank, norms and embedding included.
        matrix_parameters [parameters]: Parameters of the layers' matrices only.
        layers [layers]: By rank: layers it computes.
        q_rows [rows]: By rank: rows of the first layer's query projection that it holds; 0 without that layer.
        kv_heads [heads]: By rank: KV heads per layer.
        whole [parameters]
    """
    import torch

    from engine.models.hf_config import load_model_config
    from engine.models.registry import create_model
    from engine.parallel import Group, Ranks
    from engine.worker.worker import local_part

    config = load_model_config(EngineArgs.create(model="shop"))
    parameters, matrices, layers, rows, heads = [], [], [], [], []
    for rank in range(size):
        group = Group(tuple(range(size)), rank)
        alone = Group()
        ranks = {"tensor": Ranks(group, alone), "pipeline": Ranks(alone, group), "data": Ranks()}[split]
        model = create_model(config, torch.device("cpu"), ranks)
        counts = {name: tensor.numel() for name, tensor in checkpoint(model).items()}
        parameters.append(sum(counts.values()))
        matrices.append(sum(n for name, n in counts.items() if "_proj" in name))
        layers.append(len(ranks.layers(config.num_hidden_layers)))
        first = checkpoint(model).get("model.layers.0.self_attn.q_proj.weight")
        rows.append(0 if first is None else first.shape[0])
        heads.append(local_part(config, ranks).num_key_value_heads)
    whole = sum(
        tensor.numel() for tensor in checkpoint(create_model(config, torch.device("cpu"), Ranks())).values()
    )
    return Result(
        parameters=parameters,
        matrix_parameters=matrices,
        layers=layers,
        q_rows=rows,
        kv_heads=heads,
        whole=whole,
    )


def checkpoint(model: Any) -> dict[str, Any]:
    """Every tensor that loading fills, by its name in the checkpoint."""
    from engine.models.loader import checkpoint_tensors

    return checkpoint_tensors(model)
