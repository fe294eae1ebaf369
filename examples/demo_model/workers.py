"""Data-parallel training in a few single-threaded processes.

Two processes of one thread each beat one process of two threads on a machine that others use as well: they meet once
a step instead of at the end of every parallel region.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor


def _start(rank: int, stage: Callable[..., None], world: int, rendezvous: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    stage(rank, world, *arguments)
    if world > 1:
        dist.destroy_process_group()


def run_stage(stage: Callable[..., None], world: int, *arguments: Any) -> None:
    """Run `stage(rank, world, *arguments)` in `world` processes and wait; an exception in one ends all."""
    # before the children import torch: one OpenMP thread each
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_start, (stage, world, str(Path(folder) / "rendezvous"), arguments), nprocs=world)


def average_gradients(parameters: list[Tensor], world: int) -> None:
    """Replace every gradient by its mean over the processes."""
    if world == 1:
        return
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= world
    for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def add_over_workers(value: Tensor, world: int) -> Tensor:
    """Sum a tensor over the processes, in place."""
    if world > 1:
        dist.all_reduce(value)
    return value


def wait_for_all(world: int) -> None:
    """Return when every process has come here."""
    if world > 1:
        dist.barrier()


def agree(value: float, world: int) -> float:
    """Return rank 0's value on every process."""
    if world == 1:
        return value
    shared = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(shared, 0)
    return shared.item()
