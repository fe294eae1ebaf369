"""ExtendSelection: an older selection plus the rows written since."""

import torch
from torch import Tensor

from circuit import Cost, Count, Node, TensorType, i64, total_bytes


class ExtendSelection(Node):
    """Add the rows after `selected_at`, the row's own included, to a selection that an earlier row made.

    Ports:    selected i64[n, w] - selected_at i64[n], the position whose selection it is - position i64[n]
    Result:   i64[n, w + rows]: the selection, then the new positions, then -1
    Numerics: exact
    State:    none
    Source:   index_share_for_mtp_iteration: drafts 2..K reuse draft 1's selection. At most `rows` new rows fit; the
              caller keeps position - selected_at within it
    """

    rows: Count

    def infer(self, selected: TensorType, selected_at: TensorType, position: TensorType) -> TensorType:
        if selected.dtype != i64().dtype or len(selected.shape) != 2:
            raise self.reject("selected", selected, "i64[n, w]")
        for port, numbers in (("selected_at", selected_at), ("position", position)):
            if numbers != i64(selected.shape[0]):
                raise self.reject(port, numbers, f"{i64(selected.shape[0])}")
        return i64(selected.shape[0], selected.shape[1] + self.rows)

    def reference(self, selected: Tensor, selected_at: Tensor, position: Tensor) -> Tensor:
        added = (selected_at + 1).unsqueeze(1) + torch.arange(self.rows, device=selected.device)
        return torch.cat([selected, torch.where(added <= position.unsqueeze(1), added, -1)], dim=1)

    def cost(self, selected: TensorType, selected_at: TensorType, position: TensorType) -> Cost:
        out = self.infer(selected, selected_at, position)
        return Cost(bytes_read=total_bytes(selected, selected_at, position), bytes_written=out.num_bytes())
