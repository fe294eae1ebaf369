from nodes import Slice
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(node=Slice(start=2, width=3), ports={"x": "T[n, d]"}, sizes=({"n": 3, "d": 7}, {"n": 0, "d": 5})),
        Example(node=Slice(start=0, width=1), ports={"x": "T[n, d]"}, sizes=({"n": 1, "d": 1}, {"n": 5, "d": 2})),
    ),
    accepts={
        "x no_float": "a view of any dtype",
        "x other_float": "a view of any dtype",
        "x more_dims": "any number of leading dims",
        "x fewer_dims": "any number of leading dims",
        "x first_dim": "the number of rows is free",
        "x last_dim": "columns past the slice",
    },
    free_attributes=frozenset({"start"}),
    is_view=True,
)
