"""What a plan says of the calls that are drawn: lowering, promise, cost, the launch, and the source of what runs."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import compiler.inductor as inductor
from circuit import Circuit
from circuit.draw import CallNote, Notes
from compiler import (
    FOLD_PROJECTIONS,
    SPLIT_KV_B,
    ProgramPlan,
    Request,
    compile_circuit,
    lowering_of,
    plan_compiled,
    region_rules,
    target_of,
)
from drafts.commands.draw_kernels import Kernels, inductor_kernels, triton_kernels
from drafts.commands.draw_subject import DrawnProgram, DrawSubject, sizes
from drafts.plan_drafter import LOADS_LOWERINGS

DrawBackend = Literal["reference", "inductor", "triton"]
# the node types that the rules over weights take; a region's rule says its own
_FOLDED = {FOLD_PROJECTIONS: ("Linear",), SPLIT_KV_B: ("AbsorbQuery", "AbsorbValue")}


def planned(
    subject: DrawSubject,
    program: DrawnProgram,
    *,
    backend: DrawBackend | None,
    dims: Mapping[str, int],
    has_source: bool = False,
    is_compiled: bool = False,
) -> tuple[Circuit, Notes]:
    """Return the circuit to draw and the notes on it; with a backend those of its plan, at sizes that `dims` override.

    Where the passes leave every call as it was, the circuit is drawn as declared; else, or with `is_compiled`, as they
    made it. With `has_source` Inductor generates its kernels, which takes it up to minutes.
    """
    circuit = program.circuit
    about = f"{subject.name}, {program.title}"
    if backend is None:
        return circuit, Notes(weight_sources=subject.weight_sources, feedback=program.feedback, about=about)
    held = sizes(circuit, subject.dims, dims)
    if backend == "inductor":
        # naming it fills the table of lowerings
        getattr(inductor, LOADS_LOWERINGS)
    target = target_of(backend)
    compiled = compile_circuit(circuit, Request(target, held))
    plan = plan_compiled(compiled, name=circuit.name, target=target, dims=held)
    made = {call.results[0].name for call in circuit.calls}
    is_as_declared = made == {call.results[0] for call in plan.calls} and not any(call.body for call in plan.calls)
    drawn = circuit if is_as_declared and not is_compiled else compiled.circuit
    kernels = Kernels()
    if backend == "triton":
        kernels = triton_kernels(compiled.circuit)
    elif backend == "inductor" and has_source:
        kernels = inductor_kernels(compiled.circuit, held)
    spelled = ", ".join(f"{name} = {size}" for name, size in held.items())
    calls, regions = _call_notes(drawn, plan, kernels)
    derived = {one.name: f"{one.recipe} of {', '.join(one.sources)}" for one in plan.derived_weights}
    return drawn, Notes(
        calls=calls,
        regions=regions,
        weight_sources={**subject.weight_sources, **derived},
        feedback=program.feedback,
        about=f"{about}, {backend} plan at {spelled}",
        unfired=plan.unfired_rules,
        kernels=kernels.sources,
    )


def _call_notes(
    circuit: Circuit, plan: ProgramPlan, kernels: Kernels
) -> tuple[dict[str, CallNote], dict[str, CallNote]]:
    """Return the notes of calls, those inside regions among them, and those of regions, by first result."""
    nodes = {call.results[0].name: call.node for call in circuit.calls}
    unfired = _unfired_by_type(plan)
    calls, regions = {}, {}
    for call in plan.calls:
        first = call.results[0]
        lowering = None if plan.backend == "reference" else lowering_of(nodes[first], plan.backend)
        is_built = lowering is not None and not call.is_planned
        note = CallNote(
            lowering="reference" if plan.backend == "reference" else call.lowering,
            numerics=call.numerics,
            flops=call.flops,
            bytes_read=call.bytes_read,
            bytes_written=call.bytes_written,
            kernel=inspect.getsource(lowering.function) if lowering is not None and is_built else "",
            kernels=kernels.by_call.get(first, ()),
            unfired=unfired.get(call.node_type, ()),
        )
        if not call.body:
            calls[first] = note
            continue
        state = "planned, no kernel yet" if call.is_planned else call.lowering
        regions[first] = replace(note, lowering=f"{state}: {', '.join(call.launches)}")
        for inner in call.body:
            calls[inner.results[0]] = CallNote(
                lowering=f"inside {call.rule}",
                numerics=inner.numerics,
                flops=inner.flops,
                bytes_read=inner.bytes_read,
                bytes_written=inner.bytes_written,
                kernels=note.kernels,
                unfired=unfired.get(inner.node_type, ()),
            )
    return calls, regions


def _unfired_by_type(plan: ProgramPlan) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return, by node type, the rules that take such a node and did not fire in this program, with the reason."""
    takers = {name: types for name, types in _FOLDED.items() if name in plan.unfired_rules}
    for rule in region_rules(plan.backend):
        if rule.name in plan.unfired_rules:
            takers[rule.name] = tuple(step.node_type.__name__ for step in rule.pattern if not step.is_outside)
    held: dict[str, tuple[tuple[str, str], ...]] = {}
    for name, types in takers.items():
        for node_type in dict.fromkeys(types):
            held[node_type] = (*held.get(node_type, ()), (name, plan.unfired_rules[name]))
    return held
