"""State types: tensors that outlive a run, threaded through a circuit as values.

A node that writes takes the state and returns the new one; a state type says how the tensor is laid out, so that a
memory plan can turn the threading into writes in place and count the bytes of a row:

- `paged`: `[blocks, entries_per_block, ...]`, found through a block table; an entry stands for `rows_per_entry` rows.
- `ring`:  `[sequences, depth, ...]`, one ring per sequence; the entry of position q is `q % depth`.

Block 0 and sequence 0 belong to nobody: padding rows and skipped writes land there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from circuit.errors import TypeRuleError
from circuit.tensor_type import TensorType

Layout = Literal["paged", "ring"]

_STATE_TEXT = re.compile(r"^\s*(\w+)(?:/([0-9]{1,9}))?\s+(.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StateType:
    """A state's layout and tensor type, `paged/4 bf16[num_blocks, 4, 128]` for one entry per 4 rows."""

    layout: Layout
    tensor: TensorType
    rows_per_entry: int = 1

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise TypeRuleError(f"state layout {self.layout!r}: expected one of {', '.join(get_args(Layout))}")
        if self.rows_per_entry < 1:
            raise TypeRuleError(f"state {self.tensor}: expected at least 1 row per entry, got {self.rows_per_entry}")
        if len(self.tensor.shape) < 3:
            raise TypeRuleError(f"state {self.tensor}: expected [blocks, entries, ...] or [sequences, depth, ...]")

    @staticmethod
    def parse(text: str) -> "StateType":
        """Read `paged/4 bf16[num_blocks, 4, 128]`; `TypeRuleError` says what is wrong with the text."""
        match = _STATE_TEXT.match(text)
        layouts = get_args(Layout)
        if match is None or match.group(1) not in layouts:
            raise TypeRuleError(
                f"state {text[:80]!r}: expected LAYOUT DTYPE[dim, ...] with a layout of {', '.join(layouts)}"
            )
        layout: Layout = "paged" if match.group(1) == "paged" else "ring"
        return StateType(layout, TensorType.parse(match.group(3)), int(match.group(2) or 1))

    def bind(self, dims: Mapping[str, int]) -> "StateType":
        """Return this type with the named dims replaced by numbers; names not in `dims` stay."""
        return StateType(self.layout, self.tensor.bind(dims), self.rows_per_entry)

    def __str__(self) -> str:
        rows = f"/{self.rows_per_entry}" if self.rows_per_entry != 1 else ""
        return f"{self.layout}{rows} {self.tensor}"
