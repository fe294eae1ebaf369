import torch

from nodes import TrimmedGrammarMask
from tests.support.node_cases import Example, NodeCase, Sizes


def masks_and_tokens(sizes: Sizes) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (sizes["n"], sizes["words"])
    bitmask = torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)
    return {"bitmask": bitmask, "token_ids": 1 + 3 * torch.arange(sizes["rows"])}


CASE = NodeCase(
    examples=(
        Example(
            node=TrimmedGrammarMask(),
            ports={"logits": "T[n, rows]", "bitmask": "i32[n, words]", "token_ids": "i64[rows]"},
            sizes=(
                {"n": 3, "rows": 21, "words": 3},
                {"n": 0, "rows": 21, "words": 3},
                {"n": 1, "rows": 1, "words": 1},
                {"n": 2, "rows": 30, "words": 2},
            ),
            values=masks_and_tokens,
        ),
    ),
    accepts={
        "logits other_float": "logits come in the model dtype or widened",
        "bitmask last_dim": "words beyond the vocabulary mean nothing, missing ones allow nothing",
    },
    blames={"logits first_dim": "bitmask", "logits last_dim": "token_ids"},
)
