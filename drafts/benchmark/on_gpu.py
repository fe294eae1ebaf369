"""Measuring on a GPU: a case of random weights and caches made there, times by CUDA events, and the copy rate."""

from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

import drafts.configs
from circuit import Circuit
from compiler import plan_compiled, target_of
from compiler.triton import CudaGraphProgram, LaunchPlan, LaunchProgram
from drafts.batch import RowBatch
from drafts.benchmark.protocol import Timing, timing_of
from drafts.benchmark.variants import Run
from drafts.binding import DraftBinding
from drafts.config import DraftConfig, read_config
from drafts.decisions import default_decisions
from drafts.programs import ProgramKey, program_circuit
from drafts.proposer import DraftProposer
from drafts.runner import row_inputs, state_tensors
from drafts.triton_runner import TritonRunner, compile_for_launches, launch_circuit, launch_plan
from drafts.weights import head_weight_specs

COPIED_BYTES = 1 << 30  # of each side of a copy, twenty times what an L2 holds
AHEAD_CYCLES = 2_000_000  # about a millisecond: the host gets ahead of what is timed


def released_config() -> DraftConfig:
    """Return the config of the released GLM-5.3-Flash, in bf16."""
    return read_config(Path(drafts.configs.__file__).parent / "glm-5.3-flash.json", dtype=torch.bfloat16)


def gpu_weights(config: DraftConfig, *, device: torch.device, seed: int = 0) -> dict[str, Tensor]:
    """Return random weights of the scale of sizes.random_weights, made on the device."""
    generator = torch.Generator(device).manual_seed(seed)
    weights = {}
    for spec in head_weight_specs(config, target_norm=default_decisions(config).applies_target_norm):
        values = torch.empty(spec.shape, dtype=spec.dtype, device=device).normal_(generator=generator)
        if len(spec.shape) > 1:
            values *= spec.shape[-1] ** -0.5
        elif not spec.name.endswith("bias"):
            values = values.mul_(0.1).add_(1.0)
        weights[spec.name] = values
    return weights


class GpuCase:
    """Sequences with random caches, each `num_drafts` rows from the end of its context; a Case, see variants.py.

    plan: the launches of the whole chain. bytes: what they read and write, as the nodes declare it; of experts those
    that random choices hit.
    """

    def __init__(
        self, config: DraftConfig, weights: Mapping[str, Tensor], *, num_rows: int, context: int, num_drafts: int
    ) -> None:
        self.config, self.weights, self.num_drafts = config, weights, num_drafts
        self.decisions = default_decisions(config)
        proposer = DraftProposer(
            config,
            weights,
            self.decisions,
            max_seq_len=context,
            num_sequences=num_rows,
            max_num_drafts=max(num_drafts, 1),
        )
        self.cache = proposer.cache
        binding = proposer.circuit_draft()
        assert binding is not None, "benchmark sizes are modelled"
        self.binding: DraftBinding = binding
        device = self.cache.latent.device
        generator = torch.Generator(device).manual_seed(1)
        for state in state_tensors(self.cache).values():
            state.normal_(generator=generator)
        sequences = [self.cache.allocate(rows=context) for _ in range(num_rows)]
        position = context - num_drafts
        hidden = torch.empty(num_rows, config.hidden_size, dtype=config.dtype, device=device)
        # as a proposer makes them: numbers on the host, hiddens where the target left them
        self.host_rows = RowBatch(
            token=torch.randint(0, config.vocab_size, (num_rows,), generator=torch.Generator().manual_seed(1)),
            hidden=hidden.normal_(generator=generator),
            position=torch.full((num_rows,), position),
            sequence=torch.tensor([sequence.slot for sequence in sequences]),
            block_table=self.cache.block_table(sequences),
        )
        self.rows = self.host_rows.beside_hiddens()
        max_blocks = self.rows.block_table.shape[1]
        key = ProgramKey("chain", num_drafts, num_rows, max_blocks * self.cache.block_size)
        self.circuit: Circuit = program_circuit(binding, key)
        compiled = compile_for_launches(
            binding,
            launch_circuit(binding, num_drafts=num_drafts),
            num_rows=num_rows,
            max_blocks=max_blocks,
            num_blocks=self.cache.num_blocks,
            num_sequences=self.cache.num_sequences,
        )
        self.compiled = compiled
        self.plan: LaunchPlan = launch_plan(compiled, name=key.name)
        planned = plan_compiled(compiled, name=key.name, target=target_of("triton"), dims={})
        self.costs = [call.bytes_read + call.bytes_written for call in planned.calls]

    @property
    def bytes(self) -> int:
        """Bytes of the whole chain."""
        return sum(self.costs)

    def launches(self, *, derived: Mapping[str, Tensor]) -> LaunchProgram:
        """Return the chain launch by launch, bound and fed."""
        program = LaunchProgram(self.plan, device=self.cache.latent.device)
        program.bind(states=state_tensors(self.cache), weights={**self.weights, **derived})
        program.memory.feed(row_inputs(self.rows))
        return program

    def captured(self, *, derived: Mapping[str, Tensor]) -> CudaGraphProgram:
        """Return the chain as one graph, captured and tested by a first run."""
        program = CudaGraphProgram(self.plan, device=self.cache.latent.device)
        program.run(
            inputs=row_inputs(self.rows),
            states=state_tensors(self.cache),
            weights={**self.weights, **derived},
            num_steps=self.num_drafts,
            outputs=("token",),
        )
        return program

    def through_the_runner(self) -> Run:
        """The captured chain as a proposer calls it: checks, inputs, replay and ids."""
        runner = TritonRunner(self.binding, is_exact=False)
        return lambda: runner.draft(self.host_rows, self.cache, num_drafts=self.num_drafts).ids


class L2Flush:
    """Writes twice what the L2 holds, so that what is timed next finds none of its weights there."""

    def __init__(self, device: torch.device) -> None:
        self.num_bytes = 2 * int(torch.cuda.get_device_properties(device).L2_cache_size)
        self._memory = torch.empty(self.num_bytes, dtype=torch.uint8, device=device)

    def __call__(self) -> None:
        """Start the write."""
        self._memory.zero_()


def time_by_events(
    variants: Mapping[str, Callable[[], object]],
    *,
    flush: Callable[[], None],
    seconds: float,
    is_host_ahead: bool = False,
    min_rounds: int = 20,
) -> dict[str, Timing]:
    """Call every variant once a round, starting with another one each time, for `seconds` or `min_rounds`.

    Each call starts on an idle device after a flush, and its time holds what the host takes to start its launches;
    with `is_host_ahead` the device is kept busy until all is queued, and the time is the device's alone.
    """
    names = list(variants)
    for name in names:
        for _ in range(3):
            variants[name]()
    samples: dict[str, list[float]] = {name: [] for name in names}
    began, rounds = perf_counter(), 0
    while rounds < min_rounds or perf_counter() - began < seconds:
        shift = rounds % len(names)
        for name in names[shift:] + names[:shift]:
            samples[name].append(one_us(variants[name], flush=flush, is_host_ahead=is_host_ahead))
        rounds += 1
    return {name: timing_of(values) for name, values in samples.items()}


def copy_gbps(device: torch.device, *, seconds: float = 1.0) -> float:
    """Return GB/s, read and written, of a copy within the device's memory: the median of its rounds."""
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timed = time_by_events({"copy": lambda: target.copy_(source)}, flush=lambda: None, seconds=seconds)
    return 2 * COPIED_BYTES / timed["copy"].median_us / 1e3


def one_us(run: Callable[[], object], *, flush: Callable[[], None], is_host_ahead: bool = False) -> float:
    """Return the microseconds of one call on an idle device after a flush; see time_by_events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush()
    torch.cuda.synchronize()
    if is_host_ahead:
        torch.cuda._sleep(AHEAD_CYCLES)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
