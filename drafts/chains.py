"""From requests to chains of drafts: the part of a propose that knows rows, paths and masks."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from circuit import StateError
from drafts.arguments import check_range, one_hidden, token_ids
from drafts.batch import HOST, RowBatch
from drafts.binding import DraftBinding
from drafts.cache import DrafterCache
from drafts.draft_head import WHOLE_HEAD, DraftHead
from drafts.grammar import checked_bitmask, num_drafts_allowed
from drafts.in_step import ScriptedExchange, digest, tensor_digest
from drafts.path import DraftPath, Drafts
from drafts.proposer_state import ProposerState, undone_on_error
from drafts.sharing import Sharing


@dataclass(frozen=True, slots=True)
class ChainRequest:
    """One sequence's chain, checked: token int64 [1], hidden [1, hidden_size], position, and how many drafts fit.

    grammar: int32 [m, words], or None. `num_drafts` is 0 where nothing fits.
    """

    token: Tensor
    hidden: Tensor
    position: int
    num_drafts: int
    state: ProposerState
    grammar: Tensor | None


class ChainDrafter:
    """Checks requests, drafts them by whichever path runs, and counts the runs."""

    def __init__(
        self,
        cache: DrafterCache,
        counts: Counter[str],
        *,
        max_num_drafts: int,
        sharing: Sharing,
        bind: Callable[[], DraftBinding | None],
        draft_head: DraftHead = WHOLE_HEAD,
    ) -> None:
        """Draft over a cache; `bind` gives the circuit that says what a drafter that ranks share exchanges."""
        self._config = cache.config
        self._cache = cache
        self._counts = counts
        self._max_num_drafts = max_num_drafts
        self._sharing = sharing
        self._bind = bind
        draftable = draft_head.bitmask(cache.config.vocab_size)
        self._draftable = None if draftable is None else draftable.cpu()

    def request(
        self,
        last_token: int,
        target_hidden: Tensor,
        position: int,
        state: ProposerState,
        grammar: Tensor | None,
        *,
        where: str,
        num_drafts: int,
    ) -> ChainRequest:
        """Check what `propose` or `propose_batch` was given for one sequence; ValueError names the argument."""
        # numbers are known here, and go to a device together with all others of a run
        ids = token_ids([last_token], self._config, where=where)
        hidden = one_hidden(target_hidden, self._config, where=where, device=self._cache.latent.device)
        check_range(f"{where}.position", position, 0, None)
        check_range(f"{where}.num_drafts", num_drafts, 0, self._max_num_drafts)
        self._cache.rows(state.sequence)  # a freed state raises here, whatever fits
        num_fitting = max(0, min(num_drafts, state.max_rows - position))
        mask = None
        if grammar is not None:
            vocab_size = self._config.vocab_size
            mask = checked_bitmask(grammar, vocab_size=vocab_size, device=HOST, where=where)
            if self._draftable is not None:
                # a mask that allows no row of a trimmed lm_head ends drafting like one that allows nothing
                mask = mask & self._draftable[: mask.shape[1]]
            num_fitting = num_drafts_allowed(mask, vocab_size=vocab_size, num_drafts=num_fitting)
        return ChainRequest(ids, hidden, position, num_fitting, state, mask)

    @contextmanager
    def run(self, path: DraftPath, requests: Sequence[ChainRequest], *, has_confidence: bool) -> Iterator[list[Drafts]]:
        """Draft the requests that fit anything, all of them or none; no drafts for the others.

        The body reads the drafts, which waits for the device; rows are counted after it, and an exception in it undoes
        the drafting like one before.
        """
        cache, fitting = self._cache, [request for request in requests if request.num_drafts]
        runs = _runs(path, fitting)
        facts: dict[str, int] = {}
        script: tuple[ScriptedExchange, ...] = ()
        if self._sharing.in_step.is_split:
            facts, script = _facts(path, cache, requests), self._exchanges(fitting, runs, has_confidence=has_confidence)
        with undone_on_error(cache, [(request.state, request.position) for request in fitting]):
            for request in fitting:
                _prepare_rows(cache, request)
            drafted = self._sharing.in_step.draft(
                facts, script, lambda: _draft(path, cache, fitting, runs, has_confidence=has_confidence)
            )
            chains = iter(drafted)
            yield [next(chains) if request.num_drafts else _no_drafts(cache.latent.device) for request in requests]
            for request in fitting:
                cache.commit(request.state.sequence, request.position + request.num_drafts)
        for request in fitting:
            request.state.drafted_from, request.state.num_drafted = request.position, request.num_drafts
            self._counts[f"propose.{path.name}"] += 1

    def _exchanges(
        self, requests: Sequence[ChainRequest], runs: Sequence[Sequence[int]], *, has_confidence: bool
    ) -> tuple[ScriptedExchange, ...]:
        """Return what the runs exchange with other ranks, in order."""
        script: list[ScriptedExchange] = []
        for run in runs:
            first = requests[run[0]]
            num_masks = 0 if first.grammar is None else first.grammar.shape[0]
            for index in range(first.num_drafts):
                script += self._sharing.script(
                    self._bind,
                    len(run),
                    is_first=index == 0,
                    has_grammar=index < num_masks,
                    has_confidence=has_confidence,
                )
        return tuple(script)


def _facts(path: DraftPath, cache: DrafterCache, requests: Sequence[ChainRequest]) -> dict[str, int]:
    """Return what must be the same on all ranks; of one sequence the numbers themselves, of several what tells them."""

    def of(values: Sequence[int]) -> int:
        return values[0] if len(values) == 1 else digest(*values)

    masks = [None if request.grammar is None else tensor_digest(request.grammar) for request in requests]
    return {
        "path": digest(path.name),
        "requests": len(requests),
        "num_drafts": of([request.num_drafts for request in requests]),
        "position": of([request.position for request in requests]),
        "rows": of([cache.rows(request.state.sequence) for request in requests]),
        "tokens": of([int(request.token) for request in requests]),
        "hiddens": digest(*(tensor_digest(request.hidden) for request in requests)),
        "grammar": digest(*masks),
    }


def _prepare_rows(cache: DrafterCache, request: ChainRequest) -> None:
    """Bring a drafter that is ahead back to the request's position; StateError when rows before it are missing."""
    state, position = request.state, request.position
    rows = cache.rows(state.sequence)
    if rows < position:
        raise StateError(
            f"propose: expected {position} rows before position {position}, got {rows}; "
            f"call catchup_drafter for rows {rows} to {position - 1} first"
        )
    kept = cache.rewind(state.sequence, position)
    if kept < position:
        raise StateError(
            f"propose: rows {kept} to {position - 1} cannot be kept by a rewind from {rows} rows, their pool's raw "
            f"rows are gone; call rewind({position}) and catchup_drafter from row {kept} first"
        )
    cache.ensure_capacity(state.sequence, position + request.num_drafts)


def _runs(path: DraftPath, requests: Sequence[ChainRequest]) -> list[list[int]]:
    """Return which requests run together: rows beside one another only where that changes no bit."""
    if not path.is_batch_invariant:
        return [[index] for index in range(len(requests))]
    # one run takes one number of drafts and one shape of mask
    return [
        [index for index, request in enumerate(requests) if _run_key(request) == key]
        for key in dict.fromkeys(_run_key(request) for request in requests)
    ]


def _draft(
    path: DraftPath,
    cache: DrafterCache,
    requests: Sequence[ChainRequest],
    runs: Sequence[Sequence[int]],
    *,
    has_confidence: bool,
) -> list[Drafts]:
    """Draft each request's chain; [1, num_drafts] each."""
    made: dict[int, Drafts] = {}
    for run in runs:
        chains = _draft_alike(path, cache, [requests[index] for index in run], has_confidence=has_confidence)
        made.update(zip(run, chains, strict=True))
    return [made[index] for index in range(len(requests))]


def _run_key(request: ChainRequest) -> tuple[int, tuple[int, ...] | None]:
    return request.num_drafts, None if request.grammar is None else tuple(request.grammar.shape)


def _draft_alike(
    path: DraftPath, cache: DrafterCache, requests: Sequence[ChainRequest], *, has_confidence: bool
) -> list[Drafts]:
    sequences = [request.state.sequence for request in requests]
    rows = RowBatch(
        token=torch.cat([request.token for request in requests]),
        hidden=torch.cat([request.hidden for request in requests]),
        position=torch.tensor([request.position for request in requests]),
        sequence=torch.tensor([sequence.slot for sequence in sequences]),
        block_table=cache.block_table(sequences),
    )
    masks = [request.grammar for request in requests if request.grammar is not None]
    drafts = path.draft(
        rows,
        cache,
        num_drafts=requests[0].num_drafts,
        grammar=torch.stack(masks) if masks else None,
        has_confidence=has_confidence,
    )
    confidences = drafts.confidences
    return [
        Drafts(drafts.ids[row : row + 1], None if confidences is None else confidences[row : row + 1])
        for row in range(len(requests))
    ]


def _no_drafts(device: torch.device) -> Drafts:
    return Drafts(torch.empty(1, 0, dtype=torch.int64, device=device), torch.empty(1, 0, device=device))
