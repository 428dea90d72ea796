"""Muon for the matrices inside the layers, AdamW for embeddings and norms, on 32-bit master weights.

Muon replaces the momentum of a matrix with the nearest orthogonal matrix, so that every direction of the weight moves
equally far. Rare associations, which look-ups need, then train as fast as frequent ones.
Source: Keller Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

NORM_SHARE = 0.1  # norms scale the whole stream, so they move less than embeddings
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return the approximate orthogonal factor of each matrix in a [count, rows, columns] stack."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    a, b, c = NEWTON_SCHULZ
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).float()


class MasterOptimizer:
    """Keeps 32-bit weights, updates them from the 16-bit model's gradients and copies them to the model."""

    def __init__(self, model: nn.Module, weight_decay: float) -> None:
        self.weight_decay = weight_decay
        self.weights = {name: weight.detach().float().clone() for name, weight in model.named_parameters()}
        self.momentum = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        vectors = [name for name in self.weights if not self._is_matrix(name)]
        self.square = {name: torch.zeros_like(self.weights[name]) for name in vectors}
        self.steps = 0

    def _is_matrix(self, name: str) -> bool:
        return self.weights[name].ndim == 2 and "embed_tokens" not in name

    @torch.no_grad()
    def step(self, model: nn.Module, matrix_lr: float, vector_lr: float) -> None:
        """Update every weight and clear the gradients."""
        self.steps += 1
        by_shape: dict[torch.Size, list[str]] = {}
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradient = parameter.grad.float()
            if self._is_matrix(name):
                self.momentum[name].lerp_(gradient, 0.05)
                gradient.lerp_(self.momentum[name], 0.95)  # Nesterov: look ahead along the momentum
                parameter.grad = gradient.to(parameter.dtype)
                by_shape.setdefault(gradient.shape, []).append(name)
            else:
                self._adam(name, gradient, vector_lr if parameter.ndim == 2 else NORM_SHARE * vector_lr)
        gradients = {name: cast(Tensor, parameter.grad) for name, parameter in model.named_parameters()}
        for shape, names in by_shape.items():
            updates = orthogonalize(torch.stack([gradients[name].float() for name in names]))
            rate = matrix_lr * max(1.0, shape[0] / shape[1]) ** 0.5
            for name, update in zip(names, updates, strict=True):
                self.weights[name].mul_(1 - matrix_lr * self.weight_decay).add_(update, alpha=-rate)
        for name, parameter in model.named_parameters():
            parameter.copy_(self.weights[name])
            parameter.grad = None

    def _adam(self, name: str, gradient: Tensor, lr: float) -> None:
        first, second = self.momentum[name], self.square[name]
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient.square(), 0.05)
        corrected = second / (1 - 0.95**self.steps)
        self.weights[name].addcdiv_(first / (1 - 0.9**self.steps), corrected.sqrt() + 1e-8, value=-lr)

    def state_dict(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("weights", "momentum", "square", "steps")}

    def load_state_dict(self, state: dict[str, Any], model: nn.Module) -> None:
        """Restore a saved state, in the model too."""
        self.weights, self.momentum, self.square = state["weights"], state["momentum"], state["square"]
        self.steps = state["steps"]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self.weights[name])
