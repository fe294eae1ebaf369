from nodes import AbsorbQuery
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=AbsorbQuery(v_head_dim=3),
            ports={"query": "T[n, heads, nope]", "kv_b": "T[heads*(nope + 3), latent]"},
            sizes=(
                {"n": 3, "heads": 3, "nope": 5, "latent": 7},
                {"n": 0, "heads": 3, "nope": 5, "latent": 7},
                {"n": 1, "heads": 1, "nope": 1, "latent": 1},
            ),
        ),
        Example(
            node=AbsorbQuery(v_head_dim=0),
            ports={"query": "T[n, heads, nope]", "kv_b": "T[heads*nope, latent]"},
            sizes=({"n": 3, "heads": 3, "nope": 5, "latent": 7}, {"n": 0, "heads": 3, "nope": 5, "latent": 7}),
        ),
    ),
    accepts={
        "query first_dim": "the number of rows is free",
        "kv_b last_dim": "the latent width is the checkpoint's",
    },
    blames={"query other_float": "kv_b", "query last_dim": "kv_b"},
    free_attributes=frozenset({"v_head_dim"}),
)
