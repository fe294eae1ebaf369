"""Runs over sequences whose whole history is known: the rows of a run, and the ring as the rows before left it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.support.rounding import randn


@dataclass(frozen=True)
class SequenceRun:
    """Rows of several sequences, and what the node under test is given.

    Attributes:
        keys, gates: [sequences, rows, d] of every row of each sequence, those of this run included.
        tail: ring [sequences, depth, 2, d] before the run; NaN where no row of the newest `depth` was written.
        position, sequence: [n] of this run.
    """

    keys: Tensor
    gates: Tensor
    tail: Tensor
    position: Tensor
    sequence: Tensor

    @property
    def run_keys(self) -> Tensor:
        """[n, d] keys of this run's rows."""
        return self.keys[self.sequence, self.position]

    @property
    def run_gates(self) -> Tensor:
        """[n, d] gates of this run's rows."""
        return self.gates[self.sequence, self.position]


def sequence_run(
    spans: list[tuple[int, int]], *, depth: int, width: int = 5, dtype: torch.dtype = torch.float32, seed: int = 0
) -> SequenceRun:
    """Return a run in which sequence 1 + i has rows_before[i] rows already and gets num_rows[i] more."""
    longest = max((before + count for before, count in spans), default=0)
    shape = (len(spans) + 1, longest + 1, width)
    keys, gates = randn(*shape, seed=seed, dtype=dtype), randn(*shape, seed=seed + 1, dtype=dtype)
    tail = torch.full((len(spans) + 1, depth, 2, width), float("nan"), dtype=dtype)
    for sequence, (before, _) in enumerate(spans, start=1):
        for row in range(before):
            tail[sequence, row % depth] = torch.stack([keys[sequence, row], gates[sequence, row]])
    position = [before + step for before, count in spans for step in range(count)]
    sequence = [1 + which for which, (_, count) in enumerate(spans) for _ in range(count)]
    return SequenceRun(keys, gates, tail, torch.tensor(position).long(), torch.tensor(sequence).long())


# (rows before, rows of this run) of each sequence; named by what a mistake would get wrong
SPANS = {
    "one_row_completes_from_the_tail": [(3, 1)],
    "pool_within_the_run": [(0, 4)],
    "half_in_the_tail": [(2, 3)],
    "nothing_completes": [(4, 3)],
    "long_run": [(1, 23)],
    "long_run_from_the_start": [(0, 17)],
    "late_positions": [(41, 6)],
    "neighbour_holds_the_positions_before": [(0, 2), (2, 2)],
    "same_positions_side_by_side": [(5, 3), (5, 3)],
    "same_positions_modulo_the_depth": [(1, 7), (8, 7)],
    "many_sequences": [(3, 1), (0, 1), (7, 1), (10, 1), (15, 1)],
    "one_idle_sequence": [(2, 2), (6, 0), (3, 9)],
    "no_rows": [(3, 0)],
}
