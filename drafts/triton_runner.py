"""TritonRunner: the circuit's launches in place of the eager head, on a GPU or under Triton's interpreter."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from circuit import Circuit
from compiler import (
    AFTER_SPECIALISING,
    Compiled,
    DerivedWeight,
    DerivedWeights,
    Request,
    chain,
    compile_circuit,
    remove_dead_code,
    target_of,
)
from compiler.triton import CudaGraphProgram, LaunchPlan, LaunchProgram, emit
from drafts.batch import RowBatch
from drafts.binding import DraftBinding, require_modelled, require_whole
from drafts.cache import DrafterCache
from drafts.compiled_runner import Program, padded_rows, part_of
from drafts.glm5_next import CONFIDENCE
from drafts.head_weights import certified_of
from drafts.path import Drafts
from drafts.runner import check_chain, check_rows, row_inputs, state_tensors

MAX_ROWS = 16  # of a chain: what a tensor core's tile holds
MAX_CONTEXT_ROWS = 256
MIN_TABLE_BLOCKS = 4
GRAMMAR = "grammar_bitmask"


@dataclass(frozen=True, slots=True)
class _Key:
    """What a program fixes: its kind, rows, table width and drafts, the optional parts, and the cache's extent."""

    num_drafts: int  # 0 for context rows
    num_rows: int
    max_blocks: int
    has_grammar: bool
    has_confidence: bool
    num_blocks: int
    num_sequences: int


class TritonRunner:
    """A draft path over launch plans, one per bucket, emitted when first asked for and kept.

    A run is padded to its bucket: 1, 2, 4, 8 or 16 chains, 16, 64 or 256 context rows, block tables of powers of two.
    On a GPU every bucket is captured as a CUDA graph unless `captures` is off; `counts` says how runs went.

    `is_exact` runs the rows of a batch one after the other, so that each gets the bits it has alone.
    """

    def __init__(self, binding: DraftBinding, *, captures: bool = True, is_exact: bool = True) -> None:
        require_modelled(binding, where="TritonRunner")
        require_whole(binding)
        self.binding = binding
        self.name = "circuit:triton"
        self._device = binding.weights["lm_head"].device
        self._captures = captures and self._device.type == "cuda"
        self._is_exact = is_exact
        self._programs: dict[_Key, tuple[Program, tuple[DerivedWeights, ...]]] = {}
        self._derived: dict[DerivedWeight, DerivedWeights] = {}

    @property
    def is_batch_invariant(self) -> bool:
        """Whether rows run beside one another: only where other bits than alone are allowed."""
        return not self._is_exact

    @property
    def counts(self) -> Counter[str]:
        """How the runs of all programs went, see CudaGraphProgram; empty where nothing is captured."""
        total: Counter[str] = Counter()
        for program, _ in self._programs.values():
            if isinstance(program, CudaGraphProgram):
                total.update(program.counts)
        return total

    def drop(self) -> None:
        """Release graphs, work memory and derived weights, as after a swap out; the next run makes them again."""
        for program, _ in self._programs.values():
            if isinstance(program, CudaGraphProgram):
                program.drop()
        self._programs.clear()
        self._derived.clear()

    def write_rows(self, rows: RowBatch, cache: DrafterCache) -> None:
        """Write context rows, up to 256 at a time."""
        check_rows(self.binding, rows, cache, lookahead=0)
        for start in range(0, rows.num_rows, MAX_CONTEXT_ROWS):
            part = part_of(rows, start, start + MAX_CONTEXT_ROWS)
            bucket = next(size for size in (16, 64, MAX_CONTEXT_ROWS) if size >= part.num_rows)
            key = self._key(part, cache, num_rows=bucket, num_drafts=0)
            self._run(key, part, cache, num_steps=1, outputs=())

    def draft(
        self,
        rows: RowBatch,
        cache: DrafterCache,
        *,
        num_drafts: int,
        grammar: Tensor | None = None,
        has_confidence: bool = False,
    ) -> Drafts:
        """Draft a chain per row; see DraftPath."""
        check_chain(self.binding, rows, cache, num_drafts=num_drafts)
        size = 1 if self._is_exact else MAX_ROWS
        parts = [_no_drafts(self._device, num_drafts, has_confidence=has_confidence)]
        for start in range(0, rows.num_rows, size):
            masks = None if grammar is None else grammar[start : start + size]
            part = part_of(rows, start, start + size)
            parts.append(self._drafted(part, cache, num_drafts, grammar=masks, has_confidence=has_confidence))
        confidences = [part.confidences for part in parts if part.confidences is not None]
        return Drafts(torch.cat([part.ids for part in parts]), torch.cat(confidences) if confidences else None)

    def _drafted(
        self, rows: RowBatch, cache: DrafterCache, num_drafts: int, *, grammar: Tensor | None, has_confidence: bool
    ) -> Drafts:
        bucket = 1 << (rows.num_rows - 1).bit_length()
        key = self._key(
            rows,
            cache,
            num_rows=bucket,
            num_drafts=num_drafts,
            has_grammar=grammar is not None,
            has_confidence=has_confidence,
        )
        outputs = ("token", CONFIDENCE) if has_confidence else ("token",)
        words = -(-self.binding.config.vocab_size // 32)
        masks = {} if grammar is None else _masks(grammar, num_drafts=num_drafts, num_rows=bucket, num_words=words)
        found = self._run(key, rows, cache, num_steps=num_drafts, outputs=outputs, masks=masks)
        of_rows = {name: tensor[:, : rows.num_rows].T.contiguous() for name, tensor in found.items()}
        return Drafts(of_rows["token"], of_rows.get(CONFIDENCE))

    def _run(
        self,
        key: _Key,
        rows: RowBatch,
        cache: DrafterCache,
        *,
        num_steps: int,
        outputs: tuple[str, ...],
        masks: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        if key not in self._programs:
            self._programs[key] = self._made(key)
        program, derived = self._programs[key]
        weights = dict(self.binding.weights)
        for made in derived:
            made.refresh(self.binding.weights)
            weights.update(made.tensors)
        padded = padded_rows(rows, key.num_rows, key.max_blocks)
        return program.run(
            inputs={**row_inputs(padded), **(masks or {})},
            states=state_tensors(cache),
            weights=weights,
            num_steps=num_steps,
            outputs=outputs,
        )

    def _key(
        self,
        rows: RowBatch,
        cache: DrafterCache,
        *,
        num_rows: int,
        num_drafts: int,
        has_grammar: bool = False,
        has_confidence: bool = False,
    ) -> _Key:
        size = cache.block_size
        newest = int(rows.position.max()) + max(num_drafts, 1)
        needed = max(-(-newest // size), MIN_TABLE_BLOCKS)
        return _Key(
            num_drafts=num_drafts,
            num_rows=num_rows,
            # blocks beyond the newest row are never read
            max_blocks=1 << (needed - 1).bit_length(),
            has_grammar=has_grammar,
            has_confidence=has_confidence,
            num_blocks=cache.num_blocks,
            num_sequences=cache.num_sequences,
        )

    def _made(self, key: _Key) -> tuple[Program, tuple[DerivedWeights, ...]]:
        circuit = launch_circuit(
            self.binding,
            num_drafts=key.num_drafts,
            has_grammar=key.has_grammar,
            has_confidence=key.has_confidence,
        )
        compiled = compile_for_launches(
            self.binding,
            circuit,
            num_rows=key.num_rows,
            max_blocks=key.max_blocks,
            num_blocks=key.num_blocks,
            num_sequences=key.num_sequences,
        )
        plan = launch_plan(compiled, name=f"{circuit.name}_rows{key.num_rows}_blocks{key.max_blocks}")
        derived = tuple(self._derived_weight(weight) for weight in compiled.derived)
        if self._captures:
            return CudaGraphProgram(plan, device=self._device), derived
        return LaunchProgram(plan, device=self._device), derived

    def _derived_weight(self, weight: DerivedWeight) -> DerivedWeights:
        """One for all programs: it is as large as what it was made of."""
        if weight not in self._derived:
            self._derived[weight] = DerivedWeights([weight], self.binding.weights)
        return self._derived[weight]


def launch_circuit(
    binding: DraftBinding, *, num_drafts: int, has_grammar: bool = False, has_confidence: bool = False
) -> Circuit:
    """Return what launches are emitted for: a chain of drafts in one circuit, or context rows for 0 drafts."""
    if num_drafts == 0:
        return binding.context()
    parts = {"has_grammar": has_grammar, "has_confidence": has_confidence}
    steps = [binding.step(is_first=True, **parts), *[binding.step(is_first=False, **parts)] * (num_drafts - 1)]
    outputs = ("token", CONFIDENCE) if has_confidence else ("token",)
    joined = chain(steps, feedback=binding.feedback, outputs=outputs, per_draft_inputs=(GRAMMAR,))
    return remove_dead_code(joined)


def compile_for_launches(
    binding: DraftBinding, circuit: Circuit, *, num_rows: int, max_blocks: int, num_blocks: int, num_sequences: int
) -> Compiled:
    """Run the compiler's passes for the Triton backend at these sizes."""
    dims = {
        **binding.dims,
        "n": num_rows,
        "max_blocks": max_blocks,
        "num_blocks": num_blocks,
        "num_sequences": num_sequences,
        "mask_words": -(-binding.config.vocab_size // 32),
    }
    request = Request(target_of("triton"), dims, certified=certified_of(binding.draft_head))
    return compile_circuit(circuit, request, passes=AFTER_SPECIALISING)


def launch_plan(compiled: Compiled, *, name: str) -> LaunchPlan:
    """Return the launches of what the passes made."""
    return emit(compiled.circuit, name=name, derived=compiled.derived)


def _masks(grammar: Tensor, *, num_drafts: int, num_rows: int, num_words: int) -> dict[str, Tensor]:
    """Return a mask per draft by input name; drafts that the caller gave none for, and padding rows, are free.

    A mask shorter than the vocabulary allows nothing beyond its end.
    """
    free = torch.full((num_rows, num_drafts, num_words), -1, dtype=grammar.dtype, device=grammar.device)
    given = functional.pad(grammar[:, :num_drafts, :num_words], (0, max(num_words - grammar.shape[2], 0)))
    free[: given.shape[0], : given.shape[1]] = given
    return {f"{GRAMMAR}.{step + 1}": free[:, step].contiguous() for step in range(num_drafts)}


def _no_drafts(device: torch.device, num_drafts: int, *, has_confidence: bool) -> Drafts:
    """Drafts of no row."""
    confidences = torch.empty(0, num_drafts, device=device) if has_confidence else None
    return Drafts(torch.empty(0, num_drafts, dtype=torch.int64, device=device), confidences)
