"""Triton's interpreter, where a command runs kernels on a machine without a GPU."""

import os
import sys

import torch

from circuit import LoweringError


def interpret_without_device() -> bool:
    """Make triton interpret kernels in this process where there is no CUDA device; return whether it does.

    To be called before triton is first imported, which torch's compiler does: triton's own functions are made then.
    Raises LoweringError where that came first and kernels are made for a device.
    """
    if torch.cuda.is_available():
        return False
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True
    if "triton" in sys.modules:
        raise LoweringError(
            "triton: there is no CUDA device, and triton was imported to make kernels for one; set TRITON_INTERPRET=1 "
            "to run them on the CPU, slowly"
        )
    os.environ["TRITON_INTERPRET"] = "1"
    return True
