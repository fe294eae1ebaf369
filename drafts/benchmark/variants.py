"""The ways to run one chain of drafts that are timed against one another, each with module and cache of its own."""

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from circuit import Circuit, Value, dtype_name
from compiler.inductor import LoweredCircuit, PackagedProgram, build_driver, build_package
from drafts.batch import RowBatch
from drafts.binding import DraftBinding
from drafts.cache import DrafterCache
from drafts.compile_drafter import OPEN_SIZES
from drafts.compiled_runner import CompiledRunner
from drafts.config import DraftConfig
from drafts.decisions import Decisions, default_decisions
from drafts.eager_glm5_next import EagerGlm5NextHead, EagerPath
from drafts.programs import ProgramKey, program_circuit, program_dims, program_step
from drafts.proposer import DraftProposer
from drafts.runner import row_inputs, state_tensors

Run = Callable[[], Tensor]  # ids int64 [n, K]
CompileOptions = dict[str, str | int | bool | Callable[..., Any]]

# what a user reaches for first, and the preset that came out best of those that torch offers on a CPU
COMPILE_OPTIONS: dict[str, CompileOptions | None] = {
    "torch_compile": None,
    "torch_compile_best": {"max_autotune": True, "freezing": True},
}


_numbers = count()


class Case(Protocol):
    """What a variant is made of: a filled cache, and the rows that a chain starts from."""

    config: DraftConfig
    weights: Mapping[str, Tensor]
    decisions: Decisions
    cache: DrafterCache
    rows: RowBatch
    circuit: Circuit
    num_drafts: int


class Prepared:
    """A filled cache and the rows that a chain starts from: `num_rows` sequences, each near the end of its context."""

    def __init__(self, config: DraftConfig, weights: Mapping[str, Tensor], *, num_rows: int, context: int, drafts: int):
        self.config, self.weights, self.num_drafts = config, weights, drafts
        self.decisions = default_decisions(config)
        self.proposer = DraftProposer(config, weights, self.decisions, max_seq_len=context, num_sequences=num_rows)
        self.cache = self.proposer.cache
        self.binding = _binding(self.proposer)
        generator = torch.Generator().manual_seed(1)
        states = [self.proposer.alloc_state() for _ in range(num_rows)]
        length = context - drafts - 1
        hidden = torch.randn(length, config.hidden_size, generator=generator).to(config.dtype)
        tokens = torch.randint(0, config.vocab_size, (length,), generator=generator)
        for number, state in enumerate(states):
            self.proposer.prefill_drafter(tokens.roll(number), hidden, state)
        sequences = [state.sequence for state in states]
        self.rows = RowBatch(
            token=tokens[:num_rows],
            hidden=hidden[:num_rows].clone(),
            position=torch.full((num_rows,), length - 1),
            sequence=torch.tensor([sequence.slot for sequence in sequences]),
            block_table=self.cache.block_table(sequences),
        )
        self.key = ProgramKey("chain", drafts, num_rows, self.rows.block_table.shape[1] * self.cache.block_size)
        self.circuit = program_circuit(self.binding, self.key)


def eager(prepared: Case) -> Run:
    """The eager head: absorbed MLA, incremental pools, a loop over the experts that rows chose."""
    head = EagerGlm5NextHead(prepared.config, prepared.weights, prepared.decisions)
    path, cache = EagerPath(head, check_values=False), _copied(prepared.cache)
    return lambda: path.draft(prepared.rows, cache, num_drafts=prepared.num_drafts).ids


def compiled_by_torch(prepared: Case, *, options: CompileOptions | None) -> Run:
    """torch.compile of the chain in plain operators: linear, gather, softmax; weights as buffers, caches in place."""
    module = _own_code(_PlainChain)(prepared.circuit, prepared.weights)
    compiled = torch.compile(module, fullgraph=True, dynamic=False, options=options)
    arguments = _arguments(prepared.circuit, prepared, _copied(prepared.cache))
    for argument in arguments:
        # without it a CUDA graph of torch's would copy the caches in, or not be made since they are written
        torch._dynamo.mark_static_address(argument)

    def run() -> Tensor:
        with torch.no_grad():
            return torch.stack(compiled(*arguments), dim=1)

    return run


def compiled_circuit(prepared: Prepared, folder: Path, *, num_threads: int) -> Run:
    """The compiled program of the same chain, through the runner that a proposer calls."""
    dims = program_dims(prepared.binding, prepared.key)
    circuit, feedback = program_step(prepared.binding, prepared.key)
    dtype = dtype_name(prepared.config.dtype)
    path = folder / f"{prepared.key.name}_{dtype}_depth{dims['tail_depth']}_threads{num_threads}.so"
    if not path.exists():
        build_driver(folder)
        build_package(circuit, {**dims, **OPEN_SIZES}, path, num_threads=num_threads)
    program = PackagedProgram(circuit, dims, path, feedback=feedback)
    runner = CompiledRunner(prepared.binding, {prepared.key: program}, backend="inductor", inexact={prepared.key})
    cache = _copied(prepared.cache)
    return lambda: runner.draft(prepared.rows, cache, num_drafts=prepared.num_drafts).ids


class _PlainChain(nn.Module):
    """A circuit in its references, weights held as buffers; only the cache writes are lowered, to writes in place."""

    def __init__(self, circuit: Circuit, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._lowered = LoweredCircuit(circuit, lowers=lambda node: bool(node.writes))
        self._names = [name.replace(".", "_") for name in circuit.weights]
        for name, own_name in zip(circuit.weights, self._names, strict=True):
            self.register_buffer(own_name, weights[name])

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._lowered(*tensors, *(getattr(self, name) for name in self._names))


def _own_code(kind: type[_PlainChain]) -> type[_PlainChain]:
    """Return a subclass whose forward is a code object of its own.

    torch.compile keeps what it compiled by code object: two variants of one function would be each other's recompiles.
    """
    forward = kind.forward
    copy = FunctionType(
        forward.__code__.replace(co_filename=f"<variant {next(_numbers)}>"), forward.__globals__, "forward"
    )
    return type(kind.__name__, (kind,), {"forward": copy})


def _arguments(circuit: Circuit, prepared: Case, cache: DrafterCache) -> list[Tensor]:
    inputs, states = row_inputs(prepared.rows), state_tensors(cache)
    sources: list[Value] = [*circuit.inputs.values(), *circuit.states.values()]
    return [inputs[value.name] if value.kind == "input" else states[value.name] for value in sources]


def _copied(cache: DrafterCache) -> DrafterCache:
    copy = DrafterCache(
        cache.config,
        num_blocks=cache.num_blocks,
        num_sequences=cache.num_sequences,
        block_size=cache.block_size,
        tail_depth=cache.tail_depth,
        device=cache.latent.device,
    )
    for ours, theirs in zip(state_tensors(copy).values(), state_tensors(cache).values(), strict=True):
        ours.copy_(theirs)
    return copy


def _binding(proposer: DraftProposer) -> DraftBinding:
    binding = proposer.circuit_draft()
    assert binding is not None, "benchmark sizes are modelled"
    return binding
