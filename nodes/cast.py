"""Cast: a change of dtype that the circuit shows."""

from typing import Literal

from torch import Tensor

from circuit import DTYPES, Cost, Node, TensorType


class Cast(Node):
    """Convert to another floating point dtype.

    Ports:    x T[...]
    Result:   dtype[...]
    Numerics: exact when widening, round to nearest even when narrowing
    State:    none
    Source:   transformers glm5_next casts the router's input to float32
    """

    dtype: Literal["bf16", "f16", "f32", "f64"]

    def infer(self, x: TensorType) -> TensorType:
        if not x.dtype.is_floating_point:
            raise self.reject("x", x, "a floating point tensor")
        return x.with_dtype(DTYPES[self.dtype])

    def reference(self, x: Tensor) -> Tensor:
        return x.to(DTYPES[self.dtype])

    def cost(self, x: TensorType) -> Cost:
        return Cost(bytes_read=x.num_bytes(), bytes_written=self.infer(x).num_bytes())
