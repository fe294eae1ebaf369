"""A plan as tables and as JSON."""

from collections.abc import Sequence
from typing import Any

from compiler import THIS_MACHINE, Device, LaunchCost, Roofline
from drafts.commands.grid import Grid
from drafts.commands.session import DTYPE_NAMES
from drafts.plan_drafter import DraftPlan

NARROW = 100  # columns: below it, how a launch runs takes one column
MAX_CUTS = 6
UNKNOWN = "?"
FIGURE_NAMES = {
    "memory_bandwidth_gbps": "datasheet bandwidth",
    "copy_rate_gbps": "measured copy rate",
    "capacity_gb": "capacity",
    "l2_mb": "L2 size",
    "num_multiprocessors": "multiprocessors",
    "bf16_tflops": "bf16 rate",
    "fp8_tflops": "fp8 rate",
    "int8_tops": "int8 rate",
    "launch_gap_us": "launch gap",
}


def headline(plan: DraftPlan, name: str) -> list[str]:
    """Return the lines that say what was planned, on what, and what is not known of it."""
    device, roofline = plan.device, plan.roofline
    how = {
        "triton": "triton: fused launches, speeds not measured on a GPU yet",
        "inductor": "inductor: one native program a chain, listed node by node",
        "reference": "reference: every node by itself",
    }[plan.backend]
    dtype = DTYPE_NAMES.get(plan.config.dtype, str(plan.config.dtype))
    parts = [f"{_rate(roofline.bytes_per_s)} ({roofline.bandwidth_kind})"]
    parts += [f"{roofline.flops_per_s / 1e12:,.0f} TFLOPS bf16"] if roofline.flops_per_s else []
    parts += [f"{roofline.launch_gap_us:g} us a launch gap"] if roofline.launch_gap_us is not None else []
    lines = [
        f"{name}  {dtype}, {plan.num_drafts} {'draft' if plan.num_drafts == 1 else 'drafts'} a chain",
        f"{device.title}  {', '.join(parts)}",
        how,
    ]
    missing = _missing(device, roofline)
    why = "not measured" if device.name == THIS_MACHINE else "no public figure"
    return [*lines, f"{why}: {', '.join(missing)}"] if missing else lines


def _missing(device: Device, roofline: Roofline) -> list[str]:
    """What the files lack, less what was given by hand and what no measurement gives."""
    given = {"launch_gap_us"} if roofline.launch_gap_us is not None else set()
    given |= {"memory_bandwidth_gbps"} if device.name == THIS_MACHINE else set()
    return [FIGURE_NAMES[key] for key in device.unknown if key not in given]


def _rate(bytes_per_s: float) -> str:
    """Return `4.8 TB/s`, or `4.13 GB/s` for a memory that is far slower."""
    return f"{bytes_per_s / 1e12:.3g} TB/s" if bytes_per_s >= 1e11 else f"{bytes_per_s / 1e9:.3g} GB/s"


def _microseconds(time_us: float) -> str:
    return f"{time_us:,.0f}" if time_us >= 10 else f"{time_us:.2f}"


def summary(plans: Sequence[DraftPlan]) -> Grid:
    """Return one row a batch and context for the first draft; gaps are their share of floor and gaps together."""
    columns = ("batch", "context", "GB", "floor us", "launches", "gaps", "lm_head", "experts")
    return Grid(
        columns,
        tuple(
            (
                f"{plan.batch}",
                f"{plan.context:,}",
                f"{plan.bytes_per_draft / 1e9:.3g}",
                _microseconds(plan.floor_us),
                f"{plan.launches_per_draft}",
                UNKNOWN if plan.gap_share is None else f"{plan.gap_share:.1%}",
                f"{plan.lm_head_share:.0%}",
                f"{plan.distinct_experts:.1f}",
            )
            for plan in plans
        ),
        title="a draft",
    )


def chains(plans: Sequence[DraftPlan]) -> Grid:
    """Return one row a batch and context for the chain of all K drafts; the last column adds its gaps, where known."""
    columns = ("batch", "context", "GB", "floor us", "launches", "gaps", "with gaps us")
    count = plans[0].num_drafts
    return Grid(
        columns,
        tuple(
            (
                f"{plan.batch}",
                f"{plan.context:,}",
                f"{plan.bytes_per_chain / 1e9:.3g}",
                _microseconds(plan.chain_floor_us),
                f"{plan.launches_per_chain}",
                UNKNOWN if plan.chain_gap_share is None else f"{plan.chain_gap_share:.1%}",
                UNKNOWN if plan.chain_gap_share is None else _microseconds(plan.chain_us(count)),
            )
            for plan in plans
        ),
        title=f"a chain of {count} {'draft' if count == 1 else 'drafts'}",
    )


def memory(plans: Sequence[DraftPlan]) -> Grid:
    """Return what each batch and context needs of the device's memory."""
    return Grid(
        ("batch", "context", "cache", "arena", "in all", "of", "fits", "max batch", "max context"),
        tuple(
            (
                f"{plan.batch}",
                f"{plan.context:,}",
                size(plan.memory.cache(plan.batch, plan.context)),
                size(plan.memory.arena(plan.batch, plan.context)),
                size(plan.memory.total(plan.batch, plan.context)),
                UNKNOWN if plan.capacity is None else size(plan.capacity),
                UNKNOWN if plan.fits is None else "yes" if plan.fits else "no",
                UNKNOWN if plan.largest_batch is None else f"{plan.largest_batch:,}",
                UNKNOWN if plan.largest_context is None else f"{plan.largest_context:,}",
            )
            for plan in plans
        ),
        title="memory",
    )


def memory_line(plan: DraftPlan) -> str:
    """Return what is held whatever the batch."""
    need = plan.memory
    reserved = f", {size(need.reserved)} kept for the target" if need.reserved else ""
    return (
        f"weights: {size(need.own_weights)} the drafter's, {size(need.shared_weights)} shared with the target"
        f"{reserved}; cache: {need.bytes_per_token:,.0f} bytes a token, {need.bytes_per_sequence:,} a sequence"
        + ("" if need.reserved else ". The target's own layers and caches are not counted: --reserve takes them off")
    )


def launches(plan: DraftPlan, *, width: int) -> Grid:
    """Return the first draft's launches, each with its floor and its share of it."""
    tags = [_short(launch.numerics) for launch in plan.first]
    is_narrow, is_uniform = width < NARROW, len(set(tags)) == 1
    columns: tuple[str, ...] = ("launch", "MB read", "KB out", "MFLOP", "floor us", "share")
    columns += ("kernel",) if is_narrow and is_uniform else ("runs as",) if is_narrow else ("numerics", "kernel")
    rows = []
    for launch, numerics in zip(plan.first, tags, strict=True):
        floor = plan.launch_floor_us(launch)
        how: tuple[str, ...] = (numerics, launch.kernel)
        if is_narrow:
            kernel = launch.kernel
            how = (kernel,) if is_uniform or numerics == kernel else (f"{numerics}, {kernel}",)
        rows.append(
            (
                launch.name,
                f"{launch.cost.bytes_read / 1e6:,.1f}",
                f"{launch.cost.bytes_written / 1e3:,.1f}",
                f"{launch.cost.flops / 1e6:,.0f}",
                f"{floor:,.2f}",
                f"{floor / plan.floor_us:.1%}",
                *how,
            )
        )
    stated = f"; all {tags[0]}" if is_narrow and is_uniform else ""
    title = f"draft 1's launches, batch {plan.batch}, context {plan.context:,}{stated}"
    return Grid(columns, tuple(rows), texts=("launch", "runs as", "numerics", "kernel"), title=title)


def _short(numerics: str) -> str:
    """A tag without its reason."""
    return f"{numerics.partition(',')[0]})" if "," in numerics else numerics


def cuts(plan: DraftPlan) -> Grid:
    """Return what to cut next, by what it saves of floor and gaps together."""
    whole = plan.floor_us + (plan.gap_us or 0.0)
    rows = tuple(
        (f"{rank}", f"{cut.saves_us:,.1f}", f"{cut.saves_us / whole:.1%}", cut.where, cut.what)
        for rank, cut in enumerate(plan.cuts[:MAX_CUTS], start=1)
        if cut.saves_us / whole >= 0.001
    )
    return Grid(
        ("", "saves us", "share", "where", "what"), rows, texts=("where", "what"), title="what to cut next, at best"
    )


def plan_record(plan: DraftPlan, name: str) -> dict[str, Any]:
    """Return a plan as one JSON object; times in microseconds, sizes in bytes."""
    need = plan.memory
    return {
        "subject": name,
        "device": plan.device.name,
        "backend": plan.backend,
        "dtype": DTYPE_NAMES.get(plan.config.dtype, str(plan.config.dtype)),
        "batch": plan.batch,
        "context": plan.context,
        "num_drafts": plan.num_drafts,
        "bandwidth_gbps": plan.roofline.bytes_per_s / 1e9,
        "bandwidth_kind": plan.roofline.bandwidth_kind,
        "bytes_per_draft": plan.bytes_per_draft,
        "floor_us_per_draft": plan.floor_us,
        "launches_per_draft": plan.launches_per_draft,
        "launch_gap_us": plan.roofline.launch_gap_us,
        "launch_gap_share": plan.gap_share,
        "lm_head_share": plan.lm_head_share,
        "distinct_experts": plan.distinct_experts,
        "distinct_experts_model": "uniform routing: E (1 - (1 - k/E)^batch)",
        "bytes_per_chain": plan.bytes_per_chain,
        "floor_us_per_chain": plan.chain_floor_us,
        "launches_per_chain": plan.launches_per_chain,
        "launch_gap_share_per_chain": plan.chain_gap_share,
        "fits": plan.fits,
        "memory": {
            "own_weights": need.own_weights,
            "shared_weights": need.shared_weights,
            "reserved": need.reserved,
            "cache_per_token": need.bytes_per_token,
            "cache_per_sequence": need.bytes_per_sequence,
            "cache": need.cache(plan.batch, plan.context),
            "arena": need.arena(plan.batch, plan.context),
            "total": need.total(plan.batch, plan.context),
            "capacity": plan.capacity,
            "largest_batch": plan.largest_batch,
            "largest_context": plan.largest_context,
        },
        "cuts": [{"where": cut.where, "what": cut.what, "saves_us": cut.saves_us} for cut in plan.cuts],
        "launches": [_launch_record(plan, launch) for launch in plan.first],
        "following_launches": [_launch_record(plan, launch) for launch in plan.following],
    }


def _launch_record(plan: DraftPlan, launch: LaunchCost) -> dict[str, Any]:
    floor = plan.launch_floor_us(launch)
    return {
        "region": launch.name,
        "node_types": launch.node_types,
        "values": launch.values,
        "weights": launch.weights,
        "bytes_read": launch.cost.bytes_read,
        "bytes_written": launch.cost.bytes_written,
        "weight_bytes": launch.weight_bytes,
        "state_bytes": launch.state_bytes,
        "flops": launch.cost.flops,
        "floor_us": floor,
        "share": floor / plan.floor_us,
        "numerics": launch.numerics,
        "kernel": launch.kernel,
    }


def size(num_bytes: float) -> str:
    """Return bytes for people: `2.05 GB`, `334 KB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if num_bytes >= factor:
            shown = num_bytes / factor
            return f"{shown:,.3g} {unit}" if shown < 1e3 else f"{shown:,.0f} {unit}"
    return f"{num_bytes:,.0f} bytes"
