"""What is drawn: a document's circuit, or a drafter's head cut to one of its programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import nodes  # noqa: F401 - documents name nodes, and importing them declares them
from circuit import Circuit, CircuitError, TensorType, load_document
from compiler import (
    CIRCUIT,
    Split,
    bind_dims,
    chain,
    context,
    place_collectives,
    read_manifest,
    remove_dead_code,
    step,
)
from drafts.cache import DEFAULT_MAX_NUM_DRAFTS, default_block_size
from drafts.commands.plan_subject import DEMO, PlanSubject, plan_subject, shipped_configs
from drafts.commands.plan_tables import size
from drafts.commands.subject import kind_of
from drafts.decisions import Decisions
from drafts.glm5_next import CONFIDENCE, WITHOUT_GRAMMAR, chain_feedback, mtp_head
from drafts.load_compiled import recorded_binding
from drafts.parallel import ONE_RANK, ParallelPlan, weight_splits
from drafts.split_plan import planned_exchanges, rank_parts
from drafts.weights import head_weight_specs

ProgramName = Literal["step", "chain", "context"]
DEFAULT_CONTEXT = 1024  # rows


@dataclass(frozen=True, slots=True)
class DrawSubject:
    """A circuit to draw; `decisions` are a drafter's and None for a document, which is one program as it stands.

    dims: sizes that are known for the named dims of a plan. weight_sources: the checkpoint's tensor of each weight.
    splits: the first rank's part of the weights that ranks share; `split_name` says which rank and what it holds.
    """

    name: str
    circuit: Circuit
    decisions: Decisions | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    weight_sources: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, Split] = field(default_factory=dict)
    split_name: str = ""


@dataclass(frozen=True, slots=True)
class DrawnProgram:
    """One circuit as it is drawn, with what feeds its next run, and the title it is chosen by."""

    title: str
    circuit: Circuit
    feedback: tuple[tuple[str, str], ...] = ()
    is_folded: bool = False


def draw_subject(x: str, parallel: ParallelPlan = ONE_RANK) -> DrawSubject:
    """Find what to draw, of ranks that share it the first's; no weight is read. CircuitError says what was expected."""
    path = Path(x)
    is_named = x in (*shipped_configs(), DEMO) and not path.is_dir()
    if not is_named and path.name != "config.json":
        kind = kind_of(path)
        if kind != "checkpoint" and parallel.is_split:
            raise CircuitError(f"{x}: expected a checkpoint or a config.json to split over ranks, got the {kind}")
        if kind == "document":
            return DrawSubject(path.name, load_document(path))
        if kind == "artifact":
            return _artifact(path)
    subject = plan_subject(x, dtype_name=None)
    config, decisions = subject.config, subject.decisions
    head = mtp_head(
        config,
        decisions,
        block_size=default_block_size(config.index_kpool),
        max_num_drafts=DEFAULT_MAX_NUM_DRAFTS,
    )
    specs = head_weight_specs(config, target_norm=decisions.applies_target_norm)
    return DrawSubject(
        subject.name,
        head,
        decisions,
        {**default_sizes(head), "tail_depth": config.index_kpool + DEFAULT_MAX_NUM_DRAFTS},
        {spec.name: _spelled(spec.sources) for spec in specs},
        weight_splits(config, parallel, 0),
        _split_name(subject, parallel),
    )


def programs(subject: DrawSubject, program: ProgramName | None, *, num_drafts: int) -> tuple[DrawnProgram, ...]:
    """Return what is drawn of a subject: one circuit, for a chain also the draft that it repeats.

    Raises CircuitError for a program of a document.
    """
    found = _programs(subject, program, num_drafts=num_drafts)
    return tuple(_placed(subject, one) for one in found) if subject.split_name else found


def _placed(subject: DrawSubject, program: DrawnProgram) -> DrawnProgram:
    """Return a program as the first rank runs it, its exchanges and what it sends told in its title."""
    circuit = place_collectives(program.circuit, subject.splits)
    exchanges = planned_exchanges(bind_dims(circuit, sizes(circuit, subject.dims, {})))
    sent = sum(exchange.bytes_sent for exchange in exchanges)
    told = f"{len(exchanges)} exchanges, {size(sent)} sent" if exchanges else "no exchange"
    return replace(program, title=f"{program.title}, {subject.split_name}, {told}", circuit=circuit)


def _split_name(subject: PlanSubject, parallel: ParallelPlan) -> str:
    if not parallel.is_split:
        return ""
    part = rank_parts(subject.config, subject.decisions, parallel)[0]
    return f"rank 0 of {parallel.num_ranks} ({parallel}), {size(part.weight_bytes)} of weights a rank"


def _programs(subject: DrawSubject, program: ProgramName | None, *, num_drafts: int) -> tuple[DrawnProgram, ...]:
    circuit, decisions = subject.circuit, subject.decisions
    if decisions is None:
        if program is not None:
            raise CircuitError(f"{subject.name}: a document is one program as it stands; leave --program out")
        return (DrawnProgram("as declared", circuit),)
    feedback = chain_feedback(decisions)
    fed = tuple((edge.source, edge.target) for edge in feedback)
    if program is None:
        return (DrawnProgram("the head as declared", circuit, fed),)
    if program == "context":
        return (DrawnProgram("context rows", context(circuit)),)
    options = {"bypassed": WITHOUT_GRAMMAR, "dropped_outputs": (CONFIDENCE,)}
    first = step(circuit, **options)  # type: ignore[arg-type]
    rolled = DrawnProgram("one draft, fed back" if program == "chain" else "one draft", first, fed)
    if program == "step":
        return (rolled,)
    following = step(circuit, feedback=feedback, **options)  # type: ignore[arg-type]
    joined = chain([first, *[following] * (num_drafts - 1)], feedback=feedback, outputs=("token",))
    unrolled = DrawnProgram(f"{num_drafts} drafts, unrolled", remove_dead_code(joined), is_folded=True)
    return (rolled, unrolled)


def sizes(circuit: Circuit, known: Mapping[str, int], given: Mapping[str, int]) -> dict[str, int]:
    """Return a size for every named dim of a circuit; CircuitError names one that has none, or that it lacks."""
    free: set[str] = set()
    for value in circuit.values:
        declared = value.type if isinstance(value.type, TensorType) else value.type.tensor
        free |= declared.free_dims()
    if stray := sorted(set(given) - free):
        listed = ", ".join(sorted(free)) or "none"
        raise CircuitError(f"--dims: circuit {circuit.name!r} has no dim {stray[0]!r}; it has {listed}")
    held = {**known, **given}
    if missing := sorted(free - set(held)):
        raise CircuitError(
            f"--plan: the dim {missing[0]!r} of circuit {circuit.name!r} has no size; give --dims {missing[0]}=1"
        )
    return {name: held[name] for name in sorted(free)}


def default_sizes(head: Circuit) -> dict[str, int]:
    """Return the sizes of one sequence of 1,024 rows, for a circuit of the head."""
    block = int(head.states["latent_cache"].type.tensor.shape[1])  # type: ignore[union-attr]
    blocks = -(-DEFAULT_CONTEXT // block)
    vocabulary = int(head.weights["lm_head"].type.shape[0])  # type: ignore[union-attr]
    return {
        "n": 1,
        "max_blocks": blocks,
        "num_blocks": blocks + 1,
        "num_sequences": 2,
        "mask_words": -(-vocabulary // 32),
    }


def _artifact(folder: Path) -> DrawSubject:
    manifest = read_manifest(folder, for_this_machine=False)
    recorded = recorded_binding(manifest, folder)
    circuit = load_document(folder / CIRCUIT)
    depths = [program.dims["tail_depth"] for program in manifest.programs if "tail_depth" in program.dims]
    dims = {**default_sizes(circuit), **({"tail_depth": depths[0]} if depths else {})}
    return DrawSubject(str(folder), circuit, recorded.decisions, dims)


def _spelled(sources: tuple[str, ...]) -> str:
    return sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1} more" if sources else ""
