"""The interfaces of solvers and preparations, which use statistics of a layer's inputs."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gradwire.quantize import Affine

Floats = NDArray[np.float32]
Matrix = NDArray[np.float64]
Grids = tuple[NDArray[np.uint8], Floats, Floats]  # codes, steps and bases


@runtime_checkable
class Solver(Protocol):
    """Chooses codes: `GPTQ`, `COMQ`, or one of your own, as ``rounding=`` of `pack`."""

    def solve(self, w: Floats, gram: Matrix, affine: Affine) -> Grids:
        """Return codes, steps and bases.

        Parameters
        ----------
        w : numpy.ndarray
            float32, of shape (rows, cols): a row for each output of the layer.
        gram : numpy.ndarray
            float64, of shape (cols, cols): the sum of x x^T over all inputs x.
        affine : Affine
            Bits, fit, and a block that divides ``cols``.

        Returns
        -------
        tuple of numpy.ndarray
            Codes of shape (rows, cols), 0 to ``2 ** affine.bits - 1``; steps, not negative, and
            bases, of shape (rows, cols // affine.block). A weight becomes ``base + step * code``,
            where step and base are rounded to float16, times a power of two.
        """
        ...


@runtime_checkable
class Preparation(Protocol):
    """Changes weights before their codes are chosen: `MagR`, or one of your own."""

    def prepare(self, w: Floats, gram: Matrix, affine: Affine) -> Any:
        """Return weights in place of ``w``, of the same shape; parameters as of `Solver.solve`."""
        ...
