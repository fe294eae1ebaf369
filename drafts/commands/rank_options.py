"""How a command's ranks share the drafter: the plan that was asked for, the process group, and the lever."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from drafts.commands.rank_launch import StartedRank
from drafts.config import DraftConfig
from drafts.levers import ModelLevers
from drafts.parallel import ParallelPlan, default_plan
from drafts.ranks import Ranks, join_ranks

NO_SPLIT = "METRALE_NO_MTP_EP_PROPOSE"
EXCHANGE_TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True, slots=True)
class RankOptions:
    """The ranks that a command was started on, and the plan as far as it was asked for."""

    started: StartedRank = field(default_factory=StartedRank)
    tp: int | None = None
    ep: int | None = None

    @property
    def is_asked(self) -> bool:
        """Whether there are several ranks, or a plan for them."""
        return self.started.num_ranks > 1 or self.tp is not None or self.ep is not None

    def plan(self, config: DraftConfig) -> ParallelPlan:
        """Return the plan over the ranks there are; ValueError where that asked for is one of others."""
        count = self.started.num_ranks
        usual = default_plan(count, config)
        plan = ParallelPlan(tp=self.tp or usual.tp, ep=self.ep or (usual.ep if self.tp is None else count))
        if plan.num_ranks != count:
            raise ValueError(
                f"--tp {plan.tp} --ep {plan.ep}: expected {plan.num_ranks} ranks, got {count}; add "
                f"--nproc {plan.num_ranks}, or start it with torchrun --nproc-per-node {plan.num_ranks}"
            )
        return plan


def levers_of_environment() -> ModelLevers:
    """Return the levers with those that the environment turns off."""
    return ModelLevers(mtp_ep_propose=os.environ.get(NO_SPLIT, "") != "1")


@contextmanager
def joined_ranks(options: RankOptions, config: DraftConfig) -> Iterator[Ranks | None]:
    """Join the ranks over gloo for the body; None on a process that was started alone."""
    plan = options.plan(config)
    if not plan.is_split:
        yield None
        return
    dist.init_process_group("gloo", timeout=EXCHANGE_TIMEOUT)
    try:
        yield join_ranks(plan)
    finally:
        dist.destroy_process_group()
