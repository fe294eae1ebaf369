"""`circuit trace`: timelines that a viewer takes whole, and that lie over a drawing."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.drafts.command_line import circuit
from tests.drafts.drawn_pages import overlays, written
from tests.drafts.tiny_checkpoint import write_tiny_checkpoint

PROMPT = "ab cd ef gh ij kl"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def dropped(events: list[dict[str, Any]], nanoseconds: Callable[[float], int]) -> int:
    """Count what a viewer drops, in order of start: an event that begins inside another and ends after it."""
    num_dropped = 0
    for thread in {(event["pid"], event["tid"]) for event in events}:
        held = [event for event in events if (event["pid"], event["tid"]) == thread]
        times = [(nanoseconds(event["ts"] * 1000.0), nanoseconds(event["dur"] * 1000.0)) for event in held]
        ends: list[int] = []
        for start, duration in sorted(times, key=lambda time: time[0]):
            while ends and ends[-1] <= start:
                ends.pop()
            if ends and start + duration > ends[-1]:
                num_dropped += 1
            else:
                ends.append(start + duration)
    return num_dropped


@pytest.mark.parametrize("nanoseconds", [int, round, math.ceil])
def test_trace_keeps_to_the_event_format_and_its_events_nest(
    checkpoint: Path, tmp_path: Path, nanoseconds: Callable[[float], int]
) -> None:
    file = tmp_path / "trace.json"
    circuit("trace", checkpoint, "-o", file, "--prompt", PROMPT, "--backend", "reference", "--runs", 4)
    record = json.loads(file.read_text())
    events = record["traceEvents"]
    assert record["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(event["name"], str) and event["name"] for event in events)
    assert all(type(event[key]) is int for event in events for key in ("pid", "tid"))
    told = {(event["pid"], event["name"]): event["args"] for event in events if event["ph"] == "M"}
    assert {name for _, name in told} == {"process_name", "process_sort_index", "thread_name"}
    assert told[1, "process_name"]["name"].startswith("measured")
    assert told[2, "process_name"]["name"].startswith("planned")
    # a thread's number stands for one thread in all processes
    assert len({(event["pid"], event["tid"]) for event in events}) == len({event["tid"] for event in events}) == 2
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 and event["args"]["us"] >= 0 for event in spans)
    assert all(abs(event["dur"] - event["args"]["us"]) <= 0.126 for event in spans)
    assert dropped(spans, nanoseconds) == 0


def test_trace_of_one_launch_lies_over_a_drawing_as_the_plan_splits_it(checkpoint: Path, tmp_path: Path) -> None:
    call = {"value": "q_a", "draft": 1, "us": 3.5}
    path = written(tmp_path, {"traceEvents": [{"ph": "X", "cat": "planned", "dur": 3.5, "args": call}]})
    outcome = circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "step", "--overlay", path)
    assert outcome.code == 0, outcome.err
    held = overlays(tmp_path / "x.html")["time, split by bytes"]
    assert [value for _, value in held["nodes"]] == [3.5]
    assert "planned" in held["about"]


def test_trace_times_every_call_beside_the_plan_and_lies_over_a_drawing(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    arguments = ("trace", checkpoint, "-o", file, "--prompt", PROMPT, "--backend", "reference", "--drafts", 2)
    record = circuit(*arguments, "--runs", 2, "--json").record
    events = json.loads(file.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    spans = [event for event in events if event["ph"] == "X"]
    measured = [event for event in spans if event["cat"] == "measured"]
    planned = [event for event in spans if event["cat"] == "planned"]
    assert len(measured) == len(planned) == record["calls_measured"]
    assert [event["args"]["value"] for event in measured] == [event["args"]["value"] for event in planned]
    assert {event["name"] for event in spans if event["cat"] == "region"} >= {
        "embed",
        "attention/indexer",
        "moe",
        "head",
    }
    for process in (1, 2):
        runs = [event for event in spans if event["pid"] == process and event["cat"] == "run"]
        calls = [event for event in spans if event["pid"] == process and event["cat"] in ("measured", "planned")]
        assert len(runs) == 2
        assert all(event["dur"] >= 0 for event in calls)
        assert sum(event["dur"] for event in calls) <= sum(event["dur"] for event in runs) * 1.001
    assert circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "step", "--overlay", file).code == 0
    assert len(overlays(tmp_path / "x.html")["time"]["nodes"]) == len({e["args"]["value"] for e in measured})
