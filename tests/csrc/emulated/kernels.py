"""Call the compiled kernels: numpy arrays are device memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np


class LaunchError(RuntimeError):
    """A kernel went wrong in a way that would hang a device or be undefined there."""


class Kernels:
    """The functions of the shared library that ``build`` returns.

    Parameters
    ----------
    library
        Path of the shared library.
    """

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def configure(self, *, seed: int = 1, resident: int = 3, processors: int = 2) -> None:
        """Choose the order of blocks, warps and lanes, blocks at a time, and multiprocessors."""
        self._library.emulated_configure(*map(ctypes.c_uint, (seed, resident, processors)))

    def orders(self) -> Iterator[int]:
        """Set some orders, one after another: for the body of a loop over them."""
        for seed, resident in ((1, 1), (2, 2), (3, 7)):
            self.configure(seed=seed, resident=resident)
            yield seed
        self.configure()

    @property
    def launches(self) -> int:
        """How many kernels have been launched so far."""
        return int(self._library.emulated_launches())

    def call(self, name: str, *arguments: object) -> None:
        """Call an entry point; integers go as 64 bits, arrays by address.

        Raises
        ------
        LaunchError
            If it does not return 0, with what the machine says of it.
        """
        code = getattr(self._library, name)(*map(_converted, arguments))
        room = ctypes.create_string_buffer(4096)
        self._library.emulated_take_error(room, ctypes.c_size_t(len(room)))
        if code != 0 or room.value:
            raise LaunchError(f"{name} returned {code}: {room.value.decode()}")


def _converted(argument: object) -> object:
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise TypeError("device memory is contiguous")
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, (bool, int, np.integer)):
        return ctypes.c_uint64(int(argument) & 0xFFFFFFFFFFFFFFFF)
    if argument is None or isinstance(argument, (ctypes.Structure, ctypes.Array, bytes)):
        return argument
    raise TypeError(f"an entry point takes arrays and numbers, not {type(argument).__name__}")
