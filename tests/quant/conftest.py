"""Folders that the tests of this part share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.quant.quantizer.encode import stored_dtype
from engine.quant.quantizer.recipe import Recipe
from engine.quant.quantizer.run import Report, load_float_model, quantize, write_checkpoint
from tests.quant.models import samples, tiny_folder


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def float_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("float"))


Quantized = tuple[Path, dict[str, torch.Tensor], Report]


@pytest.fixture(scope="session")
def quantized(float_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Quantized]:
    """quantized(method, **recipe): the folder, the matrices it stands for in fp32, and the report."""
    made: dict[str, Quantized] = {}

    def make(method: str, *, source: Path = float_folder, **options: Any) -> Quantized:
        key = repr((method, source, sorted(options.items())))
        if key not in made:
            recipe = Recipe.create(method, **{"group_size": 32, **options})
            model, original = load_float_model(source)
            report = Report("tiny", recipe)
            stored = quantize(model, recipe, samples(), original, report)
            folder = tmp_path_factory.mktemp(method) / "model"
            write_checkpoint(source, folder, stored, recipe, stored_dtype(recipe, original), report)
            dtype = stored_dtype(recipe, original)
            matrices = {f"{matrix.name}.weight" for matrix in report.matrices}
            meant = {
                name: weight if name in matrices else weight.to(dtype).float()
                for name, weight in model.state_dict().items()
            }
            made[key] = folder, meant, report
        return made[key]

    return make
