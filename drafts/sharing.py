"""How one drafter shares its work with other ranks, if any: its plan, its parts, and what keeps the ranks in step."""

from collections.abc import Callable, Mapping

from torch import Tensor

from circuit import BindingError
from drafts.binding import DraftBinding, bind_head
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.eager_glm5_next import EagerGlm5NextHead
from drafts.in_step import InStep, ScriptedExchange, script_of
from drafts.levers import ModelLevers
from drafts.parallel import ONE_RANK, ParallelPlan, eager_shard, split_specs, weight_splits
from drafts.ranks import Ranks
from drafts.weights import WeightSpec, head_weight_specs


class Sharing:
    """The split of one drafter; with the lever mtp_ep_propose off, or without `ranks`, it is whole on its rank."""

    def __init__(
        self,
        config: DraftConfig,
        decisions: Decisions,
        ranks: Ranks | None,
        levers: ModelLevers,
        *,
        limits: tuple[int, ...] = (),
    ) -> None:
        """Share as `ranks` are planned; `limits` are sizes that must be the same on all of them."""
        held = ranks if levers.mtp_ep_propose else None
        self.plan: ParallelPlan = ONE_RANK if held is None else held.plan
        self.rank = 0 if held is None else held.rank
        self._config, self._decisions, self._head = config, decisions, levers.head
        identity = f"{config!r} {decisions!r} {levers!r} {self.plan} {limits}"
        self.in_step = InStep(held, identity=identity)
        self._scripts: dict[tuple[int, bool, bool, bool], tuple[ScriptedExchange, ...]] = {}
        self._binding: DraftBinding | None = None

    def specs(self) -> tuple[WeightSpec, ...]:
        """Return what this rank reads of a checkpoint."""
        whole = head_weight_specs(self._config, target_norm=self._decisions.applies_target_norm)
        return split_specs(whole, weight_splits(self._config, self.plan, self.rank, draft_head=self._head))

    def eager_head(self, weights: Mapping[str, Tensor]) -> EagerGlm5NextHead:
        """Return the eager head over this rank's weights; ValueError for one that is not this rank's part."""
        shard = eager_shard(self._config, self.plan, self.rank, draft_head=self._head)
        return EagerGlm5NextHead(
            self._config, weights, self._decisions, draft_head=self._head, shard=shard, specs=self.specs()
        )

    def bind(self, weights: Mapping[str, Tensor], *, block_size: int, max_num_drafts: int) -> DraftBinding:
        """Return the circuit bound to this rank's weights."""
        return bind_head(
            self._config,
            weights,
            self._decisions,
            block_size=block_size,
            max_num_drafts=max_num_drafts,
            draft_head=self._head,
            parallel=self.plan,
            rank=self.rank,
        )

    def script(
        self,
        bind: Callable[[], DraftBinding | None],
        num_rows: int,
        *,
        is_first: bool,
        has_grammar: bool,
        has_confidence: bool,
    ) -> tuple[ScriptedExchange, ...]:
        """Return the exchanges of one step over so many rows; `bind` gives the circuit that says them, once."""
        key = (num_rows, is_first, has_grammar, has_confidence)
        if key not in self._scripts:
            self._binding = self._binding or bind()
            if self._binding is None:
                raise BindingError(
                    f"parallel plan ({self.plan}): the circuit does not model this drafter, and it alone says what "
                    "ranks exchange; run it whole, with the lever mtp_ep_propose off"
                )
            step = self._binding.step(is_first=is_first, has_grammar=has_grammar, has_confidence=has_confidence)
            self._scripts[key] = script_of(step, num_rows=num_rows)
        return self._scripts[key]
