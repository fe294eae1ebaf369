"""The head's circuit, run by the interpreter, as a HeadUnderTest."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from circuit import Circuit, TensorType, Value, interpret
from drafts.batch import RowBatch
from drafts.binding import DraftBinding, bind_head
from drafts.cache import default_block_size
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from tests.golden.replay import CacheTensors, Edges

STATES = ("latent_cache", "index_keys", "tail")


@dataclass
class CircuitHead:
    binding: DraftBinding

    def step(
        self,
        rows: RowBatch,
        tensors: CacheTensors,
        *,
        recycled: bool,
        selected: Tensor | None,
        selected_at: Tensor | None,
    ) -> tuple[Edges, CacheTensors]:
        program = self.binding.step(is_first=not recycled)
        inputs = self._inputs(rows)
        if selected is not None and selected_at is not None:
            # step 0 adds no rows to what it chose, so its extension is all -1
            width = self.binding.config.selected_width
            inputs |= {"selected": selected, "chosen": selected[:, :width], "selected_at": selected_at}
        edges, tensors = self._run(program, inputs, tensors)
        # the vectors hold complete pools only, the circuit a column for every place of the block table
        num_pools = int(rows.position.max() + 1) // self.binding.config.index_kpool
        pool_keys = tensors[1][rows.block_table].flatten(1, 2)[:, :num_pools]
        edges = {**edges, "pool_keys": pool_keys}
        if "index_scores" in edges:
            edges["index_scores"] = edges["index_scores"][:, :num_pools]
        return edges, tensors

    def context(self, rows: RowBatch, tensors: CacheTensors) -> tuple[Edges, CacheTensors]:
        return self._run(self.binding.context(), self._inputs(rows), tensors)

    def _inputs(self, rows: RowBatch) -> dict[str, Tensor]:
        hidden = {edge.target: rows.hidden for edge in self.binding.feedback if edge.source == "hidden"}
        return {
            "token": rows.token,
            "target_hidden": rows.hidden,
            "position": rows.position,
            "sequence": rows.sequence,
            "block_table": rows.block_table,
            "selected_at": rows.position,
        } | hidden

    def _run(self, program: Circuit, inputs: dict[str, Tensor], tensors: CacheTensors) -> tuple[Edges, CacheTensors]:
        edges: dict[str, Tensor] = {}

        def record(value: Value, tensor: Tensor) -> None:
            if value.kind == "result" and isinstance(value.type, TensorType):
                edges[value.name] = tensor

        result = interpret(
            program,
            inputs={name: inputs[name] for name in program.inputs},
            weights=self.binding.weights,
            states=dict(zip(STATES, tensors, strict=True)),
            observe=record,
        )
        # a selection taken over from an earlier step is an input here
        edges |= {name: inputs[name] for name in ("selected", "chosen") if name in program.inputs}
        latent, index_keys, tail = (result.states[name] for name in STATES)
        return edges, (latent, index_keys, tail)


def circuit_head(config: DraftConfig, weights: dict[str, Tensor], decisions: Decisions) -> CircuitHead:
    block_size = default_block_size(config.index_kpool)
    return CircuitHead(bind_head(config, weights, decisions, block_size=block_size, max_num_drafts=16))
