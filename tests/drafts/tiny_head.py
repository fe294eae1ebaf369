"""A tiny MTP head with random weights, and a checkpoint folder of it: sizes odd where they may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from drafts.batch import RowBatch
from drafts.cache import CachedSequence, DrafterCache
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.eager_glm5_next import EagerGlm5NextHead
from drafts.weights import head_weight_specs

VOCAB = 61

TEXT_KEYS: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "vocab_size": VOCAB,
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 14,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 0,
    "qk_head_dim": 6,
    "v_head_dim": 5,
    "index_n_heads": 3,
    "index_head_dim": 7,
    "index_kpool": 4,
    "index_topk": 8,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 9,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "swiglu_limit": 1.5,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}


def config_document(**changes: Any) -> dict[str, Any]:
    """A nested config.json as an object; a change to None of a key drops it, others set it, all in text_config."""
    text = {key: value for key, value in (TEXT_KEYS | changes).items() if value is not None}
    return {"model_type": "glm5_next", "dtype": "float32", "text_config": text, "vision_config": {"depth": 1}}


def tiny_config(*, dtype: torch.dtype = torch.float32, **changes: Any) -> DraftConfig:
    fields = {key: value for key, value in (TEXT_KEYS | changes).items() if key in DraftConfig.model_fields}
    return DraftConfig(**fields, dtype=dtype)


def tiny_weights(config: DraftConfig, *, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for spec in head_weight_specs(config):
        values = torch.randn(spec.shape, generator=generator, dtype=torch.float64)
        is_gain = spec.name.endswith(("norm", "k_norm.weight"))
        scaled = 1 + 0.3 * values if is_gain else values * spec.shape[-1] ** -0.5
        weights[spec.name] = scaled.to(spec.dtype)
    return weights


def tiny_head(config: DraftConfig, *, weights: dict[str, Tensor] | None = None, **decisions: str) -> EagerGlm5NextHead:
    """The eager head; hiddens are supplied post_norm unless a decision says otherwise."""
    stated = {"supplied_hidden": "post_norm"} | decisions
    return EagerGlm5NextHead(config, tiny_weights(config) if weights is None else weights, Decisions(**stated))


def context_rows(config: DraftConfig, count: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Random tokens [count] and hiddens [count, hidden]."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(config.vocab_size, (count,), generator=generator)
    return tokens, torch.randn(count, config.hidden_size, generator=generator, dtype=torch.float64).to(config.dtype)


def rows_at(cache: DrafterCache, state: CachedSequence, tokens: Tensor, hiddens: Tensor, start: int) -> RowBatch:
    """Rows of one sequence at `start` and on, with the cache's whole block table."""
    count = len(tokens)
    return RowBatch(
        token=tokens,
        hidden=hiddens,
        position=torch.arange(start, start + count),
        sequence=torch.full((count,), state.slot),
        block_table=cache.block_table([state]).expand(count, -1).contiguous(),
    )


def join(*batches: RowBatch) -> RowBatch:
    width = max(batch.block_table.shape[1] for batch in batches)
    tables = [torch.nn.functional.pad(b.block_table, (0, width - b.block_table.shape[1])) for b in batches]
    parts = [torch.cat([getattr(b, name) for b in batches]) for name in ("token", "hidden", "position", "sequence")]
    return RowBatch(*parts, block_table=torch.cat(tables))


def checkpoint_tensors(config: DraftConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the released names, experts one by one."""
    stored: dict[str, Tensor] = {}
    for spec in head_weight_specs(config):
        parts = [weights[spec.name]]
        if spec.recipe != "copy":
            parts = [
                p for expert in weights[spec.name] for p in expert.chunk(len(spec.sources) // len(expert_list(spec)))
            ]
        for source, part in zip(spec.sources, parts, strict=True):
            stored[source] = part.clone().contiguous()
    return stored


def expert_list(spec: Any) -> range:
    return range(spec.shape[0])


def write_checkpoint(folder: Path, config: DraftConfig, weights: dict[str, Tensor], **changes: Any) -> Path:
    """Write config.json and model.safetensors in the released layout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_document(**changes)))
    save_file(checkpoint_tensors(config, weights), folder / "model.safetensors")
    return folder
