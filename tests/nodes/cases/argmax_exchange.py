import torch

from nodes import ArgmaxExchange
from tests.support.node_cases import Example, NodeCase, Sizes


def tokens(sizes: Sizes) -> dict[str, torch.Tensor]:
    return {"token": torch.arange(sizes["n"]) * 3}


CASE = NodeCase(
    examples=(
        Example(
            node=ArgmaxExchange(axis="tp", num_ranks=1),
            ports={"value": "T[n]", "token": "i64[n]"},
            sizes=({"n": 3}, {"n": 0}, {"n": 1}),
            values=tokens,
        ),
    ),
    accepts={"value other_float": "logits come in the model dtype or widened"},
    blames={"value first_dim": "token", "value last_dim": "token"},
)
