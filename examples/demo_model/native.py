"""Torch operators with gradients on top of `native.cpp`: the KDA recurrence and the 2x2 Sinkhorn."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

HEAD_DIM = 32
CHUNK = 32
SOURCE = Path(__file__).with_name("native.cpp")


@functools.cache
def library() -> ctypes.CDLL:
    """Compile `native.cpp` once per content into the temporary folder and load it; raises when no compiler is found."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise RuntimeError("native: expected g++ or clang++ on PATH, found neither; install a C++ compiler with OpenMP")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"demo_model_native_{os.getuid()}_{digest}.so"
    if not built.exists():
        # built under another name first: a second process never loads half a file
        partial = built.with_suffix(f".{os.getpid()}.so")
        flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, str(SOURCE), "-o", str(partial)], check=True)
        partial.rename(built)
    return ctypes.CDLL(str(built))


def _pointers(*tensors: Tensor | None) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]


def _sizes(q: Tensor) -> list[ctypes.c_int64]:
    if q.dtype != torch.float32 or q.shape[-1] != HEAD_DIM:
        raise ValueError(f"kda: expected float32 [B, T, H, {HEAD_DIM}], got {q.dtype} {tuple(q.shape)}")
    return [ctypes.c_int64(size) for size in q.shape[:3]]


@torch.library.custom_op("demo_model::kda", mutates_args=())
def kda(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Run the recurrence over whole sequences from a zero state.

    q, k, v, decay: float32 [B, T, H, 32], beta [B, T, H]; q and k already normalised and scaled, decay = exp(g).
    Returns the outputs [B, T, H, 32] and the states kept for the gradient.
    """
    q, k, v, decay, beta = (x.contiguous() for x in (q, k, v, decay, beta))
    batch, tokens, heads, _ = q.shape
    out = torch.empty_like(q)
    state = q.new_zeros(batch, heads, HEAD_DIM, HEAD_DIM)
    kept = q.new_empty(batch, heads, -(-tokens // CHUNK), HEAD_DIM, HEAD_DIM)
    library().kda_forward(*_pointers(q, k, v, decay, beta, out, state, kept), *_sizes(q))
    return out, kept


@kda.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    batch, tokens, heads, _ = q.shape
    kept = q.new_empty(batch, heads, -(-tokens // CHUNK), HEAD_DIM, HEAD_DIM)
    return q.new_empty(q.shape), kept


@torch.library.custom_op("demo_model::kda_backward", mutates_args=())
def kda_backward(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, kept: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, decay and beta."""
    q, k, v, decay, beta, grad = (x.contiguous() for x in (q, k, v, decay, beta, grad))
    grads = [torch.empty_like(x) for x in (q, k, v, decay, beta)]
    library().kda_backward(*_pointers(q, k, v, decay, beta, kept, grad, *grads), *_sizes(q))
    return tuple(grads)


@kda_backward.register_fake
def _(q, k, v, decay, beta, kept, grad):
    return tuple(x.new_empty(x.shape) for x in (q, k, v, decay, beta))


def _setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx, grad_out: Tensor, grad_kept: Tensor | None):
    return kda_backward(*ctx.saved_tensors, grad_out)


kda.register_autograd(_backward, setup_context=_setup)


def kda_step(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """Run the recurrence from `state` [B, H, 32, 32], which is updated in place; no gradient. Returns [B, T, H, 32]."""
    q, k, v, decay, beta = (x.contiguous() for x in (q, k, v, decay, beta))
    out = torch.empty_like(q)
    library().kda_forward(*_pointers(q, k, v, decay, beta, out, state, None), *_sizes(q))
    return out


@torch.library.custom_op("demo_model::sinkhorn", mutates_args=())
def sinkhorn(matrix: Tensor, eps: float, iterations: int) -> Tensor:
    """Make positive 2x2 matrices [..., 4] (row by row) doubly stochastic; columns first, float32."""
    matrix = matrix.contiguous()
    out = torch.empty_like(matrix)
    library().sinkhorn_forward(*_pointers(matrix, out), *_settings(matrix, eps, iterations))
    return out


def _settings(matrix: Tensor, eps: float, iterations: int) -> list[ctypes.c_float | ctypes.c_int64]:
    if matrix.dtype != torch.float32 or matrix.shape[-1] != 4:
        raise ValueError(f"sinkhorn: expected float32 [..., 4], got {matrix.dtype} {tuple(matrix.shape)}")
    return [ctypes.c_float(eps), ctypes.c_int64(iterations), ctypes.c_int64(matrix.numel() // 4)]


@sinkhorn.register_fake
def _(matrix: Tensor, eps: float, iterations: int) -> Tensor:
    return matrix.new_empty(matrix.shape)


@torch.library.custom_op("demo_model::sinkhorn_backward", mutates_args=())
def sinkhorn_backward(matrix: Tensor, grad: Tensor, eps: float, iterations: int) -> Tensor:
    """Return the gradient of `matrix`."""
    matrix, grad = matrix.contiguous(), grad.contiguous()
    out = torch.empty_like(matrix)
    library().sinkhorn_backward(*_pointers(matrix, grad, out), *_settings(matrix, eps, iterations))
    return out


@sinkhorn_backward.register_fake
def _(matrix: Tensor, grad: Tensor, eps: float, iterations: int) -> Tensor:
    return matrix.new_empty(matrix.shape)


def _sinkhorn_setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.settings = inputs[1:]


def _sinkhorn_backward(ctx, grad: Tensor):
    return sinkhorn_backward(*ctx.saved_tensors, grad, *ctx.settings), None, None


sinkhorn.register_autograd(_sinkhorn_backward, setup_context=_sinkhorn_setup)
