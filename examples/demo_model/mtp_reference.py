"""The MTP layer out of transformers' own modules, with a cache: the reference that decodes and measures.

Nothing here is shared with the fast training forward; `check.py` compares the two.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors.torch import load_file
from sizes import MTP_LAYER
from torch import Tensor, nn
from transformers import DynamicCache, Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import (
    Glm5NextTextAttention,
    Glm5NextTextMoE,
    Glm5NextTextRMSNorm,
)

PREFIX = f"model.language_model.layers.{MTP_LAYER}."


class MtpLayer(nn.Module):
    """The MTP layer: names of parameters are those of the checkpoint, but for experts, which are stacked."""

    def __init__(self, config: Glm5NextTextConfig) -> None:
        super().__init__()
        one_layer = copy.deepcopy(config)
        one_layer.num_hidden_layers = 1
        one_layer.layer_types, one_layer.mlp_layer_types = ["indexed_attention"], ["sparse"]
        one_layer.indexer_types = ["full"]
        self.config = one_layer
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.enorm, self.hnorm = Glm5NextTextRMSNorm(hidden, eps), Glm5NextTextRMSNorm(hidden, eps)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.input_layernorm = Glm5NextTextRMSNorm(hidden, eps)
        self.self_attn = Glm5NextTextAttention(one_layer, 0)
        self.post_attention_layernorm = Glm5NextTextRMSNorm(hidden, eps)
        self.mlp = Glm5NextTextMoE(one_layer)
        self.shared_head = nn.ModuleDict({"norm": Glm5NextTextRMSNorm(hidden, eps)})

    def new_cache(self) -> DynamicCache:
        """Return an empty cache for this one layer."""
        return DynamicCache(config=self.config)

    def forward(self, embedded: Tensor, hidden: Tensor, cache: DynamicCache | None = None) -> tuple[Tensor, Tensor]:
        """Append rows and return (y, block output), each [B, T, C]; embedded is token r + 1, hidden is row r's."""
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1))
        mask = torch.ones(x.shape[:2], dtype=torch.bool)
        x = x + self.self_attn(self.input_layernorm(x), attention_mask=mask, cache=cache)[0]
        x = x + self.mlp(self.post_attention_layernorm(x))
        return self.shared_head["norm"](x), x


def split_experts(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn stacked experts into the released layout, one gate, up and down projection per expert."""
    out = {}
    for name, tensor in state.items():
        if name.endswith("mlp.experts.gate_up_proj"):
            for index, pair in enumerate(tensor):
                gate, up = pair.chunk(2)
                out[name.replace("gate_up_proj", f"{index}.gate_proj.weight")] = gate.contiguous()
                out[name.replace("gate_up_proj", f"{index}.up_proj.weight")] = up.contiguous()
        elif name.endswith("mlp.experts.down_proj"):
            for index, down in enumerate(tensor):
                out[name.replace("down_proj", f"{index}.down_proj.weight")] = down.contiguous()
        else:
            out[name] = tensor
    return out


def stack_experts(state: dict[str, Tensor], num_experts: int) -> dict[str, Tensor]:
    """Turn the released layout back into stacked experts; the inverse of `split_experts`."""
    out = {name: tensor for name, tensor in state.items() if ".experts." not in name}
    parts = ("gate", "up", "down")
    experts = [[state[f"mlp.experts.{e}.{part}_proj.weight"] for part in parts] for e in range(num_experts)]
    out["mlp.experts.gate_up_proj"] = torch.stack([torch.cat([gate, up]) for gate, up, _ in experts])
    out["mlp.experts.down_proj"] = torch.stack([down for _, _, down in experts])
    return out


def load_mtp(folder: Path, config: Glm5NextTextConfig) -> MtpLayer:
    """Load the MTP layer of a checkpoint folder in float32."""
    state = load_file(folder / "model.safetensors")
    state = {name.removeprefix(PREFIX): tensor for name, tensor in state.items() if name.startswith(PREFIX)}
    layer = MtpLayer(config)
    layer.load_state_dict(stack_experts(state, config.n_routed_experts))
    return layer.float().eval()
