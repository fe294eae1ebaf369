"""DraftProposer: the object a serving loop talks to. It keeps rows and pair keys right; the paths do the math.

The row space is dense: cache row r pairs token r+1 with the target's hidden of token r, and slot = key = position = r.
Two paths can fill it, the eager head and a circuit runner swapped in by `set_circuit_draft`; both work on one cache, so
a swap in the middle of a sequence is sound.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path

import torch
from torch import Tensor

from drafts.arguments import check_batch, check_hiddens, check_range, embed_buffer, token_ids
from drafts.binding import DraftBinding
from drafts.cache import DEFAULT_MAX_NUM_DRAFTS, DrafterCache
from drafts.carry import DrafterKv, free_kv, install_kv, take_kv, trim_kv
from drafts.chains import ChainDrafter
from drafts.config import DraftConfig, read_config
from drafts.decisions import Decisions, default_decisions
from drafts.deferred import DeferredDrafts
from drafts.eager_glm5_next import EagerPath
from drafts.levers import ModelLevers
from drafts.path import DraftPath
from drafts.proposer_state import ProposerState
from drafts.ranks import Ranks
from drafts.row_writer import AcceptedRows, RowWriter
from drafts.sharing import Sharing
from drafts.swap import check_runner
from drafts.weights import load_weights

DEFAULT_MAX_SEQ_LEN = 8192  # tokens


class DraftProposer:
    """The drafter's life cycle over an eager path and, once swapped in, a circuit path.

    `weights` are named as head_weight_specs names them, and shared, never copied. `max_seq_len` in tokens bounds every
    sequence; `num_sequences` may live at a time; `max_num_drafts` bounds K. Not safe for use from two threads.

    `ranks` share the drafter, and `weights` are this one's parts: then every rank makes the same calls, and a propose
    that is not the same on all of them raises RankError on all of them.

    Bad arguments raise ValueError before anything runs; an exception in a run leaves rows and live cache as they were.
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
        levers: ModelLevers | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        check_range("DraftProposer.max_seq_len", max_seq_len, 1, config.max_position_embeddings)
        for name, count in (("max_num_drafts", max_num_drafts), ("num_sequences", num_sequences)):
            check_range(f"DraftProposer.{name}", count, 1, None)
        self.config = config
        self.weights = weights
        self.levers = levers or ModelLevers()
        self.decisions = self.levers.applied_to(decisions)
        self.max_seq_len = max_seq_len
        self.max_num_drafts = max_num_drafts
        device = weights["embed_tokens"].device
        self.cache = DrafterCache.for_rows(
            config, max_seq_len, num_sequences=num_sequences, max_num_drafts=max_num_drafts, device=device
        )
        limits = (max_seq_len, max_num_drafts, num_sequences)
        self._sharing = Sharing(config, self.decisions, ranks, self.levers, limits=limits)
        self._eager: DraftPath = EagerPath(self._sharing.eager_head(weights))
        self._circuit: DraftPath | None = None
        self._counts: Counter[str] = Counter()
        self._writer = RowWriter(self.cache, self._counts)
        bind, sharing, head = self.circuit_draft, self._sharing, self.levers.head
        self._chains = ChainDrafter(
            self.cache, self._counts, max_num_drafts=max_num_drafts, sharing=sharing, bind=bind, draft_head=head
        )
        self._deferred = DeferredDrafts()

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
        levers: ModelLevers | None = None,
        ranks: Ranks | None = None,
        device: torch.device | str = "cpu",
    ) -> "DraftProposer":
        """Load the drafter of a checkpoint folder; of one that `ranks` share, this rank's parts alone.

        `dtype` overrides the checkpoint's, `decisions` the stated defaults. `max_seq_len` defaults to the checkpoint's
        limit, 8192 tokens at most, since the cache is allocated for it. Raises ConfigError or CheckpointError that
        names file and key or tensor.
        """
        folder = Path(checkpoint)
        config = read_config(folder, dtype=dtype)
        decided = default_decisions(config) if decisions is None else decisions
        specs = Sharing(config, decided, ranks, levers or ModelLevers()).specs()
        return cls(
            config,
            load_weights(folder, specs, device=device),
            decided,
            max_seq_len=max_seq_len or min(config.max_position_embeddings, DEFAULT_MAX_SEQ_LEN),
            max_num_drafts=max_num_drafts,
            num_sequences=num_sequences,
            levers=levers,
            ranks=ranks,
        )

    def circuit_draft(self) -> DraftBinding | None:
        """Return this drafter's circuit, bound to its weights and cache layout; None for what it does not model."""
        rows, drafts = self.cache.block_size, self.max_num_drafts
        binding = self._sharing.bind(self.weights, block_size=rows, max_num_drafts=drafts)
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

    @property
    def needs_comm(self) -> bool:
        """Whether a propose exchanges data with other ranks: exactly where they share the drafter."""
        return self._sharing.in_step.is_split

    @property
    def prefill_uses_shared_buffers(self) -> bool:
        """Whether prefills of two sequences would disturb each other: never, each has tensors of its own."""
        return False

    @property
    def propose_batch_max(self) -> int:
        """Sequences that one propose_batch takes."""
        return self.levers.propose_batch_max

    @property
    def block_gamma(self) -> int | None:
        """Block size of a block-diffusion drafter; None for this one."""
        return None

    def prefill_hidden_rows(self, max_seq_len: int) -> int:
        """Return how many of the target's hiddens a scheduler keeps for prefill_drafter: one per prompt token."""
        return max_seq_len

    def set_circuit_draft(self, runner: DraftPath | None) -> None:
        """Swap in a circuit runner of this proposer's binding, or out with None; sequences in flight go on."""
        if runner is not None:
            check_runner(runner, self.config, self.weights, self.decisions, self.levers.head, self._sharing.plan)
        self._circuit = runner

    def alloc_state(self) -> ProposerState:
        """Return a state that may grow to max_seq_len rows. `StateError` when no sequence or block is free."""
        return self.alloc_state_for(None)

    def alloc_state_for(self, budget_tokens: int | None) -> ProposerState:
        """Return a state for prompt + new tokens + look-ahead; None is an unknown budget and means max_seq_len.

        Blocks for all of its rows are taken now, so that no later call can run out of them. A budget beyond
        max_seq_len is cut to it.
        """
        if budget_tokens is not None:
            check_range("alloc_state_for.budget_tokens", budget_tokens, 1, None)
        max_rows = min(budget_tokens or self.max_seq_len, self.max_seq_len)
        return ProposerState(self.cache.allocate(rows=max_rows), max_rows)

    def free_state(self, state: ProposerState) -> None:
        """Give back everything the state holds; a second call does nothing, any other use after it raises."""
        self.cache.free(state.sequence)
        self._deferred.forget(state)

    def drafter_rows(self, state: ProposerState) -> int:
        """Return the number of valid cache rows."""
        return self.cache.rows(state.sequence)

    def last_pair_key(self, state: ProposerState) -> int | None:
        """Return the newest row's pair key, which is its slot; None when there is no row."""
        rows = self.drafter_rows(state)
        return rows - 1 if rows else None

    def rewind(self, rows: int, state: ProposerState) -> int:
        """Drop rows until at most `rows` are left; returns the rows kept, exact or shorter, never wrong."""
        check_range("rewind.rows", rows, 0, None)
        kept = self.cache.rewind(state.sequence, rows)
        state.clamp_drafted(kept)
        return kept

    def prefill_drafter(self, prompt_tokens: Sequence[int] | Tensor, hiddens: Tensor, state: ProposerState) -> int:
        """Write the rows of a prompt: row r pairs token r+1 with hiddens[r]; returns the rows written.

        prompt_tokens [P], hiddens [P, hidden_size]: P - 1 rows, since the last token's successor is not known yet. On a
        state that has r0 rows already, the two start at token r0: to prefill in chunks, begin each with the last token
        and hidden of the one before.
        """
        tokens = self._token_ids(prompt_tokens, "prefill_drafter")
        self._check_hiddens(hiddens, tokens.numel(), "prefill_drafter")
        return self._writer.append(self.path, tokens[1:], hiddens[:-1], state)

    def catchup_drafter(
        self, tokens: Sequence[int] | Tensor, hiddens: Tensor, row_base: int, pos_base: int, state: ProposerState
    ) -> int:
        """Append rows row_base + i = (tokens[i], hiddens[i]); returns the rows written.

        Writes nothing and returns 0 unless row_base is the number of rows there are. `pos_base` equals row_base, for
        the row space is dense.
        """
        ids = self._token_ids(tokens, "catchup_drafter")
        self._check_hiddens(hiddens, ids.numel(), "catchup_drafter")
        check_range("catchup_drafter.row_base", row_base, 0, None)
        if pos_base != row_base:
            raise ValueError(f"catchup_drafter: expected pos_base {row_base} like row_base, got {pos_base}")
        if row_base != self.drafter_rows(state):
            return 0
        return self._writer.append(self.path, ids, hiddens, state)

    def catchup_batch(
        self,
        tokens: Sequence[Sequence[int] | Tensor],
        hiddens: Sequence[Tensor],
        first_pos: Sequence[int],
        states: Sequence[ProposerState],
    ) -> list[int]:
        """After a verify, give each sequence its accepted drafts' rows; returns the rows written for each.

        Row first_pos[s] + i = (tokens[s][i], hiddens[s][i]). With the lever mtp_kv_exact, rows from first_pos on are
        dropped first and all of them are written from these true hiddens; without it only those that are missing. A
        sequence with fewer than first_pos rows gets nothing and a 0. All sequences in one run, or none of them.
        """
        columns = {"tokens": tokens, "hiddens": hiddens, "first_pos": first_pos}
        check_batch(states, columns, limit=None, where="catchup_batch")
        parts = []
        for part, rows, base, state in zip(tokens, hiddens, first_pos, states, strict=True):
            ids = self._token_ids(part, "catchup_batch")
            self._check_hiddens(rows, ids.numel(), "catchup_batch")
            check_range("catchup_batch.first_pos", base, 0, None)
            parts.append(AcceptedRows(ids, rows, base, state))
        return self._writer.write_accepted(self.path, parts, rewrites=self.levers.mtp_kv_exact)

    def propose(
        self,
        last_token: int,
        target_hidden: Tensor,
        position: int,
        num_drafts: int,
        state: ProposerState,
        *,
        draft_embed_target: Tensor | None = None,
        grammar_bitmask: Tensor | None = None,
        target_hidden_stack: Tensor | None = None,
    ) -> list[int]:
        """Return up to `num_drafts` drafted ids after `last_token`.

        target_hidden: [hidden_size] or [1, hidden_size], the target's hidden of the token before last_token; position:
        that token's index, the first row this call writes. It writes one row per draft; a drafter that is ahead of
        `position` is rewound to it first. Near the state's limit fewer drafts fit, and fewer are made, none when none
        fits. num_drafts 0 returns [] and changes nothing. Two calls without a verify between them give the same ids.

        draft_embed_target: a buffer [num_drafts, hidden_size], or [hidden_size] for one draft. The ids then stay on the
            device, [] is returned, the target's embeddings of the drafts lie in the buffer's first rows, and
            read_deferred_draft_token gives the id.
        grammar_bitmask: int32 [words] for draft 1, or [m, words] for drafts 1..m; see drafts.grammar. Drafting stops
            before the first mask that allows nothing.
        target_hidden_stack: for drafters fed by several layers of the target; this one takes a single hidden, so it
            must be None.

        Raises ValueError for bad arguments, StateError when rows before `position` are missing; then, and after an
        exception in the run, rows and live cache are as they were.
        """
        self._deferred.forget()
        with self._sharing.in_step.call("propose"):
            if target_hidden_stack is not None:
                raise ValueError("propose.target_hidden_stack: expected None, this drafter takes one target's hidden")
            request = self._chains.request(
                last_token, target_hidden, position, state, grammar_bitmask, where="propose", num_drafts=num_drafts
            )
            if draft_embed_target is None:
                with self._chains.run(self.path, [request], has_confidence=False) as chains:
                    return chains[0].id_list()
            buffer = embed_buffer(draft_embed_target, self.config, num_drafts=num_drafts, device=self._device)
            with self._chains.run(self.path, [request], has_confidence=False) as chains:
                ids = chains[0].ids[0]
                buffer[: ids.numel()] = self.weights["embed_tokens"][ids]
            self._deferred.keep(state, ids)
        return []

    def read_deferred_draft_tokens(self) -> list[int]:
        """Return the ids that the last propose left on the device; StateError when it left none."""
        return self._deferred.read()

    def read_deferred_draft_token(self) -> int:
        """Return the id that the last propose left on the device; StateError when it left none, or several."""
        return self._deferred.read_one()

    def propose_batch(
        self,
        last_tokens: Sequence[int],
        target_hiddens: Tensor | Sequence[Tensor],
        positions: Sequence[int],
        num_drafts: int,
        states: Sequence[ProposerState],
        *,
        grammar_bitmasks: Sequence[Tensor | None] | None = None,
        confidences: list[list[float]] | None = None,
    ) -> list[list[int]]:
        """Propose for several sequences; each gets what `propose` alone would give it, bit for bit.

        target_hiddens: [n, hidden_size], or n tensors as `propose` takes them; grammar_bitmasks: one per sequence, None
        where it is free. A list given as `confidences` is filled with one list per sequence: per draft, the drafter's
        own float32 probability of it, at temperature 1 over all tokens it may draft, before any grammar mask.

        A path that is not `is_batch_invariant` (eager head, interpreter) runs the sequences one by one. Raises
        ValueError for a state given twice or for more than propose_batch_max of them; none give an empty list.
        """
        self._deferred.forget()
        with self._sharing.in_step.call("propose_batch"):
            masks: Sequence[Tensor | None] = [None] * len(states) if grammar_bitmasks is None else grammar_bitmasks
            columns: dict[str, Sized] = {"last_tokens": last_tokens, "target_hiddens": target_hiddens}
            columns |= {"positions": positions, "grammar_bitmasks": masks}
            check_batch(states, columns, limit=self.propose_batch_max, where="propose_batch")
            check_range("propose_batch.num_drafts", num_drafts, 0, self.max_num_drafts)
            requests = [
                self._chains.request(*row, where="propose_batch", num_drafts=num_drafts)
                for row in zip(last_tokens, target_hiddens, positions, states, masks, strict=True)
            ]
            with self._chains.run(self.path, requests, has_confidence=confidences is not None) as chains:
                ids = [chain.id_list() for chain in chains]
                made = [chain.confidence_list() for chain in chains]
        if confidences is not None:
            confidences[:] = made
        return ids

    def after_verify(self, num_accepted: int, state: ProposerState) -> int:
        """Keep the rows of the last propose that a verify found true; returns the rows there are now.

        Keeps min(last_drafted, num_accepted + 1): the first row pairs a committed token with the target's own hidden
        and is always true. The rows of accepted drafts pair them with drafted hiddens; catchup_batch puts the true ones
        in their place. Rows that a rewind dropped meanwhile stay dropped. A second call changes nothing.
        """
        rows = self.drafter_rows(state)
        check_range("after_verify.num_accepted", num_accepted, 0, None)
        if state.num_drafted:
            kept = min(state.num_drafted, num_accepted + 1)
            rows = self.cache.rewind(state.sequence, state.drafted_from + kept)
            state.num_drafted = 0
        return rows

    def take_drafter_kv(self, state: ProposerState) -> DrafterKv:
        """Take the cache out of a state, for the next turn of its conversation; the state is as new after it.

        The state keeps its spare blocks and gets others for what it gave away, as far as the pool has them; a later
        write that finds none raises StateError.
        """
        self._deferred.forget(state)
        return take_kv(self.cache, state)

    def trim_drafter_kv(self, num_shared_tokens: int, kv: DrafterKv) -> int:
        """Drop the rows of a carried cache that a prefix of `num_shared_tokens` tokens does not settle.

        Row r pairs token r+1, so the last row of a shared prefix depends on the token after it: p shared tokens settle
        rows 0 .. p-2. Returns the rows kept, exact or shorter, as `rewind` does.
        """
        check_range("trim_drafter_kv.num_shared_tokens", num_shared_tokens, 0, None)
        return trim_kv(kv, num_shared_tokens)

    def install_drafter_kv(self, kv: DrafterKv, pair_key: int | None, state: ProposerState) -> bool:
        """Put a carried cache into an empty state; True when it took it.

        pair_key: the newest row's pair key that the caller's tokens stand for, None for no row; it must be the carried
        cache's. False, and nothing changed, when it is not, when the cache is another proposer's, is used up already or
        is larger than the state's budget, or when the state has rows; the caller still owns the blocks then.
        """
        return install_kv(self.cache, kv, pair_key, state)

    def free_drafter_kv(self, kv: DrafterKv) -> None:
        """Give a carried cache's blocks back; a second call, or one after an install, does nothing."""
        free_kv(self.cache, kv)

    def _token_ids(self, tokens: Sequence[int] | Tensor, where: str) -> Tensor:
        return token_ids(tokens, self.config, where=where)

    def _check_hiddens(self, hiddens: Tensor, num_rows: int, where: str) -> None:
        check_hiddens(hiddens, self.config, num_rows=num_rows, where=where, device=self._device)
