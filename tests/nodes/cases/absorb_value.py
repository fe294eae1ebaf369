from nodes import AbsorbValue
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=AbsorbValue(v_head_dim=3, qk_nope_head_dim=2),
            ports={"attended": "T[n, heads, latent]", "kv_b": "T[heads*5, latent]"},
            sizes=(
                {"n": 3, "heads": 3, "latent": 7},
                {"n": 0, "heads": 3, "latent": 7},
                {"n": 1, "heads": 1, "latent": 1},
            ),
        ),
        Example(
            node=AbsorbValue(v_head_dim=3, qk_nope_head_dim=0),
            ports={"attended": "T[n, heads, latent]", "kv_b": "T[heads*3, latent]"},
            sizes=({"n": 3, "heads": 3, "latent": 7}, {"n": 0, "heads": 3, "latent": 7}),
        ),
    ),
    accepts={"attended first_dim": "the number of rows is free"},
    blames={"attended other_float": "kv_b", "attended last_dim": "kv_b"},
    free_attributes=frozenset({"qk_nope_head_dim"}),
)
