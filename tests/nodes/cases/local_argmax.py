from nodes import LocalArgmax
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=LocalArgmax(first=0),
            ports={"logits": "T[n, d]"},
            sizes=({"n": 3, "d": 7}, {"n": 0, "d": 7}, {"n": 1, "d": 1}),
        ),
        Example(node=LocalArgmax(first=1000), ports={"logits": "T[n, d]"}, sizes=({"n": 2, "d": 63},)),
    ),
    accepts={
        "logits other_float": "logits come in the model dtype or widened",
        "logits first_dim": "the number of rows is free",
        "logits last_dim": "a rank's share of the vocabulary",
    },
    free_attributes=frozenset({"first"}),
)
