import torch

from nodes import SparseMlaAttention
from tests.support.node_cases import Example, NodeCase, Sizes, block_tables, sequence_rows


def rows(sizes: Sizes) -> dict[str, torch.Tensor]:
    _, sequence = sequence_rows(sizes)
    width, num_tokens = sizes["w"], sizes["max_blocks"] * sizes["block_size"]
    selected = (torch.arange(width) * 2 + torch.arange(sizes["n"]).unsqueeze(1)) % num_tokens
    # row i selects all but its i first places, so that later rows select nothing
    selected[torch.arange(width) < torch.arange(sizes["n"]).unsqueeze(1)] = -1
    return {"selected": selected, "block_table": block_tables(sizes, sequence)}


CASE = NodeCase(
    examples=(
        Example(
            node=SparseMlaAttention(scale=0.3),
            ports={
                "latent": "paged T[blocks, block_size, r]",
                "query": "T[n, heads, r]",
                "selected": "i64[n, w]",
                "block_table": "i64[n, max_blocks]",
            },
            sizes=(
                {"n": 5, "blocks": 9, "block_size": 3, "r": 7, "heads": 3, "w": 4, "max_blocks": 3},
                {"n": 0, "blocks": 9, "block_size": 3, "r": 7, "heads": 3, "w": 4, "max_blocks": 3},
                {"n": 1, "blocks": 3, "block_size": 1, "r": 1, "heads": 1, "w": 1, "max_blocks": 1},
                {"n": 9, "blocks": 3, "block_size": 4, "r": 3, "heads": 2, "w": 4, "max_blocks": 1},
            ),
            values=rows,
        ),
    ),
    accepts={
        "latent first_dim": "the number of blocks is the allocator's",
        "selected last_dim": "a selection may have any width",
        "block_table last_dim": "a sequence may have any number of blocks",
    },
    blames={
        "latent no_float": "query",
        "latent other_float": "query",
        "latent last_dim": "query",
        "query first_dim": "selected",
    },
)
