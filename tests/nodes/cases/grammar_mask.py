import torch

from nodes import GrammarMask
from tests.support.node_cases import Example, NodeCase, Sizes


def bitmasks(sizes: Sizes) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (sizes["n"], sizes["words"])
    return {"bitmask": torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)}


CASE = NodeCase(
    examples=(
        Example(
            node=GrammarMask(),
            ports={"logits": "T[n, vocab]", "bitmask": "i32[n, words]"},
            sizes=(
                {"n": 3, "vocab": 70, "words": 3},
                {"n": 0, "vocab": 70, "words": 3},
                {"n": 1, "vocab": 1, "words": 1},
                {"n": 2, "vocab": 70, "words": 2},
            ),
            values=bitmasks,
        ),
    ),
    accepts={
        "logits other_float": "logits come in the model dtype or widened",
        "logits last_dim": "the vocabulary is the checkpoint's",
        "bitmask last_dim": "words beyond the vocabulary mean nothing, missing ones allow nothing",
    },
    blames={"logits first_dim": "bitmask"},
)
