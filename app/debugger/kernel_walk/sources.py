"""The source line of each calculation in every implementation of the kernel, looked up when it is shown."""

from __future__ import annotations

from typing import Any

from app.debugger.source_lines import SourceLine, find_line

WALK = "app/debugger/kernel_walk/page_walk.py"
REFERENCE = "kernels/reference/attention.py"
CPU = "kernels/cpu/attention.cpp"
CPU_PRODUCTS = "kernels/cpu/attention_products.h"
TRITON = "kernels/triton_ops/paged_tile.py"
TRITON_SPLIT = "kernels/triton_ops/split_kv_decode.py"
CUDA = "kernels/cuda/paged_fma.cuh"
CUDA_END = "kernels/cuda/paged_problem.cuh"

FORMS = ("this walk", "definition (torch)", "C++", "Triton", "CUDA")

_PLACES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("block", "entry of the block table"): (
        (WALK, "ids = torch.tensor([page.block_id])"),
        (REFERENCE, "pages = wide(dequantise_pages(kv[block_ids]"),
        (CPU, "block = batch.block_table + row"),
        (TRITON, "block = tl.load(blocks +"),
        (CUDA, "? table_row[token"),
    ),
    ("m′", "running maximum"): (
        (WALK, "new_m = torch.maximum(m, score_max)"),
        (REFERENCE, ".softmax(dim=-1)"),
        (CPU, "new_peaks[i] = seen.nothing() ? peaks[i] : std::max("),
        (TRITON, "new_highest = tl.maximum(highest"),
        (CUDA, "m = fmaxf(m, score[u][g])"),
    ),
    ("r", "rescaling of the earlier sums"): (
        (WALK, "rescale = torch.exp(m - new_m)"),
        (REFERENCE, ".softmax(dim=-1)"),
        (CPU, "exp_nonpositive(before - now)"),
        (TRITON, "shrink = tl.exp2(highest - base)"),
        (CUDA, "const float rescale = decay(state.m[g], m)"),
    ),
    ("l′", "running sum of exponentials"): (
        (WALK, "mass = mass * rescale + added"),
        (REFERENCE, ".softmax(dim=-1)"),
        (CPU, "vfloat mass = scratch.masses[query + i] * scratch.factors[i];"),
        (TRITON, "total = total * shrink + tl.sum(weights"),
        (CUDA, "state.l[g] *= rescale;"),
    ),
    ("acc′", "running sum of values"): (
        (WALK, "acc = acc * rescale[:, None] + torch.einsum"),
        (REFERENCE, 'return torch.einsum("hqk,hkd->qhd"'),
        (CPU_PRODUCTS, "load(c + row * c_stride + v * LANES) * factors[row]"),
        (TRITON, "acc = tl.dot(weights"),
        (CUDA, "state.acc[g][i] *= rescale;"),
    ),
    ("out", "division at the end"): (
        (WALK, "return PageWalk(visits, acc / mass[:, None])"),
        (REFERENCE, ".softmax(dim=-1)"),
        (CPU, "const float inverse = 1.0f / sum(scratch.masses[query])"),
        (TRITON_SPLIT, "result = tl.sum(weight[:, None] * acc, axis=0) / total"),
        (CUDA_END, "float value = l == 0 ? 0.0f : acc / l;"),
    ),
}


def places() -> dict[tuple[str, str], list[SourceLine | None]]:
    """(name in the drawing's formulas, meaning) -> its line in each of FORMS; None if the source has no such line."""
    return {idea: [find_line(*place) for place in row] for idea, row in _PLACES.items()}


def code_by_form() -> list[dict[str, Any]]:
    """Return for each of FORMS the lines that the drawing shows beside its formulas."""
    table = places()
    return [
        {
            "form": form,
            "lines": [
                {"name": name, "idea": idea, "place": str(line), "text": line.text}
                for (name, idea), row in table.items()
                if (line := row[index]) is not None
            ],
        }
        for index, form in enumerate(FORMS)
    ]
