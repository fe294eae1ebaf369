"""The driver of packages: driver.cpp, built beside them and called without an interpreter between two drafts."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from circuit import BindingError, dtype_name

DRIVER = "driver.so"  # beside the packages that it runs


class Driver:
    """One opened package: arguments are bound once, then a run is one call for all its steps."""

    def __init__(self, driver: Path, package: Path, *, num_ports: int, num_results: int) -> None:
        self._library = _opened(str(driver.resolve()))
        self._package = package
        self._handle = ctypes.c_void_p()
        self._sources = (ctypes.c_void_p * num_ports)()
        self._targets = (ctypes.c_void_p * num_results)()
        self._bytes = (ctypes.c_int64 * num_results)()
        path = str(package.resolve()).encode()
        self._check(self._library.draft_open(path, num_ports, num_results, ctypes.byref(self._handle)))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.draft_close(self._handle)

    def bind(
        self,
        index: int,
        dtype: torch.dtype,
        sizes: Sequence[int],
        *,
        address: int | None = None,
        fed_by: int = -1,
        is_first_flag: bool = False,
    ) -> None:
        """Bind argument `index` to the memory at `address`, which must stay alive; None stages it in the program."""
        shape = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        name = dtype_name(dtype).encode()
        self._check(
            self._library.draft_bind(self._handle, index, address, name, len(sizes), shape, fed_by, is_first_flag)
        )

    def expect(self, result: int, num_bytes: int) -> None:
        """Say how many bytes a result has that is written to the caller's memory."""
        self._bytes[result] = num_bytes

    def run(self, num_steps: int, sources: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]) -> None:
        """Run `num_steps` steps; (argument, address) of what is staged, (result, address) of what is written."""
        for index, address in sources:
            self._sources[index] = address
        for index, address in targets:
            self._targets[index] = address
        self._check(self._library.draft_run(self._handle, num_steps, self._sources, self._targets, self._bytes))

    def _check(self, code: int) -> None:
        if code != 0:
            raise BindingError(f"package {self._package.name}: {self._library.draft_error().decode(errors='replace')}")


@cache
def _opened(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    handle, number = ctypes.c_void_p, ctypes.c_int64
    library.draft_error.restype = ctypes.c_char_p
    library.draft_open.argtypes = [ctypes.c_char_p, number, number, ctypes.POINTER(handle)]
    library.draft_close.argtypes = [handle]
    library.draft_close.restype = None
    library.draft_bind.argtypes = [
        *(handle, number, handle, ctypes.c_char_p, number, ctypes.POINTER(number), number, ctypes.c_bool)
    ]
    library.draft_run.argtypes = [
        *(handle, number, ctypes.POINTER(handle), ctypes.POINTER(handle), ctypes.POINTER(number))
    ]
    return library
