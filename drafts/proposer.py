"""DraftProposer: the object a serving loop talks to. It keeps rows and pair keys right; the paths do the math.

The row space is dense: cache row r pairs token r+1 with the target's hidden of token r, and slot = key = position = r.
Two paths can fill it, the eager head and a circuit runner swapped in by `set_circuit_draft`; both work on one cache, so
a swap in the middle of a sequence is sound.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from circuit import StateError
from drafts.arguments import check_hiddens, one_hidden, token_ids
from drafts.batch import RowBatch
from drafts.binding import DraftBinding, bind_head
from drafts.cache import DEFAULT_MAX_NUM_DRAFTS, CachedSequence, DrafterCache
from drafts.config import DraftConfig, read_config
from drafts.decisions import Decisions, default_decisions
from drafts.eager_glm5_next import EagerGlm5NextHead, EagerPath
from drafts.path import DraftPath
from drafts.weights import head_weight_specs, load_weights

MAX_CONTEXT_ROWS = 512  # rows of one context run, which bounds the memory of a prefill
DEFAULT_MAX_SEQ_LEN = 8192  # tokens


@dataclass(slots=True, eq=False)
class ProposerState:
    """One sequence as the proposer knows it; made by alloc_state, given back by free_state.

    max_rows: the rows it may ever hold. drafted_from, num_drafted: the rows of the last propose that no verify has
    judged yet.
    """

    sequence: CachedSequence
    max_rows: int
    drafted_from: int = 0
    num_drafted: int = 0


class DraftProposer:
    """The drafter's life cycle over an eager path and, once swapped in, a circuit path.

    `weights` are named as head_weight_specs names them, and shared, never copied. `max_seq_len` in tokens bounds every
    sequence; `num_sequences` may live at a time; `max_num_drafts` bounds K. Not safe for use from two threads.
    """

    def __init__(
        self,
        config: DraftConfig,
        weights: Mapping[str, Tensor],
        decisions: Decisions,
        *,
        max_seq_len: int,
        max_num_drafts: int = DEFAULT_MAX_NUM_DRAFTS,
        num_sequences: int = 1,
    ) -> None:
        if not 1 <= max_seq_len <= config.max_position_embeddings:
            raise ValueError(
                f"DraftProposer.max_seq_len: expected 1 to max_position_embeddings {config.max_position_embeddings}, "
                f"got {max_seq_len}"
            )
        for name, count in (("max_num_drafts", max_num_drafts), ("num_sequences", num_sequences)):
            if count < 1:
                raise ValueError(f"DraftProposer.{name}: expected 1 or more, got {count}")
        self.config = config
        self.weights = weights
        self.decisions = decisions
        self.max_seq_len = max_seq_len
        self.max_num_drafts = max_num_drafts
        self.cache = DrafterCache.for_rows(
            config,
            max_seq_len,
            num_sequences=num_sequences,
            max_num_drafts=max_num_drafts,
            device=weights["embed_tokens"].device,
        )
        self._eager: DraftPath = EagerPath(EagerGlm5NextHead(config, weights, decisions))
        self._circuit: DraftPath | None = None
        self._counts: Counter[str] = Counter()

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Path | str,
        *,
        dtype: torch.dtype | None = None,
        decisions: Decisions | None = None,
        max_seq_len: int | None = None,
        max_num_drafts: int = DEFAULT_MAX_NUM_DRAFTS,
        num_sequences: int = 1,
        device: torch.device | str = "cpu",
    ) -> "DraftProposer":
        """Load the drafter of a checkpoint folder.

        `dtype` overrides the checkpoint's, `decisions` the stated defaults. `max_seq_len` defaults to the checkpoint's
        limit, 8192 tokens at most, since the cache is allocated for it. Raises ConfigError or CheckpointError that
        names file and key or tensor.
        """
        folder = Path(checkpoint)
        config = read_config(folder, dtype=dtype)
        decided = default_decisions(config) if decisions is None else decisions
        specs = head_weight_specs(config, target_norm=decided.applies_target_norm)
        return cls(
            config,
            load_weights(folder, specs, device=device),
            decided,
            max_seq_len=max_seq_len or min(config.max_position_embeddings, DEFAULT_MAX_SEQ_LEN),
            max_num_drafts=max_num_drafts,
            num_sequences=num_sequences,
        )

    def circuit_draft(self) -> DraftBinding | None:
        """Return this drafter's circuit, bound to its weights and cache layout; None for what it does not model."""
        binding = bind_head(
            self.config,
            self.weights,
            self.decisions,
            block_size=self.cache.block_size,
            max_num_drafts=self.max_num_drafts,
        )
        return None if binding.not_modelled else binding

    @property
    def _device(self) -> torch.device:
        return self.cache.latent.device

    @property
    def path(self) -> DraftPath:
        """The path that runs now: the circuit when one is swapped in, else the eager head."""
        return self._eager if self._circuit is None else self._circuit

    @property
    def path_counters(self) -> dict[str, int]:
        """Runs so far by path and kind, such as `propose.eager` and `context.circuit:reference`."""
        return dict(self._counts)

    def set_circuit_draft(self, runner: DraftPath | None) -> None:
        """Swap a circuit runner in for the eager head, or out again with None; sequences in flight go on."""
        self._circuit = runner

    def alloc_state(self) -> ProposerState:
        """Return a state that may grow to max_seq_len rows. `StateError` when no sequence or block is free."""
        return self.alloc_state_for(None)

    def alloc_state_for(self, budget_tokens: int | None) -> ProposerState:
        """Return a state for prompt + new tokens + look-ahead; None is an unknown budget and means max_seq_len.

        Blocks for all of its rows are taken now, so that no later call can run out of them. A budget beyond
        max_seq_len is cut to it.
        """
        if budget_tokens is not None and budget_tokens < 1:
            raise ValueError(f"alloc_state_for: expected a budget of at least 1 token, got {budget_tokens}")
        max_rows = min(budget_tokens or self.max_seq_len, self.max_seq_len)
        return ProposerState(self.cache.allocate(rows=max_rows), max_rows)

    def free_state(self, state: ProposerState) -> None:
        """Give back everything the state holds; a second call does nothing, any other use after it raises."""
        self.cache.free(state.sequence)

    def drafter_rows(self, state: ProposerState) -> int:
        """Return the number of valid cache rows."""
        return self.cache.rows(state.sequence)

    def last_pair_key(self, state: ProposerState) -> int | None:
        """Return the newest row's pair key, which is its slot; None when there is no row."""
        rows = self.drafter_rows(state)
        return rows - 1 if rows else None

    def rewind(self, rows: int, state: ProposerState) -> int:
        """Drop rows until at most `rows` are left; returns the rows kept, exact or shorter, never wrong."""
        kept = self.cache.rewind(state.sequence, rows)
        state.num_drafted = min(state.num_drafted, max(0, kept - state.drafted_from))
        return kept

    def prefill_drafter(self, prompt_tokens: Sequence[int] | Tensor, hiddens: Tensor, state: ProposerState) -> int:
        """Write the rows of a prompt: row r pairs token r+1 with hiddens[r]; returns the rows written.

        prompt_tokens [P], hiddens [P, hidden_size]: P - 1 rows, since the last token's successor is not known yet. On a
        state that has r0 rows already, the two start at token r0: to prefill in chunks, begin each with the last token
        and hidden of the one before.
        """
        tokens = token_ids(prompt_tokens, self.config, where="prefill_drafter", device=self._device)
        check_hiddens(hiddens, self.config, num_rows=tokens.numel(), where="prefill_drafter", device=self._device)
        if tokens.numel() < 2:
            self.cache.rows(state.sequence)  # a freed state raises here too
            return 0
        return self._write(tokens[1:], hiddens[:-1], state)

    def catchup_drafter(
        self, tokens: Sequence[int] | Tensor, hiddens: Tensor, row_base: int, pos_base: int, state: ProposerState
    ) -> int:
        """Append rows row_base + i = (tokens[i], hiddens[i]); returns the rows written.

        Writes nothing and returns 0 unless row_base is the number of rows there are. `pos_base` equals row_base, for
        the row space is dense.
        """
        ids = token_ids(tokens, self.config, where="catchup_drafter", device=self._device)
        check_hiddens(hiddens, self.config, num_rows=ids.numel(), where="catchup_drafter", device=self._device)
        if pos_base != row_base:
            raise ValueError(f"catchup_drafter: expected pos_base {row_base} like row_base, got {pos_base}")
        if row_base != self.drafter_rows(state):
            return 0
        return self._write(ids, hiddens, state)

    def propose(
        self, last_token: int, target_hidden: Tensor, position: int, num_drafts: int, state: ProposerState
    ) -> list[int]:
        """Return up to `num_drafts` drafted ids after `last_token`.

        target_hidden: [hidden_size] or [1, hidden_size], the target's hidden of the token before last_token; position:
        that token's index, the first row this call writes. It writes one row per draft; a drafter that is ahead of
        `position` is rewound to it first. Near the state's limit fewer drafts fit, and fewer are made, none when none
        fits. num_drafts 0 returns [] and changes nothing. Two calls without a verify between them give the same ids.

        Raises ValueError for bad arguments, StateError when rows before `position` are missing; then, and after an
        exception in the run, rows and live cache are as they were.
        """
        ids = token_ids([last_token], self.config, where="propose", device=self._device)
        hidden = one_hidden(target_hidden, self.config, where="propose", device=self._device)
        if position < 0:
            raise ValueError(f"propose.position: expected 0 or more, got {position}")
        if not 0 <= num_drafts <= self.max_num_drafts:
            raise ValueError(f"propose.num_drafts: expected 0 to {self.max_num_drafts}, got {num_drafts}")
        rows = self.drafter_rows(state)
        num_fitting = min(num_drafts, state.max_rows - position)
        if num_fitting <= 0:
            return []
        if rows < position:
            raise StateError(
                f"propose: expected {position} rows before position {position}, got {rows}; "
                f"call catchup_drafter for rows {rows} to {position - 1} first"
            )
        with self._undo_on_error(state):
            kept = self.rewind(position, state)
            if kept < position:
                raise StateError(
                    f"propose: rows {kept} to {position - 1} cannot be kept by a rewind from {rows} rows, their pool's "
                    f"raw rows are gone; call rewind({position}) and catchup_drafter from row {kept} first"
                )
            batch = RowBatch(ids, hidden, *self._places(state, position, 1))
            drafts = self.path.draft(batch, self.cache, num_drafts=num_fitting)
            self.cache.commit(state.sequence, position + num_fitting)
        self._counts[f"propose.{self.path.name}"] += 1
        state.drafted_from, state.num_drafted = position, num_fitting
        return [int(draft) for draft in drafts.ids[0].tolist()]

    def after_verify(self, num_accepted: int, state: ProposerState) -> int:
        """Keep the rows of the last propose that a verify found true; returns the rows there are now.

        Keeps min(last_drafted, num_accepted + 1): the first row pairs a committed token with the target's own hidden
        and is always true. The rows of accepted drafts pair them with drafted hiddens; a caller that wants the true
        ones rewinds to one row and catches up. A second call changes nothing.
        """
        rows = self.drafter_rows(state)
        if num_accepted < 0 or (state.num_drafted and num_accepted > state.num_drafted):
            raise ValueError(f"after_verify: expected 0 to {state.num_drafted} accepted drafts, got {num_accepted}")
        if state.num_drafted:
            kept = min(state.num_drafted, num_accepted + 1)
            rows = self.cache.rewind(state.sequence, state.drafted_from + kept)
            state.num_drafted = 0
        return rows

    def _write(self, tokens: Tensor, hiddens: Tensor, state: ProposerState) -> int:
        """Append rows in runs of bounded size, all or none of them."""
        first, num_rows = self.drafter_rows(state), tokens.numel()
        if first + num_rows > state.max_rows:
            raise StateError(
                f"DraftProposer: expected at most {state.max_rows} rows, got {first} and {num_rows} more; "
                f"allocate the state for a larger budget"
            )
        with self._undo_on_error(state):
            for start in range(0, num_rows, MAX_CONTEXT_ROWS):
                part = slice(start, min(start + MAX_CONTEXT_ROWS, num_rows))
                size = part.stop - part.start
                places = self._places(state, first + start, size)
                self.path.write_rows(RowBatch(tokens[part], hiddens[part].contiguous(), *places), self.cache)
                self.cache.commit(state.sequence, first + part.stop)
                self._counts[f"context.{self.path.name}"] += 1
        state.num_drafted = 0
        return num_rows

    @contextmanager
    def _undo_on_error(self, state: ProposerState) -> Iterator[None]:
        """Put row counts and the raw tail back when the body raises; rows beyond the old end are dead anyway."""
        sequence = state.sequence
        before = (sequence.rows, sequence.raw_from, state.num_drafted)
        tail = self.cache.tail[sequence.slot].clone()
        try:
            yield
        except BaseException:
            sequence.rows, sequence.raw_from, state.num_drafted = before
            self.cache.tail[sequence.slot] = tail
            raise

    def _places(self, state: ProposerState, first_row: int, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
        device = self._device
        position = torch.arange(first_row, first_row + num_rows, device=device)
        sequence = torch.full((num_rows,), state.sequence.slot, dtype=torch.int64, device=device)
        return position, sequence, self.cache.block_table([state.sequence]).expand(num_rows, -1)
