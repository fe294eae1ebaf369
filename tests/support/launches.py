"""Regions and whole programs through their Triton launches, against what the interpreter makes of the same circuit.

Launches run where kernels run in this process: on the CPU under Triton's interpreter, or on a GPU. References run on
the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from circuit import Call, Circuit, StateType, Value, interpret
from compiler import DerivedWeights, chain, remove_dead_code
from compiler.compile import AFTER_SPECIALISING, Compiled, Request, compile_circuit
from compiler.region import Region
from compiler.registry import region_rules
from compiler.target import target_of
from compiler.triton.emission import LaunchPlan, emit
from compiler.triton.launch import Buffer, View
from compiler.triton.memory import Memory
from compiler.triton.program import is_interpreting, run_launch
from drafts.batch import RowBatch
from drafts.binding import DraftBinding
from drafts.head_weights import certified_of
from tests.drafts.drafter_twin import make_proposer, make_text
from tests.drafts.tiny_head import join, rows_at
from tests.support.nan_empty import poison

GUARD = 256  # bytes before and after every buffer, which nothing may write

Program = Literal["step", "next", "chain", "context"]


def launch_device() -> torch.device:
    """Where kernels run in this process."""
    return torch.device("cpu" if is_interpreting() else "cuda")


class GuardedMemory(Memory):
    """Memory in which every buffer, lent ones too, lies alone between guard zones, and starts poisoned."""

    def __init__(self, plan: LaunchPlan) -> None:
        super().__init__(plan, device=launch_device())
        self._zones: dict[str, tuple[Tensor, Tensor]] = {}
        self._lent: dict[str, Tensor] = {}
        for buffer in plan.buffers.values():
            base = self._guarded(buffer)
            if buffer.kind == "counter":
                base.zero_()
            else:
                poison(base)

    def lend(self, tensors: Mapping[str, Tensor], declared: Mapping[str, View]) -> None:
        """Copy what is lent between guards."""
        for name, view in declared.items():
            self.tensor(view).copy_(tensors[name])
            self._lent[view.buffer] = tensors[name].clone()

    def _guarded(self, buffer: Buffer) -> Tensor:
        memory = torch.full((buffer.num_bytes + 2 * GUARD + 16,), 0xA5, dtype=torch.uint8, device=self.device)
        start = GUARD + (-(memory.data_ptr() + GUARD)) % 16
        stop = start + buffer.num_bytes
        self._zones[buffer.name] = (memory[:start], memory[stop:])
        self._bases[buffer.name] = memory[start:stop].view(buffer.dtype)
        return self._bases[buffer.name]

    def check(self) -> None:
        """Fail where a launch wrote outside its buffers, into a weight or an input, or left a counter counted up."""
        for name, zones in self._zones.items():
            assert all(bool((zone == 0xA5).all()) for zone in zones), f"{name}: written outside its {GUARD} byte guards"
        for view in (*self.plan.weights.values(), *self.plan.inputs.values()):
            kept = self._lent[view.buffer]
            held = self.tensor(view).cpu()
            assert torch.equal(held.nan_to_num(7.0), kept.nan_to_num(7.0)), f"{view.buffer}: was written"
        for buffer in self.plan.buffers.values():
            if buffer.kind == "counter":
                assert not self.base(buffer).any(), f"{buffer.name}: a counter is not back at zero"


class LaunchScene:
    """A tiny head over sequences of these lengths, its fused program, and the value of every edge as interpreted.

    positions: the row that each sequence drafts at, or the first of `context_rows` rows each for a context program.
    padding: rows of the null sequence beside them. mask_words: of a grammar, as many as the vocabulary takes if None.
    Other keywords change the config, see tests/drafts/tiny_head.py.
    """

    def __init__(
        self,
        positions: Sequence[int] = (18, 3, 41),
        *,
        padding: int = 1,
        program: Program = "step",
        num_drafts: int = 3,
        context_rows: int = 7,
        decisions: dict[str, str] | None = None,
        has_grammar: bool = False,
        has_confidence: bool = False,
        mask_words: int | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        max_seq_len: int = 96,
        **config: Any,
    ) -> None:
        proposer = make_proposer(
            decisions=decisions,
            num_sequences=len(positions),
            max_seq_len=max_seq_len,
            dtype=dtype,
            seed=seed,
            **config,
        )
        binding = proposer.circuit_draft()
        assert binding is not None
        self.binding: DraftBinding = binding
        count = context_rows if program == "context" else 1
        batches = []
        for number, position in enumerate(positions):
            text, state = make_text(proposer, position + count + 2, seed=seed + number), proposer.alloc_state()
            text.prefill(proposer, state, position)
            proposer.cache.ensure_capacity(state.sequence, position + count + num_drafts)
            stop = position + count
            tokens, hiddens = text.tokens[position + 1 : stop + 1], text.hiddens[position:stop]
            batches.append(rows_at(proposer.cache, state.sequence, tokens, hiddens, position))
        self.num_live = count * len(positions)
        self.rows = _padded(join(*batches), padding)
        self.states = {
            "latent_cache": proposer.cache.latent.clone(),
            "index_keys": proposer.cache.index_keys.clone(),
            "tail": proposer.cache.tail.clone(),
        }
        parts = {"has_grammar": has_grammar, "has_confidence": has_confidence}
        self.declared = self._declared(program, num_drafts, parts)
        words = mask_words or -(-binding.config.vocab_size // 32)
        sizes = {
            "n": self.rows.num_rows,
            "max_blocks": self.rows.block_table.shape[1],
            "num_blocks": self.states["latent_cache"].shape[0],
            "num_sequences": self.states["tail"].shape[0],
            "mask_words": words,
        }
        certified = certified_of(binding.draft_head)
        request = Request(target_of("triton"), {**binding.dims, **sizes}, certified=certified)
        self.compiled: Compiled = compile_circuit(self.declared, request, passes=AFTER_SPECIALISING)
        derived = DerivedWeights(self.compiled.derived, binding.weights)
        self.weights = {**binding.weights, **derived.tensors}
        generator = torch.Generator().manual_seed(seed)
        mask = torch.randint(-(2**31), 2**31, (self.rows.num_rows, words), generator=generator).to(torch.int32)
        fields = {name: getattr(self.rows, name) for name in ("token", "position", "sequence", "block_table")}
        self.inputs = fields | {
            "target_hidden": self.rows.hidden,
            "drafter_hidden": self.rows.hidden,
            "selected_at": self.rows.position,
            "grammar_bitmask": mask,
        }

    def _declared(self, program: Program, num_drafts: int, parts: dict[str, bool]) -> Circuit:
        binding = self.binding
        if program == "context":
            return binding.context()
        if program in ("step", "next"):
            return remove_dead_code(binding.step(is_first=program == "step", **parts))
        steps = [binding.step(is_first=True, **parts), *[binding.step(is_first=False, **parts)] * (num_drafts - 1)]
        return remove_dead_code(chain(steps, feedback=binding.feedback, outputs=("token",)))

    @cached_property
    def edges(self) -> dict[Value, Tensor]:
        """Every value of the fused circuit, as the regions' references make it."""
        circuit = self.compiled.circuit
        found: dict[Value, Tensor] = {}
        weights = {name: self.weights[name] for name in circuit.weights}
        found.update((value, self.inputs[name]) for name, value in circuit.inputs.items() if name in self.inputs)
        found.update((value, weights[name]) for name, value in circuit.weights.items())
        found.update((value, self.states[name]) for name, value in circuit.states.items())
        interpret(
            circuit,
            inputs={name: found[value] for name, value in circuit.inputs.items()},
            weights=weights,
            states=self.states,
            observe=lambda value, tensor: found.__setitem__(value, tensor),
        )
        return found

    def region(self, rule: str, *, draft: int = 1) -> Call:
        """Return the call of a rule's region in one draft of a chain."""
        calls = [c for c in self.compiled.circuit.calls if isinstance(c.node, Region) and c.node.rule == rule]
        return calls[draft - 1]

    def region_tensors(self, rule: str, *, draft: int = 1) -> dict[str, Tensor]:
        """Return what a region reads, by port; a test may change it before `check_region`."""
        call = self.region(rule, draft=draft)
        return {port: self.edges[arg].clone() for port, arg in zip(call.node.ports, call.args, strict=True)}

    def check_region(
        self,
        rule: str,
        *,
        draft: int = 1,
        tensors: Mapping[str, Tensor] | None = None,
        atol: float = 0.0,
        rtol: float | None = None,
    ) -> dict[str, Tensor]:
        """Hold a region's launches to its reference on the same tensors; returns the results by name.

        The bound is relative to the largest expected magnitude; by default that of the rule's tag in float32 and one
        unit of the dtype else. Integers are held exactly. Rows of padding and null entries of states may hold anything.
        """
        call = self.region(rule, draft=draft)
        given = dict(tensors) if tensors is not None else self.region_tensors(rule, draft=draft)
        alone, results = _alone(call)
        plan = emit(alone, name=rule)
        memory = GuardedMemory(plan)
        for declared in (plan.inputs, plan.weights, plan.states):
            memory.lend(given, declared)
        for launch in plan.launches:
            run_launch(launch, memory)
        memory.check()
        expected = call.node.reference(*(given[port].clone() for port in call.node.ports))
        expected = expected if isinstance(expected, tuple) else (expected,)
        got = {}
        for value, wanted in zip(results, expected, strict=True):
            is_state = isinstance(value.type, StateType)
            view = plan.states[_written(call, value)] if is_state else plan.outputs[value.name]
            got[value.name] = memory.tensor(view).cpu()
            # the null block and the null sequence come first, rows of padding last
            part = slice(1, None) if is_state else slice(0, self.num_live)
            bound = tag_bound(rule, wanted.dtype) if rtol is None else rtol
            assert_like(f"{rule}.{value.name}", got[value.name][part], wanted[part], atol=atol, rtol=bound)
        return got

    def run_program(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Run the whole program through its launches; return its outputs and its states, null entries included."""
        plan = emit(self.compiled.circuit, name="program", derived=self.compiled.derived)
        memory = GuardedMemory(plan)
        memory.lend(self.inputs, plan.inputs)
        memory.lend(self.weights, plan.weights)
        memory.lend(self.states, plan.states)
        for launch in plan.launches:
            run_launch(launch, memory)
        memory.check()
        outputs = {name: memory.tensor(view).cpu() for name, view in plan.outputs.items()}
        return outputs, {name: memory.tensor(view).cpu() for name, view in plan.states.items()}


def tag_bound(rule: str, dtype: torch.dtype) -> float:
    """Return the tag of a rule as a bound on results of a dtype: its own in float32, one unit of the dtype else."""
    (numerics,) = (held.numerics for held in region_rules("triton") if held.name == rule)
    return numerics.bound if dtype == torch.float32 else 2**-7


def assert_like(where: str, got: Tensor, expected: Tensor, *, atol: float = 0.0, rtol: float | None = None) -> None:
    """Fail unless equal (integers, infinities) or within `rtol` of the largest expected magnitude, plus `atol`."""
    assert got.dtype == expected.dtype, f"{where}: {got.dtype}, expected {expected.dtype}"
    assert got.shape == expected.shape, f"{where}: {list(got.shape)}, expected {list(expected.shape)}"
    if not expected.is_floating_point():
        assert torch.equal(got, expected), f"{where}: got {got.tolist()}, expected {expected.tolist()}"
        return
    finite = expected.isfinite()
    assert torch.equal(got[~finite].nan_to_num(7.0), expected[~finite].nan_to_num(7.0)), f"{where}: infinities differ"
    if not finite.any():
        return
    relative = rtol if rtol is not None else (1e-5 if expected.dtype == torch.float32 else 2**-7)
    bound = atol + relative * float(expected[finite].abs().max())
    difference = (got[finite].double() - expected[finite].double()).abs()
    worst = float(difference.nan_to_num(torch.inf).max())
    assert worst <= bound, f"{where}: differs by {worst:.3g}, bound {bound:.3g}"


def _alone(call: Call) -> tuple[Circuit, tuple[Value, ...]]:
    """Return a circuit of one call, its sources named by port and its outputs by result."""
    circuit = Circuit("alone")
    args = []
    for port, arg in zip(call.node.ports, call.args, strict=True):
        if isinstance(arg.type, StateType):
            args.append(circuit.state(port, arg.type))
        elif arg.kind == "weight":
            args.append(circuit.weight(port, arg.type))
        else:
            args.append(circuit.input(port, arg.type))
    results = circuit.add_call(call.node, args, names=[f"{name}'" for name in call.node.results], block=call.block)
    for value in results:
        if not isinstance(value.type, StateType):
            circuit.output(value.name, value)
    for port in (*call.node.reads, *call.node.writes):
        written = dict(zip(call.node.writes, results, strict=False))
        circuit.state_output(port, written.get(port, circuit.states[port]))
    return circuit, tuple(results)


def _written(call: Call, value: Value) -> str:
    """The state port whose next version a result is."""
    return call.node.writes[value.result]


def _padded(rows: RowBatch, padding: int) -> RowBatch:
    pad = torch.nn.functional.pad
    return RowBatch(
        token=pad(rows.token, (0, padding)),
        hidden=pad(rows.hidden, (0, 0, 0, padding)),
        position=pad(rows.position, (0, padding)),
        sequence=pad(rows.sequence, (0, padding)),
        block_table=pad(rows.block_table, (0, 0, 0, padding)),
    )
