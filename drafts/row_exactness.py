"""Whether a compiled chain of several rows gives each row the bits that it has alone, in the smallest chain."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from compiler.inductor import PackagedProgram
from drafts.batch import RowBatch
from drafts.binding import DraftBinding
from drafts.cache import DrafterCache
from drafts.compiled_runner import padded_rows
from drafts.programs import ProgramKey, program_dims, program_step
from drafts.runner import row_inputs, state_tensors

NUM_TRIALS = 8
NUM_STEPS = 2


def exact_chains(binding: DraftBinding, packages: Mapping[ProgramKey, Path]) -> set[ProgramKey]:
    """Return the chains at `packages` whose rows come out as each alone, in the smallest chain of the same context.

    Both run over the same random states and rows, and every id, every hidden and every byte left in the states must be
    the same in all trials. Which order a sum takes hangs on sizes, not on values, so a program that rounds otherwise
    shows it in most rows of the first trial.
    """
    exact = set()
    chains = sorted(key for key in packages if key.kind == "chain")
    for key in chains:
        smallest = next(other for other in chains if other.max_rows == key.max_rows)
        many, one = (_program(binding, held, packages[held]) for held in (key, smallest))
        if key.num_rows == 1 or all(_agree(binding, key, many, one, seed=seed) for seed in range(NUM_TRIALS)):
            exact.add(key)
    return exact


def _program(binding: DraftBinding, key: ProgramKey, package: Path) -> PackagedProgram:
    circuit, feedback = program_step(binding, key)
    return PackagedProgram(circuit, program_dims(binding, key), package, feedback=feedback)


def _agree(binding: DraftBinding, key: ProgramKey, many: PackagedProgram, one: PackagedProgram, *, seed: int) -> bool:
    cache, rows = _random_run(binding, key, seed=seed)
    before = {name: tensor.clone() for name, tensor in state_tensors(cache).items()}
    together = many.run(
        inputs=row_inputs(rows), states=state_tensors(cache), weights=binding.weights, num_steps=NUM_STEPS
    )
    for row in range(key.num_rows):
        part = RowBatch(*(getattr(rows, name)[row : row + 1] for name in RowBatch.__slots__))
        padded = padded_rows(part, one.dims["n"], one.dims["max_blocks"])
        alone = one.run(inputs=row_inputs(padded), states=before, weights=binding.weights, num_steps=NUM_STEPS)
        if any(not _same_bits(together[name][:, row], tensor[:, 0]) for name, tensor in alone.items()):
            return False
    # block 0 and sequence 0 are nobody's
    return all(_same_bits(tensor[1:], before[name][1:]) for name, tensor in state_tensors(cache).items())


def _random_run(binding: DraftBinding, key: ProgramKey, *, seed: int) -> tuple[DrafterCache, RowBatch]:
    config, layout = binding.config, binding.state_layout
    generator = torch.Generator().manual_seed(seed)
    cache = DrafterCache(
        config,
        num_blocks=key.num_rows * key.max_rows // layout.block_size + 1,
        num_sequences=key.num_rows + 1,
        block_size=layout.block_size,
        tail_depth=binding.dims["tail_depth"],
    )
    sequences = [cache.allocate(rows=key.max_rows) for _ in range(key.num_rows)]
    for tensor in state_tensors(cache).values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return cache, RowBatch(
        token=torch.randint(config.vocab_size, (key.num_rows,), generator=generator),
        hidden=torch.randn(key.num_rows, config.hidden_size, generator=generator).to(config.dtype),
        position=torch.randint(key.max_rows - NUM_STEPS, (key.num_rows,), generator=generator),
        sequence=torch.tensor([sequence.slot for sequence in sequences]),
        block_table=cache.block_table(sequences),
    )


def _same_bits(ours: Tensor, theirs: Tensor) -> bool:
    # NaN of one bit pattern are the same result
    return torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
