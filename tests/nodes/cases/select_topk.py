import torch

from nodes import SelectTopk
from tests.support.node_cases import Example, NodeCase, Sizes


def rows(sizes: Sizes) -> dict[str, torch.Tensor]:
    return {"position": torch.arange(sizes["n"]) * 3 % (4 * sizes["pools"] + 1)}


CASE = NodeCase(
    examples=tuple(
        Example(
            node=node,
            ports={"scores": "f32[n, pools]", "position": "i64[n]"},
            sizes=({"n": 5, "pools": 7}, {"n": 0, "pools": 7}, {"n": 1, "pools": 1}, {"n": 2, "pools": 0}),
            values=rows,
        )
        for node in (SelectTopk(topk=13, pool=4), SelectTopk(topk=3, pool=1), SelectTopk(topk=2, pool=4))
    ),
    dtypes=("f32",),
    accepts={"scores last_dim": "the number of pools follows the block table"},
    blames={"scores first_dim": "position"},
)
