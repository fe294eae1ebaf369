"""A tiny head in the middle of a text: its binding, one row to draft, and the cache before it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from circuit import Circuit, RunResult, StateType, interpret
from compiler import chain, remove_dead_code
from drafts.batch import RowBatch
from drafts.binding import DraftBinding
from tests.drafts.drafter_twin import make_proposer, make_text
from tests.drafts.tiny_head import rows_at

DECISIONS = {
    "plain": {},
    "target norm": {"supplied_hidden": "pre_norm"},
    "block output": {"recycle": "block_output"},
    "new rows": {"index_share": "pools_and_new_rows"},
    "exact set": {"index_share": "exact_set"},
}


class Scene:
    """A binding, one row to draft at position 18, and the cache before it."""

    def __init__(self, decisions: dict[str, str], *, dtype: torch.dtype = torch.float32) -> None:
        proposer = make_proposer("eager", decisions=decisions, dtype=dtype)
        binding = proposer.circuit_draft()
        assert binding is not None
        self.binding: DraftBinding = binding
        text, state = make_text(proposer, 40), proposer.alloc_state()
        text.prefill(proposer, state, 18)
        rows = rows_at(proposer.cache, state.sequence, text.tokens[19:20], text.hiddens[18:19], 18)
        self.inputs = self.row_inputs(rows)
        cache = proposer.cache
        self.states = {"latent_cache": cache.latent, "index_keys": cache.index_keys, "tail": cache.tail}

    @staticmethod
    def row_inputs(rows: RowBatch) -> dict[str, Tensor]:
        mask = torch.full((rows.num_rows, 2), -1, dtype=torch.int32)
        fields = {name: getattr(rows, name) for name in ("token", "position", "sequence", "block_table")}
        return fields | {"target_hidden": rows.hidden, "selected_at": rows.position, "grammar_bitmask": mask}

    def run(self, circuit: Circuit, *, weights: Mapping[str, Tensor] | None = None, **changes: Tensor) -> RunResult:
        """Interpret a program of the head; `weights` are those of the binding unless a pass derived others."""
        fed = self.inputs | changes
        given = {name: fed[name] for name in circuit.inputs}
        return interpret(circuit, inputs=given, weights=weights or self.binding.weights, states=self.states)

    def chain(self, num_drafts: int) -> Circuit:
        """The program of a whole chain."""
        binding = self.binding
        steps = [binding.step(is_first=True), *[binding.step(is_first=False)] * (num_drafts - 1)]
        return remove_dead_code(chain(steps, feedback=binding.feedback, outputs=("token",)))

    def programs(self) -> dict[str, Circuit]:
        """The programs that run on this scene's one row."""
        return {"step": self.binding.step(is_first=True), "chain": self.chain(2), "context": self.binding.context()}


def writes(circuit: Circuit) -> list[str]:
    return [value.name for call in circuit.calls for value in call.results if isinstance(value.type, StateType)]


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, tensor in got.items():
        assert torch.equal(tensor.nan_to_num(7.0), expected[name].nan_to_num(7.0)), name
