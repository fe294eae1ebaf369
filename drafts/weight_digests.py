"""Fingerprints of weights, by which an artifact knows the checkpoint it was compiled for."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

SAMPLED_ELEMENTS = 16384  # of each weight: reading all of a large checkpoint would take longer than loading it


def weight_digests(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return per weight a hash of its dtype, its shape and an even sample of its values, by name, sorted."""
    return {name: _digest(weight) for name, weight in sorted(weights.items())}


def different_weights(weights: Mapping[str, Tensor], expected: Mapping[str, str]) -> list[str]:
    """Return the names of weights that are missing, or not the ones that `expected` was taken of."""
    return [name for name, digest in expected.items() if name not in weights or _digest(weights[name]) != digest]


def _digest(weight: Tensor) -> str:
    flat = weight.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLED_ELEMENTS)].contiguous().cpu()
    digest = hashlib.sha256(f"{weight.dtype} {list(weight.shape)};".encode())
    digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
