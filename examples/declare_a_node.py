"""A node of one's own, in a circuit of one's own: declared, checked, run, and written as a document."""

import torch
from torch import Tensor

from circuit import Circuit, Cost, Node, TensorType, f32, interpret, to_text, to_yaml, verify
from nodes import Linear


class Squash(Node):
    """Limit a value softly to the range -limit .. limit.

    Ports:    x T[..., d]
    Result:   T[..., d]
    Numerics: tanh in T, one rounding each for quotient, tanh and product
    State:    none
    Source:   logit soft-capping, as in Gemma 2
    """

    limit: float

    def infer(self, x: TensorType) -> TensorType:
        if not x.dtype.is_floating_point:
            raise self.reject("x", x, "a floating point tensor")
        return x

    def reference(self, x: Tensor) -> Tensor:
        return torch.tanh(x / self.limit) * self.limit

    def cost(self, x: TensorType) -> Cost:
        return Cost(flops=3 * x.num_elements(), bytes_read=x.num_bytes(), bytes_written=x.num_bytes())


head = Circuit("capped_head")
hidden = head.input("hidden", f32("n", 8))
logits = Linear()(hidden, head.weight("lm_head", f32(32, 8)))
head.output("logits", Squash(limit=30.0)(logits).named("capped"))
verify(head)

print(to_text(head))
result = interpret(head, inputs={"hidden": torch.ones(2, 8)}, weights={"lm_head": torch.full((32, 8), 9.0)}, states={})
print(f"8 * 9 = 72 is squashed to {result.outputs['logits'][0, 0]:.3f}\n")
print(to_yaml(head))
