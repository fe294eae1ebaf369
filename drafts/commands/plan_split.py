"""How `circuit plan` tells of a drafter that ranks share."""

from typing import Any

from drafts.commands.grid import Grid
from drafts.commands.plan_tables import size
from drafts.plan_drafter import DraftPlan


def split_lines(plan: DraftPlan) -> list[Grid | str]:
    """Return each rank's part and the exchanges of a draft; nothing for a drafter that is whole on its rank."""
    if not plan.parallel.is_split:
        return []
    parts = tuple(
        (part.ranks, f"{part.num_heads}", f"{part.num_experts}", f"{part.lm_head_rows:,}", size(part.weight_bytes))
        for part in plan.rank_parts
    )
    exchanges = tuple(
        (entry.value, entry.exchange, entry.axis, entry.payload, size(entry.payload_bytes), size(entry.bytes_sent))
        for entry in plan.exchanges
    )
    count, sent = len(plan.exchanges), sum(entry.bytes_sent for entry in plan.exchanges)
    return [
        Grid(
            ("ranks", "heads", "experts", "lm_head rows", "weights"),
            parts,
            texts=("ranks",),
            title=f"split over {plan.parallel.num_ranks} ranks, {plan.parallel}; all else is that of rank 0",
        ),
        Grid(
            ("makes whole", "exchange", "axis", "a rank hands in", "bytes", "sends"),
            exchanges,
            texts=("makes whole", "exchange", "axis", "a rank hands in"),
            title=f"exchanges of a draft, batch {plan.batch}: {count}, {size(sent)} sent by each rank",
        ),
        "the link between ranks is in no device's file: floors do not count what an exchange takes; a chain adds two "
        "exchanges of facts before and after it",
        "no backend's programs exchange yet, so a split drafter runs interpreted: the launches are those it would have",
    ]


def split_record(plan: DraftPlan) -> dict[str, Any]:
    """Return the split as JSON values; sizes in bytes."""
    return {
        "tp": plan.parallel.tp,
        "ep": plan.parallel.ep,
        "ranks": [
            {
                "first": part.first,
                "last": part.last,
                "heads": part.num_heads,
                "experts": part.num_experts,
                "lm_head_rows": part.lm_head_rows,
                "weight_bytes": part.weight_bytes,
            }
            for part in plan.rank_parts
        ],
        "exchanges": [
            {
                "value": entry.value,
                "axis": entry.axis,
                "exchange": entry.exchange,
                "payload": entry.payload,
                "payload_bytes": entry.payload_bytes,
                "bytes_sent": entry.bytes_sent,
            }
            for entry in plan.exchanges
        ],
        "exchanges_per_chain": plan.num_drafts * len(plan.exchanges),
        "bytes_sent_per_chain": plan.num_drafts * sum(entry.bytes_sent for entry in plan.exchanges),
    }
