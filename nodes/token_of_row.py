"""TokenOfRow: which token a row of a trimmed lm_head stands for."""

from torch import Tensor

from circuit import Cost, Node, TensorType, i64


class TokenOfRow(Node):
    """Return the token id that each drafted row of a trimmed vocabulary stands for.

    Ports:    row i64[n] - token_ids i64[rows], strictly ascending
    Result:   i64[n]
    Numerics: exact; ascending ids keep a tie with the lowest id, since the lowest row won it
    State:    none
    Source:   the lever draft_vocab; rows outside the list are never drafted
    """

    def infer(self, row: TensorType, token_ids: TensorType) -> TensorType:
        if row.dtype != i64().dtype or len(row.shape) != 1:
            raise self.reject("row", row, "i64[n]")
        if token_ids.dtype != i64().dtype or len(token_ids.shape) != 1:
            raise self.reject("token_ids", token_ids, "i64[rows]")
        return row

    def reference(self, row: Tensor, token_ids: Tensor) -> Tensor:
        return token_ids[row]

    def cost(self, row: TensorType, token_ids: TensorType) -> Cost:
        # an id that several rows name is read once
        read = min(row.num_bytes(), token_ids.num_bytes())
        return Cost(bytes_read=row.num_bytes() + read, bytes_written=row.num_bytes())
