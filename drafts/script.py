"""What two executions are put through side by side: rows fed, chains drafted, rows taken back, in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from drafts.batch import RowBatch
from drafts.cache import DrafterCache
from drafts.config import DraftConfig


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """Context rows from `first_row` on: tokens int64 [m] beside the hiddens [m, hidden_size] they come with."""

    key: str
    tokens: Tensor
    hiddens: Tensor
    first_row: int


@dataclass(frozen=True, slots=True, eq=False)
class Propose:
    """A chain of `num_drafts` after `token`, whose row at `position` takes `hidden` [hidden_size]."""

    key: str
    token: int
    hidden: Tensor
    position: int
    num_drafts: int


@dataclass(frozen=True, slots=True, eq=False)
class Rewind:
    """Rows beyond the first `rows` are taken back."""

    rows: int


Operation: TypeAlias = Feed | Propose | Rewind


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """The operations on one sequence, which never has more than `max_rows` cache rows."""

    label: str
    operations: tuple[Operation, ...]
    max_rows: int


def prompt_script(label: str, tokens: Sequence[int], hiddens: Tensor, *, num_drafts: int) -> Script:
    """Return the script that prefills a prompt but its last token and drafts after that one.

    `hiddens` [len(tokens), hidden_size] as the drafter is supplied with them. ValueError for fewer than two tokens.
    """
    if len(tokens) < 2:
        raise ValueError(f"prompt_script: expected 2 tokens or more, got {len(tokens)}; a draft needs a row before it")
    last = len(tokens) - 2
    ids = torch.tensor(tokens, device=hiddens.device)
    feed = Feed("prefill", ids[1 : last + 1], hiddens[:last], 0)
    propose = Propose("chain", int(tokens[-1]), hiddens[last], last, num_drafts)
    return Script(label, (*([feed] if last else []), propose), max_rows=len(tokens) + num_drafts)


class Stage:
    """One sequence's cache while a script is played, and what is there to compare of it.

    The sequence lies in neither the first block nor the first slot, so that a read of the wrong one shows.
    """

    def __init__(self, config: DraftConfig, script: Script, *, max_num_drafts: int) -> None:
        self.cache = DrafterCache.for_rows(config, script.max_rows, num_sequences=2, max_num_drafts=max_num_drafts)
        self.cache.allocate(rows=1)
        self.sequence = self.cache.allocate(rows=script.max_rows)
        self._table = self.cache.block_table([self.sequence])

    def rows(self, tokens: Tensor, hiddens: Tensor, first_row: int) -> RowBatch:
        """Return rows of the sequence, from `first_row` on."""
        count = tokens.shape[0]
        return RowBatch(
            token=tokens,
            hidden=hiddens,
            position=torch.arange(first_row, first_row + count),
            sequence=torch.full((count,), self.sequence.slot),
            block_table=self._table.expand(count, -1).contiguous(),
        )

    def commit(self, rows: int) -> None:
        """Count the rows that were written."""
        self.cache.commit(self.sequence, rows)

    def rewind(self, rows: int) -> None:
        """Take rows back; the ring of a script's cache is deep enough to keep `rows` exactly."""
        kept = self.cache.rewind(self.sequence, rows)
        if kept != rows:
            raise ValueError(f"Stage.rewind: expected to keep {rows} rows, got {kept}; the script rewinds too far")

    def contents(self, tensors: dict[str, Tensor], num_rows: int) -> dict[str, Tensor]:
        """Copy what counts of the states, by name, with `num_rows` rows: latents, complete pools' keys, raw rows."""
        blocks, config = self.sequence.blocks, self.cache.config
        raw = torch.arange(max(self.sequence.raw_from, num_rows - self.cache.tail_depth), num_rows)
        return {
            "latent_cache": tensors["latent_cache"][blocks].flatten(0, 1)[:num_rows],
            "index_keys": tensors["index_keys"][blocks].flatten(0, 1)[: num_rows // config.index_kpool],
            "tail": tensors["tail"][self.sequence.slot, raw % self.cache.tail_depth],
        }
