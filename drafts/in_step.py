"""Ranks in step: every rank of a split drafter runs the same exchanges in the same order, or all refuse beforehand.

A call that drafts is framed by two small exchanges over all ranks:

    agree    each rank says what it is about to run: its drafter, path, positions, tokens, number of drafts. Where one
             differs, or one has refused its arguments, every rank raises before anything is exchanged for a draft
    draft    the exchanges follow a script that the circuit gives. A rank that fails in the middle takes part in the
             rest with zeros, for the others are waiting for it
    verdict  each rank says whether it failed, and what it drafted. Where one failed, all raise, and each puts its rows
             back: the caches stay in step
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from circuit import Circuit, Communicator, Exchange, RankError, communicating
from compiler import collectives
from drafts.path import Drafts
from drafts.ranks import Ranks

# what ranks compare, in this order; a number that a person can read is told as it is
FACTS = ("drafter", "call", "path", "requests", "num_drafts", "position", "rows", "tokens", "hiddens", "grammar")
READABLE = frozenset({"requests", "num_drafts", "position", "rows", "tokens"})
OK, REFUSED, FAILED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ScriptedExchange:
    """One exchange that is to come: its axis, what it is, and the tensor that each rank hands in."""

    axis: str
    exchange: Exchange
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.exchange} of {str(self.dtype).removeprefix('torch.')}{list(self.shape)} along {self.axis}"


def script_of(circuit: Circuit, *, num_rows: int) -> tuple[ScriptedExchange, ...]:
    """Return the exchanges of one run of a step over so many rows, in order."""
    script = []
    for call in collectives(circuit):
        payload = call.node.payload(*(arg.type for arg in call.args)).bind({"n": num_rows})
        exchange = call.node.exchange
        assert exchange is not None
        axis = str(call.node.attributes()["axis"])
        script.append(ScriptedExchange(axis, exchange, payload.sizes(), payload.dtype))
    return tuple(script)


class InStep:
    """Frames the calls of one drafter; of one that is whole on its rank it does nothing.

    identity: what tells this drafter from another: config, decisions, plan, sizes.
    """

    def __init__(self, ranks: Ranks | None, *, identity: str) -> None:
        self._ranks = ranks
        self._identity = digest(identity)
        self._call = ""
        self._has_agreed = False

    @property
    def is_split(self) -> bool:
        """Whether there are other ranks."""
        return self._ranks is not None

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Frame a call that drafts: what it raises before ranks agree is told to the others, who raise too."""
        self._call, self._has_agreed = name, False
        try:
            yield
        except Exception as error:
            if self._ranks is not None and not self._has_agreed:
                with _noted(error):
                    self._compare(self._ranks, REFUSED, {})
            raise

    def draft(
        self, facts: Mapping[str, int], script: Sequence[ScriptedExchange], run: Callable[[], list[Drafts]]
    ) -> list[Drafts]:
        """Agree, run, and give the verdict; `facts` are this rank's, by the names of FACTS but the first two.

        Raises RankError where ranks disagree or another one failed, and what `run` raises.
        """
        ranks = self._ranks
        if ranks is None:
            return run()
        problem = self._compare(ranks, OK, facts)
        if problem:
            raise RankError(f"{self._call}: {problem}; nothing was drafted")
        scripted = _ScriptedRun(ranks, script)
        try:
            with communicating(scripted.axes):
                drafts = run()
            scripted.require_done()
        except Exception as error:
            if not scripted.is_broken:
                with _noted(error):
                    scripted.drain()
                    self._verdict(ranks, FAILED, 0)
            error.add_note(f"on rank {ranks.rank} of {ranks.plan.num_ranks}, which share this drafter")
            raise
        made = digest(*(drafted.ids.tolist() for drafted in drafts))
        if problem := self._verdict(ranks, OK, made):
            raise RankError(f"{self._call}: {problem}; the rows of this call are put back on every rank")
        return drafts

    def _compare(self, ranks: Ranks, status: int, facts: Mapping[str, int]) -> str:
        """Exchange what each rank is about to run; returns what differs, empty where nothing does."""
        self._has_agreed = True
        given = {"drafter": self._identity, "call": digest(self._call), **facts}
        table = _gathered(ranks, [status, *(given.get(name, 0) for name in FACTS)])
        if refused := [rank for rank, row in enumerate(table) if row[0] != OK]:
            return f"rank {refused[0]} refused the call before it drafted, see its own error"
        for column, name in enumerate(FACTS, start=1):
            values = [row[column] for row in table]
            other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
            if other is None:
                continue
            ours, theirs = values[0], values[other]
            # of several sequences a number only tells them apart
            is_told = name in READABLE and max(abs(ours), abs(theirs)) < 1 << 32
            got = f"{ours} on rank 0 and {theirs} on rank {other}" if is_told else f"another on rank {other}"
            return f"expected the same {name} on all ranks, got {got}"
        return ""

    def _verdict(self, ranks: Ranks, status: int, made: int) -> str:
        table = _gathered(ranks, [status, made])
        if failed := [rank for rank, row in enumerate(table) if row[0] != OK]:
            return f"rank {failed[0]} failed while it drafted, see its own error"
        if other := [rank for rank, row in enumerate(table) if row[1] != table[0][1]]:
            return f"expected the same drafts on all ranks, got others on rank {other[0]} than on rank 0"
        return ""


@contextmanager
def _noted(error: Exception) -> Iterator[None]:
    """Note on `error` that the other ranks could not be told of it; it stays the one that is raised."""
    try:
        yield
    except RankError as lost:
        error.add_note(f"the other ranks could not be told: {lost}")


def digest(*parts: object) -> int:
    """Return a number that tells values apart, the same in every process."""
    hashed = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(hashed, "little") >> 1  # an int64


def tensor_digest(tensor: Tensor) -> int:
    """Return a number that tells tensors apart by their bytes."""
    return digest(tensor.dtype, tensor.shape, tensor.contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes())


def _gathered(ranks: Ranks, row: list[int]) -> list[list[int]]:
    return ranks.world.all_gather(torch.tensor(row, dtype=torch.int64, device=ranks.device)).tolist()


class _ScriptedRun:
    """The exchanges of one run, held to the script; an exchange that is not the next one is refused on this rank."""

    def __init__(self, ranks: Ranks, script: Sequence[ScriptedExchange]) -> None:
        self._held = ranks.axes
        self._script = script
        self._next = 0
        # a communicator that failed has lost its peers: nothing more can be exchanged
        self.is_broken = False
        self._device = ranks.device
        self.axes: dict[str, Communicator] = {axis: _Scripted(self, axis, held) for axis, held in ranks.axes.items()}

    def exchange(self, axis: str, exchange: Exchange, tensor: Tensor) -> Tensor:
        """Run the next exchange; `RankError` where the script has another one."""
        asked = ScriptedExchange(axis, exchange, tuple(tensor.shape), tensor.dtype)
        due = self._script[self._next] if self._next < len(self._script) else None
        if asked != due:
            raise RankError(f"exchange {self._next + 1} of {len(self._script)}: expected {due or 'none'}, got {asked}")
        self._next += 1
        self._device = tensor.device
        try:
            held = self._held[axis]
            return held.all_reduce(tensor) if exchange == "all_reduce" else held.all_gather(tensor)
        except Exception:
            self.is_broken = True
            raise

    def require_done(self) -> None:
        """Raise `RankError` where exchanges of the script are left."""
        if self._next < len(self._script):
            raise RankError(
                f"expected {len(self._script)} exchanges, got {self._next}; next {self._script[self._next]}"
            )

    def drain(self) -> None:
        """Take part in what is left with zeros: the other ranks wait for it."""
        for due in self._script[self._next :]:
            self.exchange(due.axis, due.exchange, torch.zeros(due.shape, dtype=due.dtype, device=self._device))


@dataclass(frozen=True, slots=True)
class _Scripted:
    """A communicator whose exchanges go through the script."""

    run: _ScriptedRun
    axis: str
    held: Communicator

    @property
    def rank(self) -> int:
        return self.held.rank

    @property
    def num_ranks(self) -> int:
        return self.held.num_ranks

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return self.run.exchange(self.axis, "all_reduce", tensor)

    def all_gather(self, tensor: Tensor) -> Tensor:
        return self.run.exchange(self.axis, "all_gather", tensor)
