"""Start from an earlier checkpoint of the same sizes instead of from random weights (`train.py --continue-from`)."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from mtp_reference import MtpLayer, load_mtp
from sizes import demo_config
from torch import Tensor
from transformers import Glm5NextConfig, Glm5NextForConditionalGeneration, Glm5NextTextConfig

NEW_HEAD_WEIGHT = 0.01


def widen_indexers(state: dict[str, Tensor], old: Glm5NextTextConfig, new: Glm5NextTextConfig) -> dict[str, Tensor]:
    """Give every indexer in `state` more heads: the old ones keep their scores, the new ones start nearly silent."""
    added = new.index_n_heads - old.index_n_heads
    if added < 0:
        raise ValueError(f"continue: expected at most {new.index_n_heads} index heads, got {old.index_n_heads}")
    out = dict(state)
    for name, tensor in state.items():
        if name.endswith("indexer.wq_b.weight") and added:
            fresh = torch.randn(added * new.index_head_dim, tensor.shape[1]) * new.initializer_range
            out[name] = torch.cat([tensor, fresh])
        if name.endswith("indexer.weights_proj.weight") and added:
            # scores are scaled by heads ** -0.5, so the old weights grow by what that takes away
            kept = tensor * math.sqrt(new.index_n_heads / old.index_n_heads)
            out[name] = torch.cat([kept, torch.randn(added, tensor.shape[1]) * NEW_HEAD_WEIGHT])
    return out


def continued_target(folder: Path) -> Glm5NextForConditionalGeneration:
    """Return a float32 model of the demo's configuration with the weights of the checkpoint in `folder`."""
    torch.manual_seed(0)
    earlier = Glm5NextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    model = Glm5NextForConditionalGeneration(demo_config()).float()
    state = widen_indexers(earlier.state_dict(), earlier.config.text_config, model.config.text_config)
    model.load_state_dict(state)
    return model


def continued_mtp(folder: Path, new: Glm5NextTextConfig) -> MtpLayer:
    """Return the checkpoint's MTP layer in the demo's configuration."""
    torch.manual_seed(1)
    old = Glm5NextConfig.from_pretrained(folder).text_config
    layer = MtpLayer(new)
    layer.load_state_dict(widen_indexers(load_mtp(folder, old).state_dict(), old, new))
    return layer
