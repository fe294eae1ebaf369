import torch

from nodes import AppendCache
from tests.support.node_cases import Example, NodeCase, Sizes


def slots(sizes: Sizes) -> dict[str, torch.Tensor]:
    # every third row is skipped; the others stand apart, after the null block
    row = torch.arange(sizes["n"])
    return {"slots": torch.where(row % 3 == 1, -1, sizes["entries"] + 2 * row)}


CASE = NodeCase(
    examples=tuple(
        Example(
            node=AppendCache(),
            ports={"cache": f"{layout} T[blocks, entries, d]", "rows": "T[n, d]", "slots": "i64[n]"},
            sizes=(
                {"n": 5, "blocks": 4, "entries": 4, "d": 7},
                {"n": 0, "blocks": 2, "entries": 1, "d": 3},
                {"n": 1, "blocks": 2, "entries": 1, "d": 1},
            ),
            values=slots,
        )
        for layout in ("paged", "paged/4")
    ),
    accepts={
        "cache first_dim": "the number of blocks is the allocator's",
        "cache rows_per_entry": "an entry is copied, whatever it stands for",
    },
    blames={
        "cache no_float": "rows",
        "cache other_float": "rows",
        "cache last_dim": "rows",
        "rows first_dim": "slots",
    },
)
