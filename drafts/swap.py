"""What may be swapped in for the eager head."""

from collections.abc import Mapping

from torch import Tensor

from circuit import BindingError
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.draft_head import DraftHead
from drafts.head_weights import LM_HEAD, OWN_NAMES
from drafts.parallel import ONE_RANK, ParallelPlan
from drafts.path import DraftPath


def check_runner(
    runner: DraftPath,
    config: DraftConfig,
    weights: Mapping[str, Tensor],
    decisions: Decisions,
    draft_head: DraftHead,
    parallel: ParallelPlan = ONE_RANK,
) -> None:
    """Hold that a runner is of this drafter: one of another drafts without an error, only worse."""
    if not isinstance(runner, DraftPath):
        raise ValueError(f"set_circuit_draft: expected a DraftRunner or None, got {type(runner).__name__}")
    binding = runner.binding
    if binding is None:
        return
    place = f"set_circuit_draft: binding of {binding.circuit.name!r}"
    pairs = (
        ("config", binding.config, config),
        ("decisions", binding.decisions, decisions),
        ("draft_head", binding.draft_head, draft_head),
        ("ranks", binding.parallel, parallel),
    )
    for what, theirs, ours in pairs:
        if theirs != ours:
            raise BindingError(f"{place}: its {what} are not this proposer's; take circuit_draft() of this proposer")
    # what is derived of lm_head is the binding's own, lm_head is not
    for name in dict.fromkeys((*binding.circuit.weights, LM_HEAD)):
        if name in OWN_NAMES:
            continue
        if binding.weights[name] is not weights.get(name):
            raise BindingError(f"{place}: weight {name!r} is another tensor; take circuit_draft() of this proposer")
