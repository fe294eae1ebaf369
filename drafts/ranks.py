"""Ranks: the processes that share a drafter, on torch.distributed as it is. gloo on CPUs, NCCL on GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from circuit import BindingError, Communicator, Exchange, RankError
from drafts.parallel import AXES, ParallelPlan

WORLD = "world"
NEXT_STEP = "start every rank of the plan, as torchrun does, and make the process group first"


@dataclass(frozen=True, slots=True)
class LoggedExchange:
    """One exchange that a rank took part in: its axis or `world`, what it was, and the shape that was handed in."""

    axis: str
    exchange: Exchange
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupCommunicator:
    """A process group along one axis. Every exchange is written to `log` first, where there is one.

    An exchange that fails, because a peer is gone or too late, raises `RankError`.
    """

    axis: str
    group: dist.ProcessGroup
    log: list[LoggedExchange] | None = None

    @property
    def rank(self) -> int:
        """This process's place in the group."""
        return dist.get_rank(self.group)

    @property
    def num_ranks(self) -> int:
        """Processes in the group."""
        return dist.get_world_size(self.group)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of every rank's tensor."""
        self._note("all_reduce", tensor)
        total = tensor.clone(memory_format=torch.contiguous_format)
        try:
            dist.all_reduce(total, group=self.group)
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error
        return total

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return every rank's tensor, in the order of ranks."""
        self._note("all_gather", tensor)
        gathered = tensor.new_empty((self.num_ranks, *tensor.shape))
        try:
            dist.all_gather(list(gathered.unbind(0)), tensor.contiguous(), group=self.group)
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error
        return gathered

    def _note(self, exchange: Exchange, tensor: Tensor) -> None:
        if self.log is not None:
            self.log.append(LoggedExchange(self.axis, exchange, tuple(tensor.shape)))

    def _lost(self, error: Exception) -> RankError:
        first_line = str(error).strip().splitlines()[:1] or [type(error).__name__]
        return RankError(
            f"rank {dist.get_rank()}, {self.axis}: expected {self.num_ranks} ranks to take part in an exchange, got a "
            f"fault: {first_line[0]}; another rank is gone or too late, look at its output and start all of them again"
        )


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among those that share a drafter: the plan, its rank, and a communicator along each axis.

    device: where small facts that ranks compare are exchanged.
    """

    plan: ParallelPlan
    rank: int
    world: Communicator
    axes: Mapping[str, Communicator] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


def join_ranks(plan: ParallelPlan, *, log: list[LoggedExchange] | None = None) -> Ranks | None:
    """Return this process's place in the default process group; None for a plan of one rank.

    Every rank of the group calls it, in the same order beside other makers of groups. `log` takes every exchange.
    `BindingError` where there is no process group, or one of another size than the plan's.
    """
    if not plan.is_split:
        return None
    if not dist.is_available() or not dist.is_initialized():
        raise BindingError(
            f"parallel plan ({plan}): expected a process group of {plan.num_ranks} ranks, got none; {NEXT_STEP}"
        )
    if dist.get_world_size() != plan.num_ranks:
        raise BindingError(
            f"parallel plan ({plan}): expected {plan.num_ranks} ranks, got a process group of "
            f"{dist.get_world_size()}; {NEXT_STEP}"
        )
    rank, world = dist.get_rank(), dist.group.WORLD
    assert world is not None
    axes: dict[str, Communicator] = {}
    for axis in AXES:
        count = plan.ranks_along(axis)
        groups = [list(range(start, start + count)) for start in range(0, plan.num_ranks, count)]
        if count == 1:
            continue
        # every rank makes every group, those it is not in too
        made = [world if count == plan.num_ranks else dist.new_group(members) for members in groups]
        mine = made[rank // count]
        assert isinstance(mine, dist.ProcessGroup)
        axes[axis] = GroupCommunicator(axis, mine, log)
    is_gpu = dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")
    return Ranks(plan, rank, GroupCommunicator(WORLD, world, log), axes, device)
