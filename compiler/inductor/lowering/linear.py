"""Linear on a CPU."""

from torch import Tensor

from compiler.inductor.products import product
from compiler.registry import lowers, tolerance
from nodes import Linear


@lowers(Linear, backend="inductor", numerics=tolerance(1e-5, "the sum over inputs runs in another order"))
def lower_linear(node: Linear, x: Tensor, weight: Tensor) -> Tensor:
    """One pass over the weight for all rows; see products.py."""
    return product(x, weight)
