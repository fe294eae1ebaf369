"""What a plan says of the calls that are drawn: lowering, promise, cost, the launch, and the source of what runs."""

import inspect
from collections.abc import Mapping
from typing import Literal

import compiler.inductor as inductor
from circuit import Circuit, CircuitError
from circuit.draw import CallNote, Notes
from compiler import bind_dims, lowering_of, plan_program, remove_dead_code
from drafts.commands.draw_subject import DrawnProgram, DrawSubject, sizes
from drafts.plan_drafter import LOADS_LOWERINGS
from drafts.planned_launches import LAUNCH_OF

DrawBackend = Literal["reference", "inductor", "triton"]


def notes_of(
    subject: DrawSubject, program: DrawnProgram, *, backend: DrawBackend | None, dims: Mapping[str, int]
) -> Notes:
    """Return the notes of a program, with those of its plan where a backend is named; `dims` override the sizes."""
    circuit = program.circuit
    base = Notes(
        weight_sources=subject.weight_sources, feedback=program.feedback, about=f"{subject.name}, {program.title}"
    )
    if backend is None:
        return base
    held = sizes(circuit, subject.dims, dims)
    spelled = ", ".join(f"{name} = {size}" for name, size in held.items())
    calls, unfired = _triton(circuit, held) if backend == "triton" else _lowered(circuit, held, backend)
    return Notes(calls, base.weight_sources, base.feedback, f"{base.about}, {backend} plan at {spelled}", unfired)


def _lowered(circuit: Circuit, dims: Mapping[str, int], backend: str) -> tuple[dict[str, CallNote], dict[str, str]]:
    """Return the notes of a plan that runs each node by itself or inside one program."""
    if backend == "inductor":
        # naming it fills the table of lowerings
        getattr(inductor, LOADS_LOWERINGS)
    plan = plan_program(circuit, name=circuit.name, backend=backend, dims=dims)
    nodes = {call.results[0].name: call.node for call in circuit.calls}
    notes = {}
    for call in plan.calls:
        name = call.results[0]
        if name not in nodes:
            raise CircuitError(f"--plan {backend}: {name!r} is made by a pass and is no call of {circuit.name!r}")
        lowering = None if backend == "reference" else lowering_of(nodes[name], backend)
        notes[name] = CallNote(
            lowering="reference" if backend == "reference" else call.lowering,
            numerics=call.numerics,
            flops=call.flops,
            bytes_read=call.bytes_read,
            bytes_written=call.bytes_written,
            kernel="" if lowering is None else inspect.getsource(lowering.function),
        )
    return notes, plan.unfired_rules


def _triton(circuit: Circuit, dims: Mapping[str, int]) -> tuple[dict[str, CallNote], dict[str, str]]:
    """Return the notes of the launches that a draft is designed to take: planned, none of them built."""
    notes = {}
    for call in bind_dims(remove_dead_code(circuit), dims).calls:
        name = call.results[0].name
        cost = call.node.cost(*(arg.type for arg in call.args))
        # a chain's values carry the draft's number
        stem, _, number = name.rpartition(".")
        launch = LAUNCH_OF.get(name) or (LAUNCH_OF.get(stem) if number.isdecimal() else None)
        if launch is None:
            raise CircuitError(f"--plan triton: no launch is planned for {name!r} of circuit {circuit.name!r}")
        notes[name] = CallNote(
            lowering="planned, not built",
            numerics="planned",
            flops=cost.flops,
            bytes_read=cost.bytes_read,
            bytes_written=cost.bytes_written,
            launch=launch,
        )
    return notes, {}
