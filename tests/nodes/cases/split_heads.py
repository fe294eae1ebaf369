from nodes import SplitHeads
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=SplitHeads(num_heads=3),
            ports={"x": "T[n, 3*d]"},
            sizes=({"n": 5, "d": 7}, {"n": 0, "d": 7}, {"n": 1, "d": 1}),
        ),
        Example(node=SplitHeads(num_heads=7), ports={"x": "T[n, 7]"}, sizes=({"n": 3},)),
    ),
    accepts={
        "x no_float": "a view of any dtype",
        "x other_float": "a view of any dtype",
        "x first_dim": "the number of rows is free",
    },
    is_view=True,
)
