from nodes import Cast
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=tuple(
        Example(
            node=Cast(dtype=dtype),
            ports={"x": "T[n, d]"},
            sizes=({"n": 3, "d": 7}, {"n": 0, "d": 7}, {"n": 1, "d": 1}),
        )
        for dtype in ("bf16", "f16", "f32", "f64")
    ),
    accepts={
        "x other_float": "any floating point dtype is cast",
        "x more_dims": "any shape",
        "x fewer_dims": "any shape",
        "x first_dim": "any shape",
        "x last_dim": "any shape",
    },
)
