"""Rewrite the generated tables of docs/performance.md: floors from the plan, measured times from measured.jsonl.

    python benchmarks/propose_cpu.py --json > benchmarks/measured.jsonl     # on the machine to report
    python benchmarks/performance_page.py

Only what stands between `<!-- NAME: generated -->` and `<!-- end -->` changes. With --check nothing is written, and
the exit code is 1 where the page is not what would be written.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compiler import device_names, load_device, roofline_of
from drafts.commands.grid import Grid
from drafts.commands.plan_subject import plan_subject
from drafts.commands.plan_tables import cuts, launches
from drafts.decisions import default_decisions
from drafts.plan_drafter import DraftPlan, bind_without_weights, plan_drafter

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
MEASURED = Path(__file__).with_name("measured.jsonl")
SUBJECT, BATCHES, CONTEXTS = "glm-5.3-flash", (1, 4, 16), (4096, 131072)
COPY_RATE = 4.3e12  # bytes a second: what the design reckons an H200 to copy at
WIDE = 120


def plan(device: str, *, batch: int = 1, context: int = 4096, bandwidth: float | None = None) -> DraftPlan:
    subject = plan_subject(SUBJECT, dtype_name=None)
    held = load_device(device)
    return plan_drafter(
        bind_without_weights(subject.config, default_decisions(subject.config)),
        device=held,
        roofline=roofline_of(held, is_16_bit=True, bandwidth=bandwidth),
        backend="triton",
        batch=batch,
        context=context,
        num_drafts=3,
    )


def floors() -> str:
    """Floor of the first draft by device and batch, and what of it launch gaps would add."""
    names = [(name, None) for name in device_names()]
    rows = []
    for name, bandwidth in (*names, ("h200", COPY_RATE)):
        plans = [plan(name, batch=batch, bandwidth=bandwidth) for batch in BATCHES]
        first = plans[0]
        gap = "?" if first.gap_us is None else f"{first.gap_us:.1f}"
        rows.append(
            (
                first.device.title,
                f"{first.roofline.bytes_per_s / 1e12:.3g} ({first.roofline.bandwidth_kind})",
                *(f"{one.floor_us:,.0f}" for one in plans),
                f"{first.chain_floor_us:,.0f}",
                gap,
            )
        )
    columns = ("device", "TB/s", *(f"batch {batch}, us" for batch in BATCHES), "chain of 3, batch 1, us", "gaps, us")
    return Grid(columns, tuple(rows), texts=("device",)).markdown()


def sizes() -> str:
    """Bytes, lm_head's share and distinct experts by batch and context."""
    plans = [plan("h200", batch=batch, context=context) for batch in BATCHES for context in CONTEXTS]
    rows = tuple(
        (
            f"{one.batch}",
            f"{one.context:,}",
            f"{one.bytes_per_draft / 1e9:.3f}",
            f"{one.lm_head_share:.0%}",
            f"{one.distinct_experts:.1f}",
        )
        for one in plans
    )
    return Grid(("batch", "context", "GB a draft", "lm_head", "distinct experts"), rows).markdown()


def measured() -> str:
    """What `circuit bench` measured, beside the floor that its own read rate sets."""
    if not MEASURED.is_file():
        return "Nothing measured yet.\n"
    records: list[dict[str, Any]] = [json.loads(line) for line in MEASURED.read_text().splitlines() if line.strip()]
    rows = tuple(
        (
            f"{one['size']} {one['dtype']}, batch {one['batch']}, {one['drafts']} drafts",
            f"{one['bytes'] / 1e6:,.1f}",
            f"{one['read_gbps']:.1f}",
            f"{one['floor_us']:,.0f}",
            f"{one['circuit_us']:,.0f}",
            f"{one['floor_us'] / one['circuit_us']:.0%}",
            f"{one['eager_us']:,.0f}",
            f"{one['torch_compile_us']:,.0f}" if "torch_compile_us" in one else "",
        )
        for one in records
    )
    columns = ("case", "MB", "GB/s", "floor us", "circuit us", "of the floor", "eager us", "torch.compile us")
    return Grid(columns, rows, texts=("case",)).markdown()


# what was asked of the CPU path: times over ours, eager, torch.compile and its best preset
ASKED = {
    "small-bf16-1": "9 / 4.5 / 3",
    "small-f32-1": "4.5 / 2 / 1.7",
    "small-bf16-4": "7 / 2.7 / 2",
    "large-bf16-1": "1.7 / 1.5 / 1.4, 80%",
    "large-bf16-4": "1.8 / 1.4 / 1.4",
}


def ratios() -> str:
    """The measured times of the others over ours, beside what was asked."""
    records = {one["case"]: one for one in map(json.loads, MEASURED.read_text().splitlines())}
    rows = []
    for case, asked in ASKED.items():
        one = records[case]
        ours = one["circuit_us"]
        others = " / ".join(
            f"{one[f'{name}_us'] / ours:.2f}" for name in ("eager", "torch_compile", "torch_compile_best")
        )
        rows.append((case, others, f"{one['floor_us'] / ours:.0%}", asked))
    columns = ("case", "eager / torch.compile / its best preset", "of the floor", "asked")
    return Grid(columns, tuple(rows), texts=("case",)).markdown()


SECTIONS: dict[str, Callable[[], str]] = {
    "floors": floors,
    "sizes": sizes,
    "launches": lambda: launches(plan("h200"), width=WIDE).markdown(),
    "cuts": lambda: cuts(plan("h200")).markdown(),
    "measured": measured,
    "ratios": ratios,
}


def generated(page: str) -> str:
    """Return the page with every generated section written anew; ValueError for one that it lacks."""
    for name, write in SECTIONS.items():
        start, end = f"<!-- {name}: generated -->\n", "<!-- end -->\n"
        before, found, rest = page.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed or start in after:
            raise ValueError(f"{PAGE.name}: expected one section {name!r} between its marks")
        page = f"{before}{start}{write()}{end}{after}"
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where the page is out of date")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    fresh = generated(page)
    if arguments.check:
        return int(fresh != page)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
