"""Tokens per second of the demo's whole loop: no drafter, the eager drafter, the circuit compiled to native code.

    python benchmarks/decode_cpu.py                     # two minutes on two cores; the first run compiles
    python benchmarks/decode_cpu.py --dtype bf16 --drafts 2 --json

The three take turns on every prompt in one process, and must give one text: a near tie that falls the other way in
bf16 is counted and printed. Medians over prompts; the drafter's share is its part of the loop's time.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from drafts.commands.artifacts import BackendChoice, cached_artifact
from drafts.commands.prompts import demo_checkpoint, demo_prompts
from drafts.commands.screen import Screen
from drafts.commands.session import load_session
from drafts.generation import Generation, compare_to_plain


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    screen = Screen(as_json=True)
    session = load_session(demo_checkpoint(), screen, dtype_name=arguments.dtype)
    texts = [prompt.text for prompt in demo_prompts(arguments.prompts)]
    prompts = [session.encode(text, max_new_tokens=arguments.tokens) for text in texts]
    num_tokens = max(map(len, prompts)) + arguments.tokens
    with tempfile.TemporaryDirectory() as cache:
        choice = BackendChoice("inductor", Path(cache))
        artifact = cached_artifact(session, screen, choice, num_tokens=num_tokens, num_drafts=arguments.drafts)
        drafters = {
            form: session.drafter(form, num_tokens=num_tokens, num_drafts=arguments.drafts, artifact=held)[0]
            for form, held in (("eager", None), ("circuit", artifact))
        }
        runs: dict[str, list[Generation]] = {"none": [], "eager": [], "circuit": []}
        for number, prompt in enumerate([prompts[0], *prompts]):
            names = list(runs)
            for name in names[number % 3 :] + names[: number % 3]:
                generation = session.generate(
                    drafters.get(name),
                    prompt,
                    max_new_tokens=arguments.tokens,
                    num_drafts=arguments.drafts if name in drafters else 0,
                )
                if number:  # the first turn warms up
                    runs[name].append(generation)
    _print(runs, arguments.json)
    return 0


def _print(runs: dict[str, list[Generation]], as_json: bool) -> None:
    rows = {}
    for name, generations in runs.items():
        metrics = [generation.metrics for generation in generations]
        rows[name] = {
            "tokens_per_second": statistics.median(one.tokens_per_second for one in metrics),
            "mean_accepted_length": statistics.mean(one.mean_accepted_length for one in metrics),
            "drafter_share": statistics.median(one.drafter_s / one.decode_s for one in metrics),
            "same_text": sum(
                compare_to_plain(ours, plain).is_identical
                for ours, plain in zip(generations, runs["none"], strict=True)
            ),
        }
    plain = rows["none"]["tokens_per_second"]
    if as_json:
        print(json.dumps(rows))
        return
    print(f"{'drafter':<10}{'tokens/s':>10}{'gain':>8}{'accepted':>10}{'drafter share':>15}{'same text':>11}")
    for name, row in rows.items():
        speed = row["tokens_per_second"]
        print(
            f"{name:<10}{speed:>10.1f}{speed / plain:>7.2f}x{row['mean_accepted_length']:>10.2f}"
            f"{row['drafter_share']:>14.0%}{row['same_text']:>6} of {len(runs[name])}"
        )


if __name__ == "__main__":
    sys.exit(main())
