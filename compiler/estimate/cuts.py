"""What to cut next: what each of the things that could go would save at best, the largest first."""

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.estimate.launches import LaunchCost
from compiler.estimate.roofline import Roofline


@dataclass(frozen=True, slots=True)
class Cut:
    """One thing that could go: which launch it is in, what is done, and the microseconds a draft it saves at best."""

    where: str
    what: str
    saves_us: float


def rank_cuts(launches: Sequence[LaunchCost], roofline: Roofline, *, num_launches: int) -> tuple[Cut, ...]:
    """Return what would be saved by weights and caches of a byte an element, and by no gaps between launches.

    Bytes that go save what moving them takes, and no more than the launch is bound by its bytes. Whether drafts stay
    as good is another question, which the acceptance gate answers.
    """
    cuts = []
    for launch in launches:
        floor, computing = roofline.floor_us(launch.cost), roofline.computing_us(launch.cost)
        if launch.weight_bytes and launch.element_bytes > 1:
            saved = launch.weight_bytes * (1 - 1 / launch.element_bytes) / roofline.bytes_per_s * 1e6
            others = ", .." if len(launch.weights) > 1 else ""
            cuts.append(Cut(launch.name, f"8-bit weights: {launch.weights[0]}{others}", min(saved, floor - computing)))
        if launch.state_bytes and launch.element_bytes > 1:
            saved = launch.state_bytes * (1 - 1 / launch.element_bytes) / roofline.bytes_per_s * 1e6
            cuts.append(Cut(launch.name, "8-bit cache rows", min(saved, floor - computing)))
    gaps = roofline.gaps_us(num_launches)
    if gaps:
        cuts.append(Cut("all launches", f"{num_launches} gaps: overlap or fuse", gaps))
    return tuple(sorted(cuts, key=lambda cut: -cut.saves_us))
