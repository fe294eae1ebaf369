import torch

from nodes import TokenProbability
from tests.support.node_cases import Example, NodeCase, Sizes


def tokens(sizes: Sizes) -> dict[str, torch.Tensor]:
    return {"token": torch.arange(sizes["n"]) * 3 % sizes["vocab"]}


CASE = NodeCase(
    examples=(
        Example(
            node=TokenProbability(),
            ports={"logits": "T[n, vocab]", "token": "i64[n]"},
            sizes=({"n": 3, "vocab": 7}, {"n": 0, "vocab": 7}, {"n": 1, "vocab": 1}, {"n": 2, "vocab": 1000}),
            values=tokens,
        ),
    ),
    accepts={
        "logits other_float": "logits come in the model dtype or widened",
        "logits last_dim": "the vocabulary is the checkpoint's",
    },
    blames={"logits first_dim": "token"},
)
