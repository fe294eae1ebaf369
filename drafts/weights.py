"""The MTP head's weights: the one list that both heads use, and the loader that checks all before it reads any."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from circuit.errors import CheckpointError
from drafts.checkpoint import Checkpoint, Part, TensorHeader, dtype_of, iterate_tensors, read_headers
from drafts.config import DraftConfig

# the language model's place in the released checkpoint, and in a text-only one
RELEASED_PREFIX = "model.language_model."
TEXT_ONLY_PREFIX = "model."

Recipe = Literal["copy", "stack_gate_up", "stack"]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight of the head: our name, shape and dtype, and the checkpoint tensors it is made of.

    recipe `copy`: the one source as it is. `stack`: source e becomes [e]. `stack_gate_up`: sources come in pairs, gate
    then up, and pair e becomes [e] with the gate's rows first. Values are converted to `dtype`, nothing else.
    part: what is read of the one source of a `copy`, where several ranks share it; `shape` is the part's.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    sources: tuple[str, ...]
    recipe: Recipe = "copy"
    part: Part | None = None

    @property
    def may_hold_nan(self) -> bool:
        """Whether NaN is no fault: only in the routed experts, where one never chosen may hold anything."""
        return self.recipe != "copy"

    def source_shape(self) -> tuple[int, ...]:
        """The shape each source must have."""
        if self.part is not None:
            return (*self.shape[: self.part.dim], self.part.size, *self.shape[self.part.dim + 1 :])
        if self.recipe == "copy":
            return self.shape
        rows, columns = self.shape[1:]
        return (rows // 2 if self.recipe == "stack_gate_up" else rows, columns)


def head_weight_specs(config: DraftConfig, *, target_norm: bool = True) -> tuple[WeightSpec, ...]:
    """Every weight of the head, named as in the checkpoint's MTP layer, in the order of the forward pass.

    All are in `config.dtype` except the router's weight and bias, which stay float32. With tied embeddings lm_head is
    made of embed_tokens. `target_norm` False leaves out the target's final norm: needed only where we apply it.
    """
    language_model, layer = RELEASED_PREFIX, f"{RELEASED_PREFIX}layers.{config.mtp_layer}."
    embed = f"{language_model}embed_tokens.weight"
    vocab_shape = (config.vocab_size, config.hidden_size)
    specs = [
        WeightSpec("embed_tokens", vocab_shape, config.dtype, (embed,)),
        WeightSpec("lm_head", vocab_shape, config.dtype, (embed if config.tie_word_embeddings else "lm_head.weight",)),
    ]
    if target_norm:
        specs.append(WeightSpec("target_norm", (config.hidden_size,), config.dtype, (f"{language_model}norm.weight",)))
    for name, shape in _layer_shapes(config).items():
        dtype = torch.float32 if name.startswith("mlp.gate.") else config.dtype
        specs.append(WeightSpec(name, shape, dtype, (layer + _stored_name(name),)))
    return (*specs, *_expert_specs(config, layer))


def _layer_shapes(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the layer's own tensors by our name; projections are [out, in]."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    shared = config.moe_intermediate_size * config.n_shared_experts
    return {
        "enorm": (hidden,),
        "hnorm": (hidden,),
        "eh_proj": (hidden, 2 * hidden),
        "input_layernorm": (hidden,),
        "self_attn.q_a_proj": (config.q_lora_rank, hidden),
        "self_attn.q_a_layernorm": (config.q_lora_rank,),
        "self_attn.q_b_proj": (heads * config.qk_head_dim, config.q_lora_rank),
        "self_attn.kv_a_proj_with_mqa": (config.kv_lora_rank, hidden),
        "self_attn.kv_a_layernorm": (config.kv_lora_rank,),
        "self_attn.kv_b_proj": (heads * (config.qk_nope_head_dim + config.v_head_dim), config.kv_lora_rank),
        "self_attn.o_proj": (hidden, heads * config.v_head_dim),
        "self_attn.indexer.wq_b": (config.index_n_heads * config.index_head_dim, config.q_lora_rank),
        "self_attn.indexer.wk": (config.index_head_dim, hidden),
        "self_attn.indexer.k_norm.weight": (config.index_head_dim,),
        "self_attn.indexer.k_norm.bias": (config.index_head_dim,),
        "self_attn.indexer.weights_proj": (config.index_n_heads, hidden),
        "self_attn.indexer.index_kpool_compress_ape": (config.index_kpool, config.index_head_dim),
        "self_attn.indexer.index_kpool_compress_gate": (config.index_head_dim, hidden),
        "post_attention_layernorm": (hidden,),
        "mlp.gate.weight": (config.n_routed_experts, hidden),
        "mlp.gate.e_score_correction_bias": (config.n_routed_experts,),
        "mlp.shared_experts.gate_proj": (shared, hidden),
        "mlp.shared_experts.up_proj": (shared, hidden),
        "mlp.shared_experts.down_proj": (hidden, shared),
        "shared_head.norm": (hidden,),
    }


def _stored_name(name: str) -> str:
    """Modules store their tensor under `.weight`; bare parameters and names that say it already do not."""
    bare = ("weight", "bias", "e_score_correction_bias", "index_kpool_compress_ape", "index_kpool_compress_gate")
    return name if name.rpartition(".")[2] in bare else f"{name}.weight"


def _expert_specs(config: DraftConfig, layer: str) -> tuple[WeightSpec, WeightSpec]:
    experts = [f"{layer}mlp.experts.{expert}." for expert in range(config.n_routed_experts)]
    gate_up = tuple(f"{place}{side}_proj.weight" for place in experts for side in ("gate", "up"))
    down = tuple(f"{place}down_proj.weight" for place in experts)
    count, inner, hidden = config.n_routed_experts, config.moe_intermediate_size, config.hidden_size
    return (
        WeightSpec("mlp.experts.gate_up_proj", (count, 2 * inner, hidden), config.dtype, gate_up, "stack_gate_up"),
        WeightSpec("mlp.experts.down_proj", (count, hidden, inner), config.dtype, down, "stack"),
    )


def load_weights(
    checkpoint: Path, specs: Sequence[WeightSpec], *, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Load `specs` from a checkpoint folder, one file or shards with their index; returns weights by our name.

    Every source is checked by name, shape and dtype from the headers before any data is read. Each weight is
    converted to its spec's dtype, whatever floating point dtype is stored. Specs made of the same sources share one
    tensor (tied embeddings). NaN is accepted in the routed experts and refused elsewhere.
    Raises CheckpointError that names the tensor and the file.
    """
    headers = read_headers(checkpoint)
    placed = _checked_sources(headers, specs)
    # by shape too: of a rank without experts, two weights are made of no sources
    made: dict[tuple[tuple[str, ...], torch.dtype, tuple[int, ...], Part | None], Tensor] = {}
    weights: dict[str, Tensor] = {}
    for spec in specs:
        key = (placed[spec.name], spec.dtype, spec.shape, spec.part)
        whole = made.get((placed[spec.name], spec.dtype, spec.source_shape(), None))
        if spec.part is not None and whole is not None:
            # of a tensor that is here whole, a part takes no memory of its own
            made[key] = whole.narrow(spec.part.dim, spec.part.start, spec.part.stop - spec.part.start)
        if key not in made:
            made[key] = _assemble(headers, spec, placed[spec.name], torch.device(device))
        weights[spec.name] = made[key]
    return weights


def check_weights(checkpoint: Path, specs: Sequence[WeightSpec]) -> dict[str, TensorHeader]:
    """Check `specs` against a checkpoint as load_weights does, from the headers alone; return those by stored name.

    Whether a tensor holds NaN is seen only on loading. Raises CheckpointError that names the tensor and the file.
    """
    headers = read_headers(checkpoint)
    placed = _checked_sources(headers, specs)
    return {source: headers.tensors[source] for sources in placed.values() for source in sources}


def unused_layer_tensors(checkpoint: Path, config: DraftConfig) -> tuple[str, ...]:
    """Names the checkpoint holds in the MTP layer and the head does not read, such as a copy of embed_tokens.

    They are tolerated; a caller reports them. Reads headers only.
    """
    headers = read_headers(checkpoint)
    specs = head_weight_specs(config)
    used = {source for sources in _place_sources(headers, specs).values() for source in sources}
    layer = f"{_layout_prefix(headers)}layers.{config.mtp_layer}."
    return tuple(name for name in headers.names_under(layer) if name not in used)


def _layout_prefix(headers: Checkpoint) -> str:
    """The released checkpoint nests the language model; a text-only one has its layers directly under `model.`."""
    nested = any(name.startswith(RELEASED_PREFIX) for name in headers.tensors)
    text_only = any(name.startswith(TEXT_ONLY_PREFIX + "layers.") for name in headers.tensors)
    return TEXT_ONLY_PREFIX if text_only and not nested else RELEASED_PREFIX


def _place_sources(headers: Checkpoint, specs: Sequence[WeightSpec]) -> dict[str, tuple[str, ...]]:
    """Return each spec's sources as this checkpoint spells them, by our name."""
    prefix = _layout_prefix(headers)
    return {
        spec.name: tuple(
            prefix + source.removeprefix(RELEASED_PREFIX) if source.startswith(RELEASED_PREFIX) else source
            for source in spec.sources
        )
        for spec in specs
    }


def _checked_sources(headers: Checkpoint, specs: Sequence[WeightSpec]) -> dict[str, tuple[str, ...]]:
    placed = _place_sources(headers, specs)
    for spec in specs:
        for source in placed[spec.name]:
            _check_source(headers, spec, source)
    return placed


def _check_source(headers: Checkpoint, spec: WeightSpec, source: str) -> None:
    header = headers.tensors.get(source)
    if header is None:
        close = headers.close_names(source)
        step = f"close names: {', '.join(close)}" if close else "use a checkpoint that ships its MTP layer"
        raise CheckpointError(
            f"{headers.location}: expected tensor {source!r} for {spec.name}, got no such tensor; {step}"
        )
    if header.shape != spec.source_shape():
        raise CheckpointError(
            f"{header.file}: {source}: expected shape {list(spec.source_shape())}, got {list(header.shape)}; "
            "config.json and checkpoint are of two models, use a pair"
        )
    if dtype_of(header) is None:
        raise CheckpointError(
            f"{header.file}: {source}: expected F32, BF16, F16 or F64, got {header.dtype}; "
            "quantised weights are not supported, use an unquantised checkpoint"
        )


def _assemble(headers: Checkpoint, spec: WeightSpec, sources: tuple[str, ...], device: torch.device) -> Tensor:
    """Read the sources into one tensor that starts as NaN, and hold that every part of it was overwritten."""
    weight = torch.full(spec.shape, math.nan, dtype=spec.dtype, device=device)
    num_written = 0
    for part, source, stored in zip(
        _parts(weight, spec), sources, iterate_tensors(headers, sources, part=spec.part), strict=True
    ):
        has_nan = bool(stored.isnan().any())
        if has_nan and not spec.may_hold_nan:
            raise CheckpointError(
                f"{headers.tensors[source].file}: {source}: expected numbers, got NaN among them; "
                "the checkpoint is damaged, fetch it again"
            )
        part.copy_(stored)
        assert has_nan or not bool(part.isnan().any()), f"{source} was not written whole"
        num_written += part.numel()
    assert num_written == weight.numel(), f"{spec.name}: {num_written} of {weight.numel()} values written"
    return weight


def _parts(weight: Tensor, spec: WeightSpec) -> Iterator[Tensor]:
    """The views of `weight` that the sources fill, in the sources' order."""
    if spec.recipe == "copy":
        yield weight
        return
    for expert in weight:  # [2I, H] or [H, I]
        yield from expert.chunk(2) if spec.recipe == "stack_gate_up" else (expert,)
