"""Plant every mutant, run the parity and golden checks on each, and tell the score: `make mutation`.

Exit code 1 where a layer catches less than REQUIRED of its mutants, equivalent ones left aside, or where a mutant
survives that equivalent.toml does not explain. docs/parity.md holds the last score.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

# before triton is first imported: its kernels are judged on the CPU
os.environ["TRITON_INTERPRET"] = "1"

import pytest

from tests.mutation import checks, equivalents
from tests.mutation.forks import Outcome, judge
from tests.mutation.mutants import ROOT, SOURCES, Mutant, layer_files, mutants_of

REQUIRED = 0.95
SEED = 20


@dataclass
class Session:
    """A pytest session that collects what mutants are held to, and judges them in place of running it."""

    mutants: Sequence[Mutant]
    num_workers: int
    outcomes: list[Outcome] = field(default_factory=list)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        checks.one_thread()
        items = session.items
        started = time.monotonic()
        # warm, and no check may fail by itself
        for layer in dict.fromkeys(mutant.layer for mutant in self.mutants):
            checks.rehearse(layer, items)
        say(f"rehearsed in {time.monotonic() - started:.0f} s")
        judged = judge(self.mutants, lambda one: checks.checks_of(one, items), num_workers=self.num_workers)
        for number, outcome in enumerate(judged, start=1):
            self.outcomes.append(outcome)
            if not outcome.caught_by:
                say(f"survived: {outcome.mutant}")
            if number % 50 == 0:
                say(f"{number} of {len(self.mutants)}, {time.monotonic() - started:.0f} s")
        return True


def chosen_mutants(layers: Sequence[str], *, sample: int, seed: int, only: str) -> list[Mutant]:
    """Return the mutants of some layers whose line has `only`; `sample` of each layer, all for 0."""
    chosen: list[Mutant] = []
    for layer in layers:
        found = [one for path in layer_files(layer) for one in mutants_of(path, layer) if only in str(one)]
        chosen += found if not sample else random.Random(seed).sample(found, min(sample, len(found)))
    return chosen


def report(outcomes: Sequence[Outcome], reasons: dict[equivalents.Key, str]) -> bool:
    """Print the score of each layer and the survivors; return whether it is good enough."""
    is_good = True
    for layer in dict.fromkeys(outcome.mutant.layer for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.mutant.layer == layer]
        survivors = [outcome.mutant for outcome in mine if not outcome.caught_by]
        equivalent = [mutant for mutant in survivors if mutant.key in reasons]
        unexplained = [mutant for mutant in survivors if mutant.key not in reasons]
        caught, total = len(mine) - len(survivors), len(mine) - len(equivalent)
        by = Counter(outcome.caught_by.split(" ")[0] for outcome in mine if outcome.caught_by)
        say(
            f"{layer}: {caught} of {total} caught, {caught / max(total, 1):.1%}; {len(equivalent)} equivalent beside "
            f"them; by {', '.join(f'{name} {count}' for name, count in by.most_common())}"
        )
        for mutant in unexplained:
            say(f"  survived without a reason: {mutant}")
        wrong = [outcome for outcome in mine if outcome.caught_by and outcome.mutant.key in reasons]
        for outcome in wrong:
            say(f"  said to be equivalent, yet caught by {outcome.caught_by}: {outcome.mutant}; {outcome.message}")
        is_good &= caught >= REQUIRED * total and not wrong
    return is_good


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the mutants that the options choose; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.score", description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", choices=list(SOURCES), default=["nodes", "inductor"])
    parser.add_argument("--sample", type=int, default=0, help="mutants of each layer; 0 for all")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="text that a mutant's line must hold")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    mutants = chosen_mutants(options.layers, sample=options.sample, seed=options.seed, only=options.only)
    say(f"{len(mutants)} mutants of {', '.join(options.layers)}")
    session = Session(mutants, options.jobs)
    folders = [str(ROOT / folder) for layer in options.layers for folder in checks.TEST_FOLDERS[layer]]
    code = pytest.main(
        [*folders, "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler"], [session]
    )
    if len(session.outcomes) < len(mutants):
        say(f"error: expected {len(mutants)} outcomes, got {len(session.outcomes)}; pytest ended with {code}")
        return 1
    return 0 if report(session.outcomes, equivalents.read_equivalents()) else 1


if __name__ == "__main__":
    sys.exit(main())
