from nodes import Argmax
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=Argmax(),
            ports={"logits": "T[n, vocab]"},
            sizes=({"n": 3, "vocab": 7}, {"n": 0, "vocab": 7}, {"n": 1, "vocab": 1}, {"n": 2, "vocab": 1000}),
        ),
    ),
    accepts={
        "logits other_float": "logits come in the model dtype or widened",
        "logits first_dim": "the number of rows is free",
        "logits last_dim": "the vocabulary is the checkpoint's",
    },
)
