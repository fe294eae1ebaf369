"""What a plan says of the calls that are drawn: lowering, promise, cost, the launch, and the source of what runs."""

import inspect
from collections.abc import Mapping
from typing import Literal

import compiler.inductor as inductor
from circuit import Circuit
from circuit.draw import CallNote, Notes
from compiler import ProgramPlan, Request, compile_circuit, lowering_of, plan_compiled, target_of
from drafts.commands.draw_subject import DrawnProgram, DrawSubject, sizes
from drafts.plan_drafter import LOADS_LOWERINGS

DrawBackend = Literal["reference", "inductor", "triton"]


def planned(
    subject: DrawSubject, program: DrawnProgram, *, backend: DrawBackend | None, dims: Mapping[str, int]
) -> tuple[Circuit, Notes]:
    """Return the circuit to draw and the notes on it; with a backend those of its plan, at sizes that `dims` override.

    Where the passes leave every call as it was, the circuit is drawn as declared; else as they made it.
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
    drawn = circuit if is_as_declared else compiled.circuit
    spelled = ", ".join(f"{name} = {size}" for name, size in held.items())
    calls, regions = _call_notes(drawn, plan)
    derived = {one.name: f"{one.recipe} of {', '.join(one.sources)}" for one in plan.derived_weights}
    return drawn, Notes(
        calls=calls,
        regions=regions,
        weight_sources={**subject.weight_sources, **derived},
        feedback=program.feedback,
        about=f"{about}, {backend} plan at {spelled}",
        unfired=plan.unfired_rules,
    )


def _call_notes(circuit: Circuit, plan: ProgramPlan) -> tuple[dict[str, CallNote], dict[str, CallNote]]:
    """Return the notes of calls, those inside regions among them, and those of regions, by first result."""
    nodes = {call.results[0].name: call.node for call in circuit.calls}
    calls, regions = {}, {}
    for call in plan.calls:
        lowering = None if plan.backend == "reference" else lowering_of(nodes[call.results[0]], plan.backend)
        is_built = lowering is not None and not call.is_planned
        note = CallNote(
            lowering="reference" if plan.backend == "reference" else call.lowering,
            numerics=call.numerics,
            flops=call.flops,
            bytes_read=call.bytes_read,
            bytes_written=call.bytes_written,
            kernel=inspect.getsource(lowering.function) if lowering is not None and is_built else "",
        )
        if not call.body:
            calls[call.results[0]] = note
            continue
        state = "planned, no kernel yet" if call.is_planned else call.lowering
        regions[call.results[0]] = CallNote(
            lowering=f"{state}: {', '.join(call.launches)}",
            numerics=note.numerics,
            flops=note.flops,
            bytes_read=note.bytes_read,
            bytes_written=note.bytes_written,
            kernel=note.kernel,
        )
        for inner in call.body:
            calls[inner.results[0]] = CallNote(
                lowering=f"inside {call.rule}",
                numerics=inner.numerics,
                flops=inner.flops,
                bytes_read=inner.bytes_read,
                bytes_written=inner.bytes_written,
            )
    return calls, regions
