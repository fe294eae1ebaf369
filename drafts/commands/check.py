"""`circuit check`: whether a document is a legal circuit, a checkpoint complete, an artifact whole."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

import nodes  # noqa: F401 - documents name nodes, and importing them declares them
from circuit import Circuit, dtype_name, load_document, verify
from compiler import CIRCUIT, PLAN, read_manifest, read_plan
from compiler.triton import read_launch_manifest
from drafts.binding import not_modelled
from drafts.cache import DEFAULT_MAX_NUM_DRAFTS
from drafts.checkpoint import TensorHeader
from drafts.commands.describe_launches import is_for_gpu
from drafts.commands.screen import Screen, facts, plural
from drafts.commands.subject import checkpoint_folder, kind_of
from drafts.config import DraftConfig, read_config
from drafts.decisions import Decisions, default_decisions
from drafts.glm5_next import mtp_head
from drafts.weights import check_weights, head_weight_specs, unused_layer_tensors

HOLDS = "format, versions, CPU, and every file's hash; its checkpoint is checked when it runs"


def check(path: Path, screen: Screen) -> None:
    """Check what lies at `path` and print what it holds; CircuitError names the first fault."""
    checks = {"document": _check_document, "checkpoint": _check_checkpoint, "artifact": _check_artifact}
    record = checks[kind_of(path)](path, screen)
    screen.emit({"ok": True, "path": str(path), **record})
    screen.out.print(Text("ok", style="bold green"))


def _check_document(path: Path, screen: Screen) -> dict[str, Any]:
    circuit = load_document(path)
    verify(circuit)
    counts = circuit_counts(circuit)
    nodes_used = Counter(type(call.node).__name__ for call in circuit.calls)
    screen.out.print(Text.assemble((str(path), "bold"), f"  circuit {circuit.name!r}\n"), soft_wrap=True)
    screen.out.print(
        facts(
            {
                "sources": " · ".join(plural(counts[kind], kind[:-1]) for kind in ("inputs", "weights", "states")),
                "calls": f"{counts['calls']:,} of {plural(len(nodes_used), 'node')}",
                "nodes": " · ".join(f"{name} {count}" for name, count in nodes_used.most_common()),
                "outputs": " · ".join([*circuit.outputs, *(f"state {name}" for name in circuit.state_outputs)]),
                "holds": "order, types, one writer a state, no stale read, nothing unused",
            }
        )
    )
    screen.out.print()
    return {"kind": "document", "circuit": circuit.name, **counts, "nodes": dict(nodes_used)}


def _check_checkpoint(path: Path, screen: Screen) -> dict[str, Any]:
    config = read_config(checkpoint_folder(path))
    decisions = default_decisions(config)
    headers = check_weights(path, head_weight_specs(config, target_norm=decisions.applies_target_norm))
    unread = unused_layer_tensors(path, config)
    gaps = not_modelled(config)
    with screen.step("building the circuit"):
        circuit = mtp_head(config, decisions, block_size=config.index_kpool, max_num_drafts=DEFAULT_MAX_NUM_DRAFTS)
        verify(circuit)
    counts = circuit_counts(circuit)
    screen.out.print(
        Text.assemble((str(path), "bold"), f"  {config.model_type}, {dtype_name(config.dtype)}\n"), soft_wrap=True
    )
    screen.out.print(
        facts(
            {
                "config": _keys_line(config),
                "sizes": _sizes_line(config),
                "tensors": _tensors_line(headers, unread),
                "circuit": f"{circuit.name}: {plural(counts['calls'], 'call')}, {plural(counts['weights'], 'weight')}, "
                f"{plural(counts['states'], 'state')}",
                "decisions": "\n".join(f"{name:<16} {value}" for name, value in decision_record(decisions).items()),
                "not modelled": "\n".join(gaps) or "nothing that this checkpoint asks for",
            }
        )
    )
    screen.out.print()
    return {
        "kind": "checkpoint",
        "model_type": config.model_type,
        "dtype": dtype_name(config.dtype),
        "unknown_keys": config.unknown_keys,
        "ignored_keys": config.ignored_keys,
        "tensors": len(headers),
        "unread_tensors": unread,
        "circuit": circuit.name,
        **counts,
        "decisions": decision_record(decisions),
        "not_modelled": gaps,
    }


def _check_artifact(path: Path, screen: Screen) -> dict[str, Any]:
    is_gpu = is_for_gpu(path)
    manifest = read_launch_manifest(path) if is_gpu else read_manifest(path)
    holds = "format, and every file's hash; it is read, never run" if is_gpu else HOLDS
    read_plan(path / PLAN)
    verify(load_document(path / CIRCUIT))
    screen.out.print(Text.assemble((str(path), "bold"), f"  artifact {manifest.digest[:16]}\n"), soft_wrap=True)
    screen.out.print(
        facts(
            {
                "programs": ", ".join(program.name for program in manifest.programs),
                "holds": holds,
            }
        )
    )
    screen.out.print()
    return {"kind": "artifact", "digest": manifest.digest, "programs": [one.name for one in manifest.programs]}


def circuit_counts(circuit: Circuit) -> dict[str, int]:
    """Return how many inputs, weights, states, calls and outputs a circuit has."""
    tables = {
        "inputs": circuit.inputs,
        "weights": circuit.weights,
        "states": circuit.states,
        "calls": circuit.calls,
        "outputs": circuit.outputs,
    }
    return {name: len(table) for name, table in tables.items()}


def decision_record(decisions: Decisions) -> dict[str, str]:
    """Return the decisions by name."""
    return decisions.model_dump()


def _keys_line(config: DraftConfig) -> str:
    unknown = f"unknown: {', '.join(config.unknown_keys)}" if config.unknown_keys else "none unknown"
    return f"every key classified; {plural(len(config.ignored_keys), 'key')} of the target's own, {unknown}"


def _sizes_line(config: DraftConfig) -> str:
    return " · ".join(
        (
            f"hidden {config.hidden_size}",
            f"{plural(config.num_attention_heads, 'head')} of {config.qk_nope_head_dim}",
            f"latent {config.kv_lora_rank}",
            f"{plural(config.n_routed_experts, 'expert')}, top {config.num_experts_per_tok}",
            f"pools of {config.index_kpool}, best {config.index_topk_pools}",
            f"vocabulary {config.vocab_size:,}",
        )
    )


def _tensors_line(headers: Mapping[str, TensorHeader], unread: Sequence[str]) -> str:
    files = sorted({header.file.name for header in headers.values()})
    dtypes = Counter(header.dtype for header in headers.values())
    stored = ", ".join(f"{count} {name}" for name, count in dtypes.most_common())
    line = f"all {len(headers)} found, of the right shape ({stored}) in {', '.join(files)}"
    return f"{line}; in the layer but not read: {', '.join(unread)}" if unread else line
