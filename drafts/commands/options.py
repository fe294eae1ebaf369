"""Choices that several commands offer alike; imports nothing heavy, so that a command line is read at once."""

from enum import StrEnum


class Precision(StrEnum):
    """Floating point types a checkpoint can be run in."""

    F32 = "f32"
    BF16 = "bf16"


class Backend(StrEnum):
    """What can run a circuit: the interpreter over the nodes' references, compiled programs, or Triton launches."""

    REFERENCE = "reference"
    INDUCTOR = "inductor"
    TRITON = "triton"
