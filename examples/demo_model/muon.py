"""Muon for matrices, AdamW for the rest, both driven by one learning-rate factor."""

from __future__ import annotations

import torch
from torch import Tensor
from workers import add_over_workers, average_gradients

# quintic Newton-Schulz: pushes every singular value of a matrix of norm <= 1 near 1 in five steps
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(update: Tensor, steps: int = 5) -> Tensor:
    """Return the nearly orthogonal factor of each matrix of `update` [batch, rows, columns], in bfloat16 products."""
    a, b, c = COEFFICIENTS
    transposed = update.shape[-2] > update.shape[-1]
    x = update.transpose(-1, -2) if transposed else update
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(steps):
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.transpose(-1, -2) if transposed else x).float()


class Muon:
    """Nesterov momentum whose matrix updates are orthogonalised; matrices of one shape are done in one batch.

    Each process orthogonalises its share of the matrices; the updates are then summed.
    """

    def __init__(
        self, matrices: list[Tensor], learning_rate: float, weight_decay: float, *, rank: int = 0, world: int = 1
    ) -> None:
        self.learning_rate, self.weight_decay, self.momentum = learning_rate, weight_decay, 0.95
        self.matrices, self.world = matrices, world
        self.buffers = [torch.zeros_like(matrix) for matrix in matrices]
        # dealt out by size, so that both processes have about the same work
        order = sorted(range(len(matrices)), key=lambda index: -matrices[index].numel())
        self.groups: dict[torch.Size, list[int]] = {}
        for place, index in enumerate(order):
            if place % world == rank:
                self.groups.setdefault(matrices[index].shape[-2:], []).append(index)

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Update every matrix from its gradient, at learning_rate * factor, and clear the gradients."""
        rate = self.learning_rate * factor
        flat = torch.zeros(sum(matrix.numel() for matrix in self.matrices))
        for parameter, buffer in zip(self.matrices, self.buffers, strict=True):
            buffer.lerp_(parameter.grad, 1 - self.momentum)
        updates = flat.split([matrix.numel() for matrix in self.matrices])
        for shape, indices in self.groups.items():
            wanted = [
                self.matrices[index].grad.lerp(self.buffers[index], self.momentum).reshape(-1, *shape)
                for index in indices
            ]
            done = orthogonalise(torch.cat(wanted)).split([len(part) for part in wanted])
            for index, part in zip(indices, done, strict=True):
                updates[index].copy_(part.flatten())
        add_over_workers(flat, self.world)
        for parameter, update in zip(self.matrices, updates, strict=True):
            rows, columns = parameter.shape[-2:]
            parameter.mul_(1 - rate * self.weight_decay)
            parameter.add_(update.view_as(parameter), alpha=-rate * max(1.0, rows / columns) ** 0.5)
            parameter.grad = None


class Optimiser:
    """Muon on the given matrices and AdamW on the other parameters."""

    def __init__(
        self,
        matrices: list[Tensor],
        others: list[Tensor],
        *,
        muon_rate: float = 0.02,
        adam_rate: float = 3e-3,
        weight_decay: float = 0.1,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.parameters, self.world = [*matrices, *others], world
        self.muon = Muon(matrices, muon_rate, weight_decay, rank=rank, world=world)
        self.adam = torch.optim.AdamW(others, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.adam_rate = adam_rate

    def step(self, factor: float) -> None:
        """Apply one update at `factor` of the peak learning rates and clear the gradients."""
        average_gradients(self.parameters, self.world)
        self.muon.step(factor)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_rate * factor
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)


def rate_factor(progress: float, step: int, warm_up: int) -> float:
    """Learning-rate factor: linear warm-up by steps, flat to 40 % of the time, then linear to 2 %."""
    decay = 1.0 if progress < 0.4 else max(0.02, 1 - 0.98 * (progress - 0.4) / 0.6)
    return min(1.0, (step + 1) / warm_up) * decay
