"""The model of a round's gain against the loop it models: the demo model, drafted by its circuit, on this machine.

    python benchmarks/speedup_model.py                # four minutes on two shared cores
    python benchmarks/speedup_model.py --json

Acceptance by position and the times of a pass and of a chain are measured in some loops and the gain of another K is
predicted from them: drafts of K = 1 and K = 4 give the model, K = 2 and K = 3 are predicted and then measured. Plain
decoding and every K take turns on each prompt, so that a slow spell of the machine falls on all of them.
Exits with 1 where a prediction misses the measured gain by more than 15 %.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from compiler import RoundModel
from drafts.commands.prompts import demo_checkpoint, demo_prompts
from drafts.commands.screen import Screen
from drafts.commands.session import load_session
from drafts.generation import SpeculationMetrics, combine_metrics

KNOWN, PREDICTED = (1, 4), (2, 3)
BOUND = 0.15


@dataclass(frozen=True, slots=True)
class Loop:
    """What the loops of one K measured: microseconds a round of its parts and as a whole, and tokens a round."""

    draft_us: float
    verify_us: float
    round_us: float
    tokens: float

    @staticmethod
    def of(parts: Sequence[SpeculationMetrics]) -> "Loop":
        """Times are medians over prompts, which a slow spell of the machine does not move; tokens are of all."""
        whole = combine_metrics(parts)
        return Loop(
            statistics.median(1e6 * one.drafter_s / one.num_rounds for one in parts),
            statistics.median(1e6 * one.target_s / one.num_rounds for one in parts),
            statistics.median(1e6 * one.decode_s / one.num_rounds for one in parts),
            (whole.num_tokens - whole.num_generations) / whole.num_rounds,
        )

    @property
    def us_a_token(self) -> float:
        return self.round_us / self.tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--form", choices=("eager", "circuit"), default="circuit")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    parts = measured(arguments.prompts, arguments.tokens, arguments.form)
    loops = {count: Loop.of(held) for count, held in parts.items()}
    model = model_of(loops, combine_metrics(parts[max(KNOWN)]).conditional_acceptance)
    rows = []
    for count in sorted((*KNOWN, *PREDICTED)):
        gain = loops[0].us_a_token / loops[count].us_a_token
        predicted = model.predict(count).speedup
        rows.append(
            {
                "num_drafts": count,
                "is_predicted": count in PREDICTED,
                "measured_speedup": gain,
                "modelled_speedup": predicted,
                "error": predicted / gain - 1,
                "draft_us": loops[count].draft_us,
                "verify_us": loops[count].verify_us,
            }
        )
    worst = max(abs(row["error"]) for row in rows)
    best = max(rows, key=lambda row: row["measured_speedup"])["num_drafts"]
    report = {"best_measured": best, "best_modelled": model.best().num_drafts, "worst_error": worst, "rows": rows}
    show(report, as_json=arguments.json)
    return 0 if worst <= BOUND else 1


def measured(num_prompts: int, num_tokens: int, form: str) -> dict[int, list[SpeculationMetrics]]:
    """Decode every prompt plainly (0) and at each K in turn, rotating who is first."""
    screen = Screen(as_json=True)
    torch.set_num_threads(1)
    session = load_session(demo_checkpoint(), screen)
    prompts = [session.encode(one.text, max_new_tokens=num_tokens) for one in demo_prompts(num_prompts)]
    longest = max(map(len, prompts)) + num_tokens + max(KNOWN)
    proposer, _ = session.drafter(form, num_tokens=longest, num_drafts=max(KNOWN))
    counts = [0, *sorted((*KNOWN, *PREDICTED))]
    parts: dict[int, list[SpeculationMetrics]] = {count: [] for count in counts}
    for count in counts:
        session.generate(proposer if count else None, prompts[0], max_new_tokens=8, num_drafts=count or 1)
    for index, prompt in enumerate(prompts):
        shift = index % len(counts)
        for count in counts[shift:] + counts[:shift]:
            done = session.generate(
                proposer if count else None, prompt, max_new_tokens=num_tokens, num_drafts=count or 1
            )
            parts[count].append(done.metrics)
    return parts


def model_of(loops: dict[int, Loop], acceptance: tuple[float, ...]) -> RoundModel:
    """Return the model from plain decoding and the known K alone, times in between on straight lines."""
    low, high = KNOWN
    draft_step = (loops[high].draft_us - loops[low].draft_us) / (high - low)
    verify_step = (loops[high].verify_us - loops[low].verify_us) / (high - low)
    return RoundModel(
        acceptance=acceptance,
        draft_us=tuple(loops[low].draft_us + draft_step * (count - low) for count in range(1, high + 1)),
        verify_us=(
            loops[0].verify_us,
            *(loops[low].verify_us + verify_step * (count - low) for count in range(1, high + 1)),
        ),
    )


def show(report: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report))
        return
    print(f"{'K':>3} {'draft us':>10} {'verify us':>10} {'measured':>9} {'modelled':>9} {'off by':>8}")
    rows = report["rows"]
    assert isinstance(rows, list)
    for row in rows:
        note = "predicted from the other K" if row["is_predicted"] else ""
        print(
            f"{row['num_drafts']:>3} {row['draft_us']:>10,.0f} {row['verify_us']:>10,.0f} "
            f"{row['measured_speedup']:>8.2f}x {row['modelled_speedup']:>8.2f}x {row['error']:>+8.1%}  {note}"
        )
    print(f"best K: {report['best_measured']} measured, {report['best_modelled']} modelled")
    print(f"worst {report['worst_error']:.1%} of {BOUND:.0%} allowed")


if __name__ == "__main__":
    sys.exit(main())
