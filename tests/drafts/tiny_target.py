"""A tiny glm5_next with random weights: KDA, indexed, KDA, indexed; pools of four, eight rows selected of many."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

transformers: Any = pytest.importorskip("transformers", reason="needs the hf extra: pip install draft-circuit[hf]")
adapter: Any = importlib.import_module("drafts.targets.transformers_target")

VOCAB_SIZE = 64
NUM_LAYERS = 4


def tiny_config() -> Any:
    text = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": NUM_LAYERS,
        "layer_types": ["linear_attention", "indexed_attention"] * 2,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "indexer_types": ["full"] * NUM_LAYERS,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        # with few heads, relu leaves pools at a score of exactly 0, and transformers' topk breaks such ties differently
        # for rows of another length: two passes then select differently, with or without a rollback
        "index_n_heads": 16,
        "index_head_dim": 8,
        "index_kpool": 4,
        "index_topk": 8,
        "linear_num_heads": 2,
        "linear_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 4,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "intermediate_size": 16,
        "out_hidden_size": 32,
        "projection_intermediate_size": 16,
    }
    special = dict.fromkeys(("image_token_id", "image_start_token_id", "image_end_token_id"), 2)
    special |= dict.fromkeys(("video_token_id", "video_start_token_id", "video_end_token_id"), 3)
    return transformers.Glm5NextConfig(text_config=text, vision_config=vision, **special)


def tiny_model(*, seed: int = 0) -> Any:
    """A model whose every parameter is perturbed, so that no norm, bias or gate is at its neutral start."""
    torch.manual_seed(seed)
    model = transformers.Glm5NextForConditionalGeneration(tiny_config()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def cache_tensors(cache: Any) -> dict[str, Tensor]:
    """Every state tensor of a cache by layer and name."""
    tensors: dict[str, Tensor] = {}
    for index, layer in enumerate(cache.layers):
        if type(layer).__name__ == "LinearAttentionLayer":
            tensors |= {f"{index}.conv": layer.conv_states[0], f"{index}.recurrent": layer.recurrent_states[0]}
            continue
        tensors |= {f"{index}.keys": layer.keys, f"{index}.values": layer.values}
        if type(layer).__name__ == "DynamicIndexedLayer":
            tensors[f"{index}.indexer_keys"] = layer.indexer_keys
    return tensors


def random_tokens(number: int, *, seed: int) -> list[int]:
    return torch.randint(4, VOCAB_SIZE, (number,), generator=torch.Generator().manual_seed(seed)).tolist()
