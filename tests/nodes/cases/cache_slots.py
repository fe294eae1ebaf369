import torch

from nodes import CacheSlots
from tests.support.node_cases import Example, NodeCase, Sizes, block_tables, sequence_rows


def rows(sizes: Sizes) -> dict[str, torch.Tensor]:
    position, sequence = sequence_rows(sizes)
    return {"position": position, "block_table": block_tables(sizes, sequence)}


CASE = NodeCase(
    examples=tuple(
        Example(
            node=node,
            ports={"position": "i64[n]", "block_table": "i64[n, max_blocks]"},
            sizes=({"n": 5, "max_blocks": 3}, {"n": 0, "max_blocks": 3}, {"n": 1, "max_blocks": 2}),
            values=rows,
        )
        for node in (CacheSlots(entries_per_block=3), CacheSlots(entries_per_block=2, rows_per_entry=4))
    ),
    accepts={"block_table last_dim": "a sequence may have any number of blocks"},
    blames={"position first_dim": "block_table", "position last_dim": "block_table"},
)
