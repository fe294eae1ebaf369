import torch

from nodes import AppendTail
from tests.support.node_cases import Example, NodeCase, Sizes, sequence_rows


def rows(sizes: Sizes) -> dict[str, torch.Tensor]:
    position, sequence = sequence_rows(sizes)
    return {"position": position, "sequence": sequence}


CASE = NodeCase(
    examples=(
        Example(
            node=AppendTail(),
            ports={
                "tail": "ring T[sequences, depth, 2, d]",
                "keys": "T[n, d]",
                "gates": "T[n, d]",
                "position": "i64[n]",
                "sequence": "i64[n]",
            },
            sizes=(
                {"n": 5, "sequences": 4, "depth": 4, "d": 7},
                {"n": 11, "sequences": 3, "depth": 3, "d": 1},
                {"n": 0, "sequences": 3, "depth": 3, "d": 1},
                {"n": 1, "sequences": 3, "depth": 1, "d": 3},
            ),
            values=rows,
        ),
    ),
    accepts={"tail first_dim": "the number of sequences is the allocator's"},
    blames={
        "tail no_float": "keys",
        "tail other_float": "keys",
        "tail last_dim": "keys",
        "keys first_dim": "gates",
    },
)
