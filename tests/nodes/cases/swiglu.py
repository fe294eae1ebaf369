from nodes import Swiglu
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=tuple(
        Example(
            node=Swiglu(limit=limit),
            ports={"gate": "T[n, d]", "up": "T[n, d]"},
            sizes=({"n": 3, "d": 7}, {"n": 0, "d": 7}, {"n": 1, "d": 1}),
        )
        for limit in (7.0, 0.1)
    ),
    blames={
        "gate other_float": "up",
        "gate more_dims": "up",
        "gate fewer_dims": "up",
        "gate first_dim": "up",
        "gate last_dim": "up",
    },
)
