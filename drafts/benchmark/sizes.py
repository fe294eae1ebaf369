"""The heads that are measured: two sizes with random weights, and any checkpoint."""

from pathlib import Path

import torch
from torch import Tensor

from drafts.config import DraftConfig, read_config
from drafts.decisions import default_decisions
from drafts.weights import head_weight_specs, load_weights

_COMMON = {
    "model_type": "glm5_next",
    "num_hidden_layers": 4,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-5,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "swiglu_limit": 10.0,
    "max_position_embeddings": 131072,
}
_SIZES: dict[str, dict[str, int]] = {
    "small": {
        "vocab_size": 4096,
        "hidden_size": 256,
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "num_attention_heads": 4,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_kpool": 4,
        "index_topk": 64,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 128,
    },
    "large": {
        "vocab_size": 65536,
        "hidden_size": 2048,
        "q_lora_rank": 768,
        "kv_lora_rank": 512,
        "num_attention_heads": 16,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_kpool": 16,
        "index_topk": 1024,
        "n_routed_experts": 32,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1024,
    },
}
DEFAULT_CONTEXT = {"small": 1024, "large": 8192}  # rows


def sized_config(size: str, dtype: torch.dtype) -> DraftConfig:
    """Return the config of a named size; ValueError lists the names."""
    if size not in _SIZES:
        raise ValueError(f"size {size!r}: expected one of {', '.join(_SIZES)}, or a checkpoint folder")
    dims = _SIZES[size]
    return DraftConfig.model_validate({**_COMMON, **dims, "qk_head_dim": dims["qk_nope_head_dim"], "dtype": dtype})


def random_weights(config: DraftConfig, *, seed: int = 0) -> dict[str, Tensor]:
    """Return weights of a scale that keeps activations near one, so that no path meets infinities or zeros."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for spec in head_weight_specs(config, target_norm=default_decisions(config).applies_target_norm):
        values = torch.randn(spec.shape, generator=generator)
        if len(spec.shape) > 1:
            values *= spec.shape[-1] ** -0.5
        elif not spec.name.endswith("bias"):
            values = 1.0 + 0.1 * values
        weights[spec.name] = values.to(spec.dtype)
    return weights


def checkpoint_head(folder: Path, dtype: torch.dtype) -> tuple[DraftConfig, dict[str, Tensor]]:
    """Return config and weights of a checkpoint's drafter."""
    config = read_config(folder, dtype=dtype)
    specs = head_weight_specs(config, target_norm=default_decisions(config).applies_target_norm)
    return config, load_weights(folder, specs)
