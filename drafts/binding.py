"""DraftBinding: a circuit with everything it needs to run bound to it, and nothing implied."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from circuit import BindingError, Circuit, LoweringError, verify
from compiler import Feedback, Split, context, place_collectives, step
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.draft_head import WHOLE_HEAD, DraftHead
from drafts.glm5_next import CONFIDENCE, WITHOUT_GRAMMAR, chain_feedback, mtp_head
from drafts.head_weights import with_head
from drafts.parallel import ONE_RANK, ParallelPlan, split_specs, weight_splits
from drafts.weights import WeightSpec, head_weight_specs


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Sizes of the drafter's state: rows of a cache block, and the longest chain a rollback must survive."""

    block_size: int
    max_num_drafts: int


@dataclass(frozen=True, slots=True)
class DraftBinding:
    """A drafter's circuit with config, weights, state layout, feedback edges and decisions bound.

    circuit: one draft of n sequences, as declared, whole.
    weights: tensors by the circuit's weight names; shared with whoever handed them in, never copied. What draft_head
        derives of them is made again when its source was written since.
    weight_specs: where each weight comes from in the checkpoint, and how it is made.
    feedback: the edges from one draft of a chain to the next.
    draft_head: which rows of lm_head the circuit reads, and how.
    parallel, rank: the ranks that share the drafter, and which of them this is: `weights` are its parts, and the
        circuits of `step` hold the exchanges with the others.
    not_modelled: what this checkpoint asks for and the circuit lacks; a runner refuses a binding that lists anything.
    """

    config: DraftConfig
    circuit: Circuit
    weights: Mapping[str, Tensor]
    weight_specs: tuple[WeightSpec, ...]
    state_layout: StateLayout
    feedback: tuple[Feedback, ...]
    decisions: Decisions
    draft_head: DraftHead = WHOLE_HEAD
    not_modelled: tuple[str, ...] = ()
    parallel: ParallelPlan = ONE_RANK
    rank: int = 0

    def __post_init__(self) -> None:
        verify(self.circuit)
        for name, value in self.rank_circuit.weights.items():
            if name not in self.weights:
                raise BindingError(f"binding of {self.circuit.name!r}: weight {value!r} is missing; load it first")
            weight = self.weights[name]
            expected = value.type
            got = (weight.dtype, tuple(weight.shape))
            if got != (expected.dtype, expected.sizes()):  # type: ignore[union-attr]
                place = f", as rank {self.rank} of {self.parallel}" if self.splits else ""
                raise BindingError(
                    f"binding of {self.circuit.name!r}: expected weight {value!r}, got {got[0]} {list(got[1])}; "
                    f"load it for this config and dtype{place}"
                )

    @property
    def splits(self) -> dict[str, Split]:
        """This rank's part of each weight that ranks share; empty where the drafter is whole on its rank."""
        return weight_splits(self.config, self.parallel, self.rank, draft_head=self.draft_head)

    @property
    def rank_circuit(self) -> Circuit:
        """The whole circuit with this rank's parts of the weights and its exchanges."""
        return place_collectives(self.circuit, self.splits)

    @property
    def dims(self) -> dict[str, int]:
        """The named dims that the binding fixes; n, max_blocks, num_blocks and num_sequences belong to a run."""
        return {"tail_depth": self.config.index_kpool + self.state_layout.max_num_drafts}

    def step(self, *, is_first: bool, has_grammar: bool = False, has_confidence: bool = False) -> Circuit:
        """The circuit of one draft of a chain.

        The first takes the target's hidden; drafts 2..K are fed by the draft before through `feedback`. Without a
        grammar the mask is bypassed, without confidence that output is dropped. Its exchanges with other ranks are
        placed, which depend on what is left.
        """
        whole = step(
            self.circuit,
            feedback=() if is_first else self.feedback,
            bypassed=None if has_grammar else WITHOUT_GRAMMAR,
            dropped_outputs=() if has_confidence else (CONFIDENCE,),
        )
        return place_collectives(whole, self.splits)

    def context(self) -> Circuit:
        """The circuit of context rows, which only fills the cache."""
        return context(self.circuit)


def bind_head(
    config: DraftConfig,
    weights: Mapping[str, Tensor],
    decisions: Decisions,
    *,
    block_size: int,
    max_num_drafts: int,
    draft_head: DraftHead = WHOLE_HEAD,
    parallel: ParallelPlan = ONE_RANK,
    rank: int = 0,
) -> DraftBinding:
    """Bind the GLM-5.3-Flash MTP head; `BindingError` names a weight that is missing or misshapen.

    `weights` are those of one rank of `parallel`.
    """
    circuit = mtp_head(config, decisions, block_size=block_size, max_num_drafts=max_num_drafts, draft_head=draft_head)
    specs = head_weight_specs(config, target_norm=decisions.applies_target_norm)
    return DraftBinding(
        config=config,
        circuit=circuit,
        weights=with_head(weights, draft_head),
        weight_specs=split_specs(specs, weight_splits(config, parallel, rank, draft_head=draft_head)),
        state_layout=StateLayout(block_size=block_size, max_num_drafts=max_num_drafts),
        feedback=chain_feedback(decisions),
        decisions=decisions,
        draft_head=draft_head,
        not_modelled=not_modelled(config),
        parallel=parallel,
        rank=rank,
    )


def not_modelled(config: DraftConfig) -> tuple[str, ...]:
    """Return what the eager head runs and the circuit does not, a phrase each; empty for most checkpoints."""
    if config.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        # the nodes' float32 parts would round a wider model
        return (f"dtype {config.dtype}: parts of the circuit compute in float32",)
    return ()


def require_modelled(binding: DraftBinding, *, where: str) -> None:
    """Raise `BindingError` for what is no binding, and for a drafter that the circuit does not model."""
    if not isinstance(binding, DraftBinding):
        raise BindingError(
            f"{where}: expected a DraftBinding, got {binding!r}; circuit_draft returns None for a drafter that "
            "the circuit does not model, run the eager head then"
        )
    if binding.not_modelled:
        raise BindingError(f"{where}: the circuit does not model {'; '.join(binding.not_modelled)}; run the eager head")


def require_whole(binding: DraftBinding) -> None:
    """Raise `LoweringError` for a drafter that ranks share: its chains exchange, and no compiled program does yet."""
    if binding.parallel.is_split:
        raise LoweringError(
            f"binding of {binding.circuit.name!r}: a compiled program exchanges nothing with other ranks, got a "
            f"drafter split over {binding.parallel}; run it interpreted, on the backend reference, or whole on each "
            "rank with the lever mtp_ep_propose off"
        )
