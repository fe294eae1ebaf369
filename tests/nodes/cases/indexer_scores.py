import torch

from nodes import IndexerScores
from tests.support.node_cases import Example, NodeCase, Sizes, block_tables, sequence_rows


def rows(sizes: Sizes) -> dict[str, torch.Tensor]:
    position, sequence = sequence_rows(sizes)
    return {"position": position, "block_table": block_tables(sizes, sequence)}


CASE = NodeCase(
    examples=tuple(
        Example(
            node=IndexerScores(pool=pool),
            ports={
                "pool_keys": f"paged/{pool} T[blocks, entries, d]",
                "query": "T[n, heads, d]",
                "head_weights": "T[n, heads]",
                "position": "i64[n]",
                "block_table": "i64[n, max_blocks]",
            },
            sizes=(
                {"n": 5, "blocks": 9, "entries": 3, "d": 7, "heads": 3, "max_blocks": 3},
                {"n": 0, "blocks": 9, "entries": 3, "d": 7, "heads": 3, "max_blocks": 3},
                {"n": 1, "blocks": 3, "entries": 1, "d": 1, "heads": 1, "max_blocks": 1},
                {"n": 7, "blocks": 5, "entries": 4, "d": 3, "heads": 2, "max_blocks": 2},
            ),
            values=rows,
        )
        for pool in (4, 1)
    ),
    accepts={
        "pool_keys first_dim": "the number of blocks is the allocator's",
        "block_table last_dim": "a sequence may have any number of blocks",
    },
    blames={
        "pool_keys no_float": "query",
        "pool_keys other_float": "query",
        "pool_keys last_dim": "query",
        "query first_dim": "head_weights",
    },
)
