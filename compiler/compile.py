"""The story of a compile: one circuit goes through these passes in this order, and each leaves a record.

A pass takes a circuit and returns one; what it may need beside is in the request, and what else it finds out (weights
it derived, where values lie) it hands on with its record. What a backend emits is made of the result. After each pass
every state is held to have as many writes as before it: a lost one would show only as a slowly worse drafter. The
collectives are held to stay as they were placed, in their order: a rank that runs others than the rest waits for ever.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from circuit import Call, Circuit, Value, VerifyError, verify
from compiler.derived_weights import DerivedWeight
from compiler.passes.bind_dims import bind_dims
from compiler.passes.certify_products import certify_products
from compiler.passes.dead_code import remove_dead_code
from compiler.passes.fold_weights import fold_weights
from compiler.passes.fuse import fuse
from compiler.passes.place_collectives import Split, collectives, place_collectives
from compiler.passes.plan_memory import MemoryPlan, plan_memory
from compiler.passes.record import PassRecord, RuleRecord
from compiler.passes.specialise import AS_DECLARED, Use, specialise
from compiler.registry import region_rules
from compiler.target import Target, check_collectives, check_dtypes

PLACE_COLLECTIVES = "place collectives"
NO_RULES = "no chain has a lowering of its own on this backend"


@dataclass(frozen=True, slots=True)
class Request:
    """What to compile a circuit to: the use it is specialised for, the target, and the size of every named dim.

    certified: weights of products that may be read in eight bits first where only the best is asked for.
    splits: this rank's part of each weight that several ranks share, by the weight's name; empty for one rank, and for
        a circuit whose collectives are placed already.
    """

    target: Target
    dims: Mapping[str, int]
    use: Use = AS_DECLARED
    certified: tuple[str, ...] = ()
    splits: Mapping[str, Split] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A circuit on its way through the passes, and what they found out.

    derived: the weights that the circuit reads in place of the checkpoint's, and what they are made of.
    memory: where every value lies, once the last pass has run.
    """

    circuit: Circuit
    records: tuple[PassRecord, ...] = ()
    derived: tuple[DerivedWeight, ...] = ()
    memory: MemoryPlan | None = None

    @property
    def rules(self) -> tuple[RuleRecord, ...]:
        """Every rule of every pass: where it fired, or why not."""
        return tuple(rule for record in self.records for rule in record.rules)

    def unfired_rules(self) -> dict[str, str]:
        """Return each rule that did not fire with its reason."""
        return {rule.rule: rule.why_not for rule in self.rules if not rule.fired}

    def fired_rules(self) -> dict[str, tuple[str, ...]]:
        """Return each rule that fired with the first result it made, each time."""
        return {rule.rule: rule.fired for rule in self.rules if rule.fired}


def _verify(compiled: Compiled, request: Request) -> Compiled:
    """Refuse a circuit that breaks an invariant, or has a dtype that the target does not run; changes nothing."""
    verify(compiled.circuit)
    check_dtypes(compiled.circuit, request.target)
    return _done(compiled, "verify", compiled.circuit, "legal")


def _specialise(compiled: Compiled, request: Request) -> Compiled:
    """Cut and prune to one use: a step, a chain of drafts, or context rows."""
    circuit = specialise(compiled.circuit, request.use)
    return _done(compiled, "specialise", circuit, f"{request.use}, {len(circuit.calls)} calls")


def _dead_code(compiled: Compiled, request: Request) -> Compiled:
    """Drop what no output and no state needs."""
    circuit = remove_dead_code(compiled.circuit)
    dropped = len(compiled.circuit.calls) - len(circuit.calls)
    return _done(compiled, "dead code", circuit, f"{dropped} calls dropped")


def _place_collectives(compiled: Compiled, request: Request) -> Compiled:
    """Give this rank its parts of the weights, and exchange what several ranks must know.

    It goes before the folding of weights, which joins a split weight with a whole one.
    """
    circuit = place_collectives(compiled.circuit, request.splits)
    check_collectives(circuit, request.target)
    placed = collectives(circuit)
    return _done(compiled, PLACE_COLLECTIVES, circuit, f"{len(placed)} exchanges" if placed else "one rank")


def _fold_weights(compiled: Compiled, request: Request) -> Compiled:
    """Join products of one input and part kv_b, where the target wants it."""
    circuit, derived, rules = fold_weights(compiled.circuit, why_not=request.target.why_not)
    done = _done(compiled, "fold weights", circuit, f"{len(derived)} weights derived", rules)
    return replace(done, derived=derived)


def _certify_products(compiled: Compiled, request: Request) -> Compiled:
    """Say in eight bits which outputs of a product cannot win, where the request wants it."""
    circuit, derived, rules = certify_products(compiled.circuit, request.certified)
    done = _done(compiled, "certify products", circuit, f"{len(derived)} weights derived", rules)
    return replace(done, derived=(*compiled.derived, *derived))


def _fuse(compiled: Compiled, request: Request) -> Compiled:
    """Make regions of the chains that the backend has a lowering for."""
    rules = region_rules(request.target.backend)
    circuit, records = fuse(compiled.circuit, rules)
    summary = f"{len(compiled.circuit.calls)} calls became {len(circuit.calls)}"
    return _done(compiled, "fuse", circuit, summary, records or (RuleRecord("fuse", reasons=(NO_RULES,)),))


def _bind_dims(compiled: Compiled, request: Request) -> Compiled:
    """Put the sizes of this program for the named dims."""
    circuit = bind_dims(compiled.circuit, request.dims)
    spelled = ", ".join(f"{name} = {size}" for name, size in request.dims.items())
    return _done(compiled, "bind dims", circuit, spelled)


def _plan_memory(compiled: Compiled, request: Request) -> Compiled:
    """Give every value a place in one arena, and every state version the place of its state."""
    memory = plan_memory(compiled.circuit)
    done = _done(compiled, "plan memory", compiled.circuit, f"{memory.arena_bytes:,} bytes")
    return replace(done, memory=memory)


Pass: TypeAlias = Callable[[Compiled, Request], Compiled]

PASSES: tuple[Pass, ...] = (
    _verify,
    _specialise,
    _dead_code,
    _place_collectives,
    _fold_weights,
    _certify_products,
    _fuse,
    _bind_dims,
    # what is emitted is legal too, and no write was lost on the way
    _verify,
    _plan_memory,
)

# of a circuit that is specialised already, and may hold what a chain makes and nobody reads
AFTER_SPECIALISING = PASSES[PASSES.index(_dead_code) :]


def compile_circuit(circuit: Circuit, request: Request, *, passes: tuple[Pass, ...] = PASSES) -> Compiled:
    """Run the passes; `VerifyError`, `TypeRuleError` or `BindingError` names what a circuit or a request lacks."""
    compiled = Compiled(circuit)
    for run in passes:
        before = compiled
        compiled = run(before, request)
        # a chain writes once per draft what a step writes once
        times = request.use.num_drafts if run is _specialise else 1
        _check_writes(before.circuit, compiled.circuit, times=times, after=compiled.records[-1].name)
        # before they are placed, specialising and dead code decide which there are
        if any(record.name == PLACE_COLLECTIVES for record in before.records):
            _check_exchanges(before.circuit, compiled.circuit, after=compiled.records[-1].name)
    return compiled


def state_writes(circuit: Circuit) -> dict[str, int]:
    """Return how many calls write each state, those inside regions counted one by one."""
    owner: dict[Value, str] = {value: name for name, value in circuit.states.items()}
    counts = dict.fromkeys(circuit.states, 0)
    for call in circuit.calls:
        inner = call.node.inner_circuit()
        inside = {} if inner is None else state_writes(inner)
        for position, port in enumerate(call.node.writes):
            name = owner[call.args[call.node.ports.index(port)]]
            owner[call.results[position]] = name
            counts[name] += inside.get(port, 1)
    return counts


def _check_writes(before: Circuit, after_pass: Circuit, *, times: int, after: str) -> None:
    expected = {name: count * times for name, count in state_writes(before).items()}
    got = state_writes(after_pass)
    if wrong := [name for name in {**expected, **got} if expected.get(name) != got.get(name)]:
        raise VerifyError(
            f"circuit {before.name!r}, pass {after!r}: expected {expected.get(wrong[0], 0)} writes of the state "
            f"{wrong[0]!r} as before it, got {got.get(wrong[0], 0)}; the pass loses or doubles a write",
            at=wrong[0],
        )


def _check_exchanges(before: Circuit, after_pass: Circuit, *, after: str) -> None:
    expected, got = ([_exchange_text(call) for call in collectives(circuit)] for circuit in (before, after_pass))
    if expected != got:
        raise VerifyError(
            f"circuit {before.name!r}, pass {after!r}: expected the exchanges {'; '.join(expected) or 'none'} "
            f"as before it, got {'; '.join(got) or 'none'}; the pass loses, doubles or moves one"
        )


def _exchange_text(call: Call) -> str:
    return f"{call.results[0].name} = {call.node}"


def _done(
    compiled: Compiled, name: str, circuit: Circuit, summary: str, rules: tuple[RuleRecord, ...] = ()
) -> Compiled:
    return replace(compiled, circuit=circuit, records=(*compiled.records, PassRecord(name, summary, rules)))
