"""`circuit plan`: what a drafter can reach on a device, what is in the way, and whether it fits."""

from dataclasses import replace
from pathlib import Path

import torch

from compiler import THIS_MACHINE, Device, device_names, load_device, measure_this_machine, roofline_of
from drafts.commands.grid import Grid, show
from drafts.commands.plan_compare import comparison, side_request
from drafts.commands.plan_request import MAX_BATCH, PlanRequest, SpeedupRequest, counts, parse_levers, rate
from drafts.commands.plan_speedup import round_model, speedup_grid, speedup_record
from drafts.commands.plan_split import split_lines, split_record
from drafts.commands.plan_subject import PlanSubject, plan_subject
from drafts.commands.plan_tables import chains, cuts, headline, launches, memory, memory_line, plan_record, summary
from drafts.commands.screen import Screen
from drafts.config import DraftConfig
from drafts.parallel import ONE_RANK, ParallelPlan
from drafts.plan_drafter import DraftPlan, PlanBackend, bind_without_weights, plan_drafter

DEFAULT_CONTEXT = 4096  # rows
# they change what happens between drafts, or how many sequences one call may have
IDLE_LEVERS = ("mtp_kv_exact", "propose_batch_max")

__all__ = ["THIS_MACHINE", "compare", "device_names", "measure", "plan", "speedup"]


def plan(request: PlanRequest, screen: Screen, *, as_markdown: bool, is_full: bool) -> None:
    """Plan every batch and context that is asked for and print them; JSON carries the first one at its top."""
    subject, plans = _plans(request)
    first = plans[0]
    parts: list[Grid | str] = [*headline(first, subject.name), *split_lines(first), summary(plans), chains(plans)]
    if first.distinct_experts < first.config.n_routed_experts and first.batch < plans[-1].batch:
        parts.append("experts: how many of them the batch touches on average under uniform routing")
    for one in plans if is_full else plans[:1]:
        parts.append(launches(one, width=screen.out.width))
    if len(plans) > 1 and not is_full:
        parts.append("--full lists the launches of the other batches and contexts")
    parts += [cuts(first), memory(plans), memory_line(first)]
    parts += _idle_levers(request)
    show(screen, parts, as_markdown=as_markdown)
    records = [{**plan_record(one, subject.name), "parallel": split_record(one)} for one in plans]
    screen.emit({**records[0], "cases": records})


def compare(request: PlanRequest, sides: tuple[str, str], screen: Screen, *, as_markdown: bool) -> None:
    """Plan two sides, each the request with its own settings, and print them side by side."""
    planned: list[tuple[str, DraftPlan]] = []
    subjects: list[str] = []
    idle: dict[str, None] = {}
    for side in sides:
        asked = side_request(request, side)
        subject, plans = _plans(asked)
        subjects.append(subject.name)
        idle |= dict.fromkeys(_idle_levers(asked))
        if len(plans) > 1:
            raise ValueError(
                f"--compare: expected one batch and one context a side, got {len(plans)} cases of {side!r}"
            )
        planned.append((side, plans[0]))
    (name_a, a), (name_b, b) = planned
    show(screen, [*comparison(name_a, a, name_b, b), *idle], as_markdown=as_markdown)
    records = [plan_record(plan, subject) for plan, subject in ((a, subjects[0]), (b, subjects[1]))]
    screen.emit({"a": {"name": name_a, **records[0]}, "b": {"name": name_b, **records[1]}})


def speedup(request: PlanRequest, asked: SpeedupRequest, screen: Screen, *, as_markdown: bool) -> None:
    """Print the gain over plain decoding for each K, and the best one."""
    planned = None
    if asked.measured is None and asked.draft_us is None:
        # the chain that has to fit the context is the longest one that is asked about
        positions = max(1, (asked.acceptance or "").count(",") + 1)
        subject, plans = _plans(replace(request, num_drafts=positions))
        if len(plans) > 1:
            raise ValueError(f"--speedup: expected one batch and one context, got {len(plans)} cases; ask for one")
        planned = plans[0]
        where = f"{subject.name} on {planned.device.title}, batch {planned.batch}, context {planned.context:,}"
    else:
        where = "from times that were measured" if asked.measured else "from times that were given"
    model, measured_speedup = round_model(asked, planned)
    show(screen, speedup_grid(model, where, measured_speedup=measured_speedup), as_markdown=as_markdown)
    screen.emit(speedup_record(model, planned, measured_speedup=measured_speedup))


def measure(store: Path, screen: Screen, *, as_markdown: bool, is_alone: bool) -> None:
    """Measure this machine, keep the figures in `store`, and print them; JSON is the plan's unless it is alone."""
    with screen.step("measuring memory"):
        device = measure_this_machine(store)
    rows = tuple((key, f"{figure.value:,.4g}", figure.source) for key, figure in device.figures().items())
    show(
        screen,
        [device.title, Grid(("figure", "value", "source"), rows, texts=("figure", "source")), f"kept in {store}"],
        as_markdown=as_markdown,
    )
    if not is_alone:
        return
    figures = {key: figure.value for key, figure in device.figures().items()}
    screen.emit({"ok": True, "device": THIS_MACHINE, "title": device.title, "file": str(store), **figures})


def _plans(request: PlanRequest) -> tuple[PlanSubject, list[DraftPlan]]:
    subject = plan_subject(request.subject, dtype_name=request.dtype_name)
    levers = parse_levers(request.levers)
    device = load_device(request.device, measured=request.measured_device)
    batches = counts(request.batches, "--batch", high=MAX_BATCH)
    limit = subject.config.max_position_embeddings
    given = request.contexts
    contexts = (min(DEFAULT_CONTEXT, limit),) if given is None else counts(given, "--context", high=limit)
    if min(contexts) < request.num_drafts:
        raise ValueError(f"--context: expected room for {request.num_drafts} drafts, got {min(contexts)}; ask for more")
    roofline = roofline_of(
        device,
        is_16_bit=_is_16_bit(subject.config),
        bandwidth=None if request.bandwidth is None else rate(request.bandwidth),
        launch_gap_us=request.launch_gap_us,
    )
    plan = ParallelPlan(tp=request.tp, ep=request.ep) if levers.mtp_ep_propose else ONE_RANK
    decisions = levers.applied_to(subject.decisions)
    binding = bind_without_weights(subject.config, decisions, where=subject.name, draft_head=levers.head, parallel=plan)
    plans = [
        plan_drafter(
            binding,
            device=device,
            roofline=roofline,
            backend=_backend(request, subject, device),
            batch=batch,
            context=context,
            num_drafts=request.num_drafts,
            reserved=round(request.reserve_gb * 1e9),
        )
        for batch in batches
        for context in contexts
    ]
    return subject, plans


def _idle_levers(request: PlanRequest) -> list[str]:
    """Return the line that says of levers that no byte depends on them, none where there are none."""
    idle = [name for name in IDLE_LEVERS if f"{name}=" in request.levers.replace(" ", "")]
    return [f"{' and '.join(idle)}: no bytes of a draft depend on it"] if idle else []


def _backend(request: PlanRequest, subject: PlanSubject, device: Device) -> PlanBackend:
    """What is asked for; else what the device and the subject have: an artifact and a CPU run by Inductor."""
    if request.backend is not None:
        return {"triton": "triton", "inductor": "inductor"}.get(request.backend, "reference")  # type: ignore[return-value]
    is_cpu = device.name == THIS_MACHINE and not torch.cuda.is_available()
    return "inductor" if subject.is_compiled or is_cpu else "triton"


def _is_16_bit(config: DraftConfig) -> bool:
    return config.dtype.itemsize == 2
