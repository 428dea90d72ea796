"""The source lines of five ideas in each implementation of the kernel, looked up when they are shown."""

from __future__ import annotations

from app.debugger.source_lines import SourceLine, find_line

WALK = "app/debugger/kernel_walk/page_walk.py"
REFERENCE = "kernels/reference/attention.py"
CPU = "kernels/cpu/attention.cpp"
TRITON = "kernels/triton_ops/paged_tile.py"
TRITON_SPLIT = "kernels/triton_ops/split_kv_decode.py"
CUDA = "kernels/cuda/paged_decode.cu"

FORMS = ("this walk", "definition (torch)", "C++", "Triton", "CUDA")

_PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "block table -> block": (
        (WALK, "ids = torch.tensor([page.block_id])"),
        (REFERENCE, "pages = wide(dequantise_pages(kv[block_ids]"),
        (CPU, "block(batch.block_table + chunk.row"),
        (TRITON, "block = tl.load(blocks +"),
        (CUDA, "? table_row[token"),
    ),
    "m: running maximum": (
        (WALK, "new_m = torch.maximum(m, score_max)"),
        (REFERENCE, ".softmax(dim=-1)"),
        (CPU, "const float new_peak = std::max(peak"),
        (TRITON, "new_highest = tl.maximum(highest"),
        (CUDA, "m = fmaxf(m, score[u][g])"),
    ),
    "exp(m - m'): rescaling of earlier sums": (
        (WALK, "rescale = torch.exp(m - new_m)"),
        (REFERENCE, ".softmax(dim=-1)"),
        (CPU, "const float factor = exp_nonpositive(splat(peak - new_peak))"),
        (TRITON, "shrink = tl.exp2(highest - base)"),
        (CUDA, "const float rescale = decay(state.m[g], m)"),
    ),
    "l: running sum": (
        (WALK, "mass = mass * rescale + added"),
        (REFERENCE, ".softmax(dim=-1)"),
        (CPU, "mass *= factor;"),
        (TRITON, "total = total * shrink + tl.sum(weights"),
        (CUDA, "state.l[g] *= rescale;"),
    ),
    "acc: running sum of values": (
        (WALK, "acc = acc * rescale[:, None] + torch.einsum"),
        (REFERENCE, 'return torch.einsum("hqk,hkd->qhd"'),
        (CPU, "store(output + d, load(output + d) * factor)"),
        (TRITON, "acc = tl.dot(weights"),
        (CUDA, "state.acc[g][i] *= rescale;"),
    ),
    "acc / l at the end": (
        (WALK, "return PageWalk(visits, acc / mass[:, None])"),
        (REFERENCE, ".softmax(dim=-1)"),
        (CPU, "const float inverse = 1.0f / sum(scratch.mass[query])"),
        (TRITON_SPLIT, "result = tl.sum(weight[:, None] * acc, axis=0) / total"),
        (CUDA, "float value = l == 0 ? 0.0f : acc / l;"),
    ),
}


def places() -> dict[str, list[SourceLine | None]]:
    """Idea -> its line in each of FORMS; None if the source no longer contains it."""
    return {idea: [find_line(*place) for place in row] for idea, row in _PLACES.items()}
