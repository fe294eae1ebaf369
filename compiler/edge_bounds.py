"""How far each edge of a circuit may lie from its reference: from the tags of its lowerings, the dtype and its inputs.

A call whose arguments agree to the last bit is held to its own tag: bitwise to the same bits, a tolerance to that
tolerance. A call whose arguments differ already, within their bounds, carries what came before it, and is held to the
bound of a whole forward. So an edge that misses its own tag is wrong by its own doing.
"""

from collections.abc import Callable

import torch

from circuit import StateType, Value
from compiler.parity import Bound, bound_for
from compiler.registry import lowering_of

# a float32 result that differs in its last bits may round to the neighbour in every entry
NARROW_STEP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


class EdgeBounds:
    """The bounds of a circuit's edges on one backend; without a backend every edge has the bound of a whole forward.

    `whole`: the bound of a whole forward, the dtype's own where none is given. `is_compiled`: a compiler orders the
    arithmetic of traced references, so they are not held to the same bits.
    """

    def __init__(
        self, *, backend: str | None, dtype: torch.dtype, is_compiled: bool = False, whole: Bound | None = None
    ) -> None:
        self._backend = backend
        self._whole = whole or bound_for(dtype)
        self._is_compiled = is_compiled

    def of(self, value: Value, *, is_exact: Callable[[Value], bool]) -> Bound:
        """Return the bound of a result; `is_exact` tells of an argument whether both sides have the same bits."""
        call = value.call
        if self._backend is None or call is None:
            return self._whole
        name = type(call.node).__name__
        if carried := next((arg for arg in call.args if arg.kind != "weight" and not is_exact(arg)), None):
            return Bound(self._whole.relative_l2, f"its input {carried.name} differs already; {self._whole.reason}")
        lowering = lowering_of(call.node, self._backend)
        kind = "reference" if lowering is None else lowering.numerics.kind
        if kind == "reference" and self._is_compiled:
            return Bound(self._whole.relative_l2, f"{name} is its reference, compiled; {self._whole.reason}")
        if kind == "reference":
            return Bound(0, f"{name} runs its reference, on the same inputs")
        if lowering is None or kind == "bitwise":
            return Bound(0, f"{name} is tagged bitwise, and its inputs are the same")
        tag = lowering.numerics
        declared = value.type.tensor if isinstance(value.type, StateType) else value.type
        step = NARROW_STEP.get(declared.dtype, 0.0)
        if step > tag.bound:
            return Bound(step, f"{name}: {tag.reason}; then rounded to the neighbour")
        return Bound(tag.bound, f"{name}: {tag.reason}")
