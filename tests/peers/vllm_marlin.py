"""Print 4-bit weights and scales in Marlin's layout, packed by vLLM, as JSON. Runs in vLLM's environment.

$PREP_VLLM_PYTHON tests/peers/vllm_marlin.py > tests/quant/marlin_of_vllm.json
"""

import json

import torch
from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_permute_scales
from vllm.model_executor.layers.quantization.utils.marlin_utils_test import get_weight_perm, marlin_weights

GROUP = 16


def main() -> None:
    cases = []
    for rows, columns in ((64, 16), (128, 32)):
        numbers = torch.arange(rows * columns)
        steps = (numbers * numbers * 7 + numbers // 5).view(rows, columns) % 16  # [N, K]
        scales = torch.arange(rows * (columns // GROUP)).view(rows, -1).float()  # [N, K / G]
        single = torch.arange(rows).view(rows, 1).float()
        words = marlin_weights(steps.T.contiguous().int(), columns, rows, 4, get_weight_perm(4))
        case = {
            "steps": "".join(f"{step:x}" for step in steps.flatten().tolist()),
            "rows": rows,
            "columns": columns,
            "words": words.tolist(),
            "single": marlin_permute_scales(single.T.contiguous(), columns, rows, columns).tolist(),
        }
        if columns > GROUP:
            grouped = marlin_permute_scales(scales.T.contiguous(), columns, rows, GROUP)
            case["grouped"] = grouped.tolist()
        cases.append(case)
    print(json.dumps(cases, separators=(",", ":")))


if __name__ == "__main__":
    main()
