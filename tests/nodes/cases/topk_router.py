from nodes import TopkRouter
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=tuple(
        Example(
            node=node,
            ports={"logits": "f32[n, experts]", "bias": "f32[experts]"},
            sizes=({"n": 5, "experts": 12}, {"n": 0, "experts": 12}, {"n": 1, "experts": 6}),
        )
        for node in (
            TopkRouter(top_k=3, n_group=1, topk_group=1, norm_topk_prob=True, scale=2.5),
            TopkRouter(top_k=3, n_group=3, topk_group=2, norm_topk_prob=False, scale=1.0),
        )
    ),
    dtypes=("f32",),
    accepts={"logits first_dim": "the number of rows is free"},
    blames={"logits last_dim": "bias"},
)
