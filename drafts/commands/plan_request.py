"""What `circuit plan` is asked for, read from its options: sizes, rates, levers."""

import difflib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from drafts.levers import ModelLevers

MAX_BATCH = 4096
MIN_RATE, MAX_RATE = 1e6, 1e15  # bytes a second
_COUNT = re.compile(r"([0-9]{1,12})([km]?)")
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([tgm])(?:b(?:/s)?)?")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The options as given; `measured_device` is the file of this machine's measurement, tp and ep count ranks."""

    subject: str | None
    device: str
    batches: str
    contexts: str | None
    num_drafts: int
    backend: str | None
    dtype_name: str | None
    levers: str
    bandwidth: str | None
    launch_gap_us: float | None
    reserve_gb: float
    measured_device: Path
    tp: int = 1
    ep: int = 1


@dataclass(frozen=True, slots=True)
class SpeedupRequest:
    """What --speedup works from: numbers as given, or the file of a demo's record."""

    acceptance: str | None
    verify_us: str | None
    draft_us: str | None
    measured: Path | None


def counts(text: str, option: str, *, high: int) -> tuple[int, ...]:
    """Read `4096`, `4k` (4,096), `1m` (1,048,576) and lists of them, sorted; ValueError says what was expected."""
    found = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip().lower())
        number = int(match[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[match[2]] if match else 0
        if not 1 <= number <= high:
            example = "4k,131072" if high >= 1 << 17 else f"1,{min(4, high)}"
            raise ValueError(f"{option}: expected numbers from 1 to {high:,} such as {example}, got {part.strip()!r}")
        found.append(number)
    return tuple(sorted(set(found)))


def rate(text: str) -> float:
    """Read `4.3TB/s` or `864G` as bytes a second."""
    match = _RATE.fullmatch(text.strip().lower())
    found = float(match[1]) * {"t": 1e12, "g": 1e9, "m": 1e6}[match[2]] if match else 0.0
    if not MIN_RATE <= found <= MAX_RATE:
        raise ValueError(
            f"--bandwidth: expected a rate such as 4.3TB/s or 864GB/s, from 1 MB/s to 1,000 TB/s, got {text!r}"
        )
    return found


def floats(text: str, option: str, *, high: float, example: str) -> tuple[float, ...]:
    """Read `0.7,0.6`: numbers from 0 to `high`; ValueError shows `example`."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= number <= high and math.isfinite(number) for number in found):
        raise ValueError(f"{option}: expected numbers from 0 to {high:,.0f} such as {example}, got {text!r}")
    return found


def parse_levers(text: str) -> ModelLevers:
    """Read `index_share=off,mtp_kv_exact=false`; ValueError lists the levers, the close ones first."""
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = (piece.strip() for piece in part.partition("="))
        if name not in ModelLevers.model_fields:
            close = difflib.get_close_matches(name, ModelLevers.model_fields, n=1, cutoff=0.5)
            meant = f"did you mean {close[0]}? " if close else ""
            raise ValueError(f"--levers: no lever {name!r}; {meant}there are {', '.join(ModelLevers.model_fields)}")
        if not separator or not value:
            raise ValueError(f"--levers: expected {name}=VALUE, got {part!r}")
        if name in given:
            raise ValueError(f"--levers: expected {name} once, got it twice; leave one out")
        given[name] = {"true": True, "false": False}.get(value, int(value) if value.isdecimal() else value)
    try:
        return ModelLevers.model_validate(given)
    except ValidationError as error:
        faults = error.errors()
        # a lever of several kinds has a fault for each
        if "error" in faults[0].get("ctx", {}):
            # a check of ours, which says where itself
            raise ValueError(f"--levers: {faults[0]['ctx']['error']}") from None
        same = [fault for fault in faults if fault["loc"][0] == faults[0]["loc"][0]]
        told = (str(fault.get("ctx", {}).get("expected", fault["msg"])) for fault in same)
        expected = " or ".join(text.removeprefix("Input should be ") for text in told)
        raise ValueError(f"--levers: {same[0]['loc'][0]}: expected {expected}, got {same[0]['input']!r}") from None
