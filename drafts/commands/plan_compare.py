"""`circuit plan --compare`: two devices, levers, sizes or versions side by side."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from compiler import THIS_MACHINE, device_names
from drafts.commands.grid import Grid
from drafts.commands.plan_request import PlanRequest, floats
from drafts.commands.plan_subject import DEMO, shipped_configs
from drafts.commands.plan_tables import UNKNOWN, size
from drafts.levers import ModelLevers
from drafts.parallel import AXES
from drafts.plan_drafter import DraftPlan

SETTINGS = (
    "device",
    "batch",
    "context",
    "drafts",
    "backend",
    "dtype",
    "bandwidth",
    "launch_gap",
    "reserve",
    "tp",
    "ep",
)
BACKENDS = ("triton", "inductor", "reference")
DTYPES = ("bf16", "f32")
MAX_RANKS = 4096
MIN_SHARE = 0.001  # launches whose floors differ by less of the draft's are not listed


def side_request(request: PlanRequest, side: str) -> PlanRequest:
    """Return the request with one side's settings: `h200`, `batch=4,index_share=off`, or the path of a config.

    ValueError for a setting that is none, for none at all and for one that is set twice.
    """
    changed = request
    seen: set[str] = set()
    for part in (part.strip() for part in side.split(",")):
        if not part:
            raise ValueError(f"--compare: expected settings such as h200 or batch=4,index_share=off, got {side!r}")
        name, separator, value = (piece.strip() for piece in part.partition("="))
        if not separator:
            name, value = _bare(part)
        if name in seen:
            raise ValueError(f"--compare: expected one {name} a side, got another: {part!r}")
        seen.add(name)
        if name in ModelLevers.model_fields:
            changed = replace(changed, levers=_with_lever(changed.levers, name, value))
        elif name in (*SETTINGS, "config"):
            changed = _setting(changed, name, value)
        else:
            known = ", ".join((*SETTINGS, *ModelLevers.model_fields))
            raise ValueError(f"--compare: no setting {name!r}; there are {known}, or a device or a config by itself")
    return changed


def comparison(name_a: str, a: DraftPlan, name_b: str, b: DraftPlan) -> list[Grid | str]:
    """Return the two plans' numbers side by side, and the launches whose floors differ."""
    rows = [
        _row("MB a draft", a, b, lambda plan: plan.bytes_per_draft / 1e6, ",.1f"),
        _row("floor us a draft", a, b, lambda plan: plan.floor_us, ",.2f"),
        _row("launches a draft", a, b, lambda plan: plan.launches_per_draft, ",d"),
        _row("gaps us a draft", a, b, lambda plan: plan.gap_us, ",.1f"),
        _row("floor us a chain", a, b, lambda plan: plan.chain_floor_us, ",.2f"),
        _row("chain us with gaps", a, b, _chain_with_gaps, ",.2f"),
        _row("lm_head's share", a, b, lambda plan: plan.lm_head_share, ".1%"),
        _row("exchanges a draft", a, b, lambda plan: len(plan.exchanges), ",d"),
        _row("distinct experts", a, b, lambda plan: plan.distinct_experts, ",.1f"),
        _row("largest batch", a, b, lambda plan: plan.largest_batch, ",d"),
    ]
    needs = [size(plan.memory.total(plan.batch, plan.context)) for plan in (a, b)]
    fits = [UNKNOWN if plan.fits is None else "yes" if plan.fits else "no" for plan in (a, b)]
    rows += [("memory", needs[0], needs[1], ""), ("fits", fits[0], fits[1], "")]
    parts: list[Grid | str] = [
        f"A  {name_a}: {a.device.title}, {a.backend}, batch {a.batch}, context {a.context:,}",
        f"B  {name_b}: {b.device.title}, {b.backend}, batch {b.batch}, context {b.context:,}",
        Grid(("", "A", "B", "B / A"), tuple(rows), texts=("",), title="a draft and a chain"),
    ]
    if differing := _launch_rows(a, b):
        columns = ("launch", "A us", "B us", "B - A us")
        parts.append(Grid(columns, differing, texts=("launch",), title="launches of draft 1 whose floors differ"))
    if differing := _launch_rows(a, b, is_first=False):
        columns = ("launch", "A us", "B us", "B - A us")
        parts.append(Grid(columns, differing, texts=("launch",), title="launches of drafts 2..K whose floors differ"))
    return parts


def _chain_with_gaps(plan: DraftPlan) -> float | None:
    return None if plan.gap_us is None else plan.chain_us(plan.num_drafts)


def _bare(text: str) -> tuple[str, str]:
    """Return which setting a name by itself is meant for."""
    if text[0].isdecimal() and not Path(text).exists():
        raise ValueError(f"--compare: expected one batch and one context a side, got a list that ends in {text!r}")
    named = text.lower()
    if any(name.startswith(named) for name in (*device_names(), THIS_MACHINE)):
        return "device", text
    if text in BACKENDS:
        return "backend", text
    if text in DTYPES:
        return "dtype", text
    if text in (*shipped_configs(), DEMO) or Path(text).exists():
        return "config", text
    # whatever it was meant to be, the list of devices is the likeliest help
    return "device", text


def _with_lever(levers: str, name: str, value: str) -> str:
    """Return --levers with one of them set, in place of what was asked of it."""
    others = [part for part in levers.split(",") if part.strip() and part.partition("=")[0].strip() != name]
    return ",".join([*others, f"{name}={value}"])


def _setting(request: PlanRequest, name: str, value: str) -> PlanRequest:
    if name == "backend":
        return replace(request, backend=_one_of(name, value, BACKENDS))
    if name == "dtype":
        return replace(request, dtype_name=_one_of(name, value, DTYPES))
    if name == "drafts":
        if not (value.isascii() and value.isdecimal() and 1 <= int(value[:3]) <= 16):
            raise ValueError(f"--compare: drafts: expected 1 to 16, got {value!r}")
        return replace(request, num_drafts=int(value))
    if name in AXES:
        if not (value.isascii() and value.isdecimal() and 1 <= int(value[:5]) <= MAX_RANKS):
            raise ValueError(f"--compare: {name}: expected 1 to {MAX_RANKS:,} ranks, got {value!r}")
        return replace(request, **{name: int(value)})  # type: ignore[arg-type]
    if name == "launch_gap":
        return replace(request, launch_gap_us=_number(name, value))
    if name == "reserve":
        return replace(request, reserve_gb=_number(name, value))
    field = {"batch": "batches", "context": "contexts", "config": "subject"}.get(name, name)
    return replace(request, **{field: value})  # type: ignore[arg-type]


def _number(name: str, value: str) -> float:
    (*others, found) = floats(value, f"--compare: {name}", high=1e6, example="1.5")
    assert not others  # a comma ends a setting
    return found


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"--compare: {name}: expected {' or '.join(known)}, got {value!r}")
    return value


def _row(
    name: str, a: DraftPlan, b: DraftPlan, read: Callable[[DraftPlan], float | None], form: str
) -> tuple[str, str, str, str]:
    values = (read(a), read(b))
    shown = tuple(UNKNOWN if value is None else format(value, form) for value in values)
    ratio = _ratio(values[1] / values[0]) if values[0] and values[1] is not None else ""
    return (name, *shown, ratio)  # type: ignore[return-value]


def _ratio(ratio: float) -> str:
    return f"{ratio:,.2f}" if ratio >= 0.1 or not ratio else f"{ratio:.2g}"


def _launch_rows(a: DraftPlan, b: DraftPlan, *, is_first: bool = True) -> tuple[tuple[str, ...], ...]:
    floors = []
    for plan in (a, b):
        held = plan.first if is_first else plan.following
        floors.append({launch.name: plan.launch_floor_us(launch) for launch in held})
    rows = []
    for name in dict.fromkeys([*floors[0], *floors[1]]):
        left, right = floors[0].get(name), floors[1].get(name)
        change = (right or 0.0) - (left or 0.0)
        if abs(change) >= MIN_SHARE * a.floor_us:
            shown = tuple("none" if floor is None else f"{floor:,.2f}" for floor in (left, right))
            rows.append((name, *shown, f"{change:+,.2f}"))
    return tuple(rows)
