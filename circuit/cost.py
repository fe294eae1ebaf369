"""What a node call moves and computes, in bytes and floating point operations."""

from dataclasses import dataclass

from circuit.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating point operations, bytes read and bytes written of one run of a node, with every dim bound.

    bytes_sent: what this rank hands to the link to other ranks; 0 of every node that is no collective.
    """

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_sent: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.bytes_sent + other.bytes_sent,
        )


def total_bytes(*types: TensorType) -> int:
    """Return the bytes that bound tensor types occupy together."""
    return sum(type.num_bytes() for type in types)
