"""Overlays from files that other commands write: what a file is shows in what it holds."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from circuit import CircuitError
from circuit.draw import Drawing, Overlay

Record = Mapping[str, Any]
Reader = Callable[[Record, Drawing, str], tuple[Overlay, ...]]
MAX_BYTES = 64 << 20


def read_overlay(path: Path) -> tuple[Reader, Record]:
    """Read a file and find what it holds; CircuitError for what is no JSON object or nothing that is known."""
    if path.stat().st_size > MAX_BYTES:
        raise CircuitError(f"--overlay {path}: expected at most {MAX_BYTES:,} bytes, got {path.stat().st_size:,}")
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CircuitError(f"--overlay {path}: expected JSON, got {error}; write it with --json") from None
    if not isinstance(record, dict):
        raise CircuitError(f"--overlay {path}: expected one JSON object, got {type(record).__name__}")
    for keys, reader in READERS.items():
        if all(key in record for key in keys):
            return reader, record
    known = "circuit parity, bench, plan, inspect, run --json, circuit trace, or an artifact's plan.json"
    held = ", ".join(list(record)[:6]) or "nothing"
    raise CircuitError(f"--overlay {path}: expected what {known} writes, got an object with {held}")


def lay_over(drawing: Drawing, path: Path, reader: Reader, record: Record) -> tuple[Overlay, ...]:
    """Return the overlays of a file over a drawing, none where nothing of it is drawn there.

    Raises CircuitError for a file whose fields are not what they should be.
    """
    try:
        return tuple(one for one in reader(record, drawing, path.name) if one.nodes or one.edges or one.groups)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CircuitError(
            f"--overlay {path}: a field is missing or of another type ({type(error).__name__}: {error}); write it anew"
        ) from None


def _parity(record: Record, drawing: Drawing, name: str) -> tuple[Overlay, ...]:
    """Relative error of each edge, the widest over drafts; a missing number is infinite."""
    drawn = {port.value for node in drawing.nodes for port in node.makes}
    errors: dict[str, float] = {}
    for edge in record["edges"]:
        value = math.inf if edge["relative_l2"] is None else float(edge["relative_l2"])
        # in a chain the edge is that of the draft in which it was widest
        for spelled in (edge["name"], f"{edge['name']}.{edge['step'] + 1}"):
            if spelled in drawn:
                errors[str(spelled)] = value
    bound, oracle = record["bound"], record.get("a", "eager")
    num_missed = sum(not edge["is_within_bound"] for edge in record["edges"])
    return (
        Overlay(
            name="parity error",
            unit="",
            about=f"relative L2 per edge, {oracle} against {record['path']}, measured; bound {bound['relative_l2']:g}",
            scale="log",
            edges=tuple(errors.items()),
            details=(("file", name), ("bound", str(bound["reason"])), ("out of bound", str(num_missed))),
        ),
    )


def _plan(record: Record, drawing: Drawing, name: str) -> tuple[Overlay, ...]:
    """Bytes and share of the floor of each launch of `circuit plan`."""
    by_value = {node.name: node.id for node in drawing.nodes if node.kind == "call"}
    num_bytes: dict[str, float] = {}
    shares: dict[str, float] = {}
    launches = {"": record["launches"]}
    launches |= {f".{number}": record["following_launches"] for number in range(1, record["num_drafts"] + 1)}
    launches[".1"] = record["launches"]
    for suffix, held in launches.items():
        for launch in held:
            values = [f"{value}{suffix}" for value in launch["values"]]
            found = [by_value[value] for value in values if value in by_value]
            if not found:
                continue
            groups = [group for id in found if (group := _launch_of(drawing, id)) is not None]
            if groups:
                # a plan's launch and a drawn one may part a view of no bytes differently
                target = max(groups, key=groups.count)
            elif len(values) == 1:
                target = found[0]
            else:
                raise CircuitError(
                    f"--overlay {name}: its launches hold several nodes; draw them too, with --plan {record['backend']}"
                )
            num_bytes[target] = num_bytes.get(target, 0) + float(launch["bytes_read"] + launch["bytes_written"])
            shares[target] = shares.get(target, 0) + float(launch["share"])
    about = f"planned on {record['device']}, batch {record['batch']}, context {record['context']}, {record['backend']}"
    details = (("file", name), ("floor of a draft", f"{record['floor_us_per_draft']:.4g} us"))
    return (
        _per_node("planned bytes", "bytes", about, num_bytes, details),
        _per_node("share of the floor", "share", about, shares, details),
    )


def _launch_of(drawing: Drawing, id: str) -> str | None:
    """Return the id of the launch that a node is drawn in, None where launches are not drawn."""
    group = next(node.group for node in drawing.nodes if node.id == id)
    return next((one.id for one in drawing.group_path(group) if one.kind == "launch"), None)


def _programs(record: Record, drawing: Drawing, name: str) -> tuple[Overlay, ...]:
    """Bytes of each call of the program, of a plan.json or `circuit inspect`, that holds most of what is drawn."""
    by_value = {node.name: node.id for node in drawing.nodes if node.kind == "call"}
    plans = [program.get("plan", program) for program in record["programs"]]
    if not plans:
        return ()
    plan = max(plans, key=lambda one: sum(call["results"][0] in by_value for call in one["calls"]))
    costs = {
        by_value[call["results"][0]]: float(call["bytes_read"] + call["bytes_written"])
        for call in plan["calls"]
        if call["results"][0] in by_value
    }
    total = sum(costs.values()) or 1.0
    about = f"planned, program {plan['name']}"
    details = (("file", name), ("calls", f"{len(costs)} of {len(plan['calls'])} drawn"))
    return (
        _per_node("planned bytes", "bytes", about, costs, details),
        _per_node("share of the bytes", "share", about, {id: cost / total for id, cost in costs.items()}, details),
    )


def _bench(record: Record, drawing: Drawing, name: str) -> tuple[Overlay, ...]:
    """The measured time of a chain, split over the calls by the bytes that the drawn plan says they move."""
    costs = {
        node.id: float((node.note.bytes_read or 0) + (node.note.bytes_written or 0))
        for node in drawing.nodes
        if node.note is not None
    }
    if not any(costs.values()):
        raise CircuitError(
            f"--overlay {name}: a benchmark times whole chains; add --plan inductor to split it by bytes"
        )
    num_drawn = sum(group.kind == "draft" for group in drawing.groups) or 1
    total = float(record["circuit_us"]) * num_drawn / int(record["drafts"])
    whole = sum(costs.values())
    about = (
        f"circuit {record['circuit_us']:.4g} us a chain of {record['drafts']}, measured; the split by bytes is planned"
    )
    details = (("file", name), ("eager", f"{record['eager_us']:.4g} us"), ("floor", f"{record['floor_us']:.4g} us"))
    return (
        _per_node(
            "time, split by bytes", "us", about, {id: total * cost / whole for id, cost in costs.items()}, details
        ),
    )


def _trace(record: Record, drawing: Drawing, name: str) -> tuple[Overlay, ...]:
    """Mean time of each call over the runs of a timeline: measured call by call, else the plan's split of the runs."""
    by_value = {node.name: node.id for node in drawing.nodes if node.kind == "call"}
    times: dict[str, list[float]] = {}
    is_measured = any(event.get("cat") == "measured" for event in record["traceEvents"])
    for event in record["traceEvents"]:
        if event.get("cat") != ("measured" if is_measured else "planned"):
            continue
        value, draft = event["args"]["value"], event["args"]["draft"]
        for spelled in (value, f"{value}.{draft}"):
            if spelled in by_value:
                times.setdefault(by_value[spelled], []).append(float(event["args"]["us"]))
    means = {id: sum(held) / len(held) for id, held in times.items()}
    title, about = "time", "interpreter, call by call, measured: mean over runs"
    if not is_measured:
        title, about = "time, split by bytes", "chains of one launch, measured: mean over runs; the split is planned"
    return (_per_node(title, "us", about, means, (("file", name),)),)


def _acceptance(record: Record, drawing: Drawing, name: str) -> tuple[Overlay, ...]:
    """Share of rounds in which each draft of the chain was accepted."""
    shares = [float(share) for share in record["accepted_per_position"]]
    drafts = [group for group in drawing.groups if group.kind == "draft"]
    held = tuple((group.id, share) for group, share in zip(drafts, shares, strict=False))
    about = f"share of {record['num_rounds']} rounds in which the target took the draft, measured"
    return (Overlay("acceptance", "accepted", about, groups=held, details=(("file", name),)),)


def _per_node(
    name: str, unit: str, about: str, held: Mapping[str, float], details: tuple[tuple[str, str], ...]
) -> Overlay:
    return Overlay(
        name=name,
        unit=unit,
        about=about,
        is_sum=True,
        nodes=tuple((id, value) for id, value in held.items() if id.startswith("n")),
        groups=tuple((id, value) for id, value in held.items() if id.startswith("g")),
        details=details,
    )


# the keys that tell what a file holds, first match
READERS: dict[tuple[str, ...], Reader] = {
    ("edges", "bound"): _parity,
    ("launches", "floor_us_per_draft"): _plan,
    ("traceEvents",): _trace,
    ("circuit_us", "floor_us"): _bench,
    ("accepted_per_position",): _acceptance,
    ("programs", "backend"): _programs,
}
