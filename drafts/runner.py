"""DraftRunner: executes a binding's programs over the drafter's cache. It holds no math."""

from collections.abc import Callable

import torch
from torch import Tensor

from circuit import BindingError, Circuit, LoweringError, RunResult, Value, interpret
from drafts.batch import RowBatch
from drafts.binding import DraftBinding, require_modelled
from drafts.cache import DrafterCache
from drafts.path import Drafts

BACKENDS = ("reference",)

StepObserver = Callable[[int, Value, Tensor], None]


class DraftRunner:
    """Runs the circuit in place of the eager head: context rows, and chains of drafts.

    A run reads the cache, computes all K drafts on new tensors, and writes the cache only when all of them succeeded;
    an exception leaves the cache as it was. `observe` is shown (step, value, tensor) of every edge of a chain.
    Backends: `reference`, the interpreter over the nodes' references.
    """

    def __init__(
        self, binding: DraftBinding, *, backend: str = "reference", observe: StepObserver | None = None
    ) -> None:
        if backend not in BACKENDS:
            raise LoweringError(f"DraftRunner: no backend {backend!r}; it has {', '.join(BACKENDS)}")
        require_modelled(binding, where="DraftRunner")
        self.binding = binding
        self.name = f"circuit:{backend}"
        self.observe = observe
        self._context = binding.context()
        self._steps: dict[tuple[bool, bool, bool], Circuit] = {}

    @property
    def is_batch_invariant(self) -> bool:
        """False: the interpreter's matrix products round otherwise for other numbers of rows."""
        return False

    def write_rows(self, rows: RowBatch, cache: DrafterCache) -> None:
        """Write the cache rows of `rows`, which pair known tokens with the target's own hiddens."""
        check_rows(self.binding, rows, cache, lookahead=0)
        if rows.num_rows == 0:
            return
        inputs = row_inputs(rows.beside_hiddens())
        result = interpret(
            self._context,
            inputs={name: inputs[name] for name in self._context.inputs},
            weights=self.binding.weights,
            states=state_tensors(cache),
        )
        _store(cache, result.states)

    def draft(
        self,
        rows: RowBatch,
        cache: DrafterCache,
        *,
        num_drafts: int,
        grammar: Tensor | None = None,
        has_confidence: bool = False,
    ) -> Drafts:
        """Draft a chain per row, one row per sequence, step i at position + i; see DraftPath.

        `ValueError` for rows beyond the block table, or for more drafts than the state was laid out for.
        """
        check_chain(self.binding, rows, cache, num_drafts=num_drafts)
        fed = row_inputs(rows.beside_hiddens())
        grammar = None if grammar is None else grammar.to(rows.hidden.device)
        states = state_tensors(cache)
        ids, confidences = [], []
        for index in range(num_drafts):
            is_masked = grammar is not None and index < grammar.shape[1]
            program = self._step(is_first=index == 0, has_grammar=is_masked, has_confidence=has_confidence)
            if grammar is not None and is_masked:
                fed["grammar_bitmask"] = grammar[:, index]
            result = self._run(index, program, fed, states)
            states = result.states
            ids.append(result.outputs["token"])
            if has_confidence:
                confidences.append(result.outputs["confidence"])
            fed |= {edge.target: result.outputs[edge.source] for edge in self.binding.feedback}
        drafts = Drafts(torch.stack(ids, dim=1), torch.stack(confidences, dim=1) if has_confidence else None)
        _store(cache, states)
        return drafts

    def _step(self, *, is_first: bool, has_grammar: bool, has_confidence: bool) -> Circuit:
        key = (is_first, has_grammar, has_confidence)
        if key not in self._steps:
            self._steps[key] = self.binding.step(
                is_first=is_first, has_grammar=has_grammar, has_confidence=has_confidence
            )
        return self._steps[key]

    def _run(self, index: int, program: Circuit, fed: dict[str, Tensor], states: dict[str, Tensor]) -> RunResult:
        observe = self.observe
        return interpret(
            program,
            inputs={name: fed[name] for name in program.inputs},
            weights=self.binding.weights,
            states=states,
            observe=None if observe is None else lambda value, tensor: observe(index, value, tensor),
        )


def check_rows(binding: DraftBinding, rows: RowBatch, cache: DrafterCache, *, lookahead: int) -> None:
    """Hold that the cache is laid out for the binding, and what the rows hold; BindingError or ValueError."""
    layout, depth = binding.state_layout, binding.dims["tail_depth"]
    if cache.block_size != layout.block_size or cache.tail_depth != depth:
        raise BindingError(
            f"DraftRunner: expected a cache of block_size {layout.block_size} with a tail {depth} deep, "
            f"got {cache.block_size} and {cache.tail_depth}; bind the circuit from its proposer again"
        )
    rows.check_values(
        vocab_size=binding.config.vocab_size,
        num_blocks=cache.num_blocks,
        block_size=cache.block_size,
        num_sequences=cache.num_sequences,
        lookahead=lookahead,
    )


def check_chain(binding: DraftBinding, rows: RowBatch, cache: DrafterCache, *, num_drafts: int) -> None:
    """Hold what check_rows does, the number of drafts, and that no sequence has two rows; ValueError."""
    limit = binding.state_layout.max_num_drafts
    if not 1 <= num_drafts <= limit:
        raise ValueError(f"DraftRunner.draft: expected 1 to {limit} drafts, got {num_drafts}")
    check_rows(binding, rows, cache, lookahead=num_drafts - 1)
    if rows.num_rows < 2:
        return
    live = rows.sequence[rows.sequence > 0]
    if live.unique().numel() != live.numel():
        raise ValueError("DraftRunner.draft: expected one row per sequence, got two of one; draft them in turn")


def row_inputs(rows: RowBatch) -> dict[str, Tensor]:
    """Return the rows as the circuit's inputs by name."""
    return {
        "token": rows.token,
        "target_hidden": rows.hidden,
        "position": rows.position,
        "sequence": rows.sequence,
        "block_table": rows.block_table,
        # draft 1 makes the selection that a shared one extends
        "selected_at": rows.position,
    }


def state_tensors(cache: DrafterCache) -> dict[str, Tensor]:
    """Return the cache's tensors by the circuit's state names."""
    return {"latent_cache": cache.latent, "index_keys": cache.index_keys, "tail": cache.tail}


def _store(cache: DrafterCache, states: dict[str, Tensor]) -> None:
    """Copy the new states over the old: in place, so that whoever shares the cache's memory sees them."""
    for old, new in zip(state_tensors(cache).values(), (states[name] for name in state_tensors(cache)), strict=True):
        old.copy_(new)
