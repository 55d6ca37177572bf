"""Solvers, which choose codes by statistics of a layer's inputs, and preparations of weights."""

import dataclasses
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwire import _native
from gradwire._validate import Checked, Count, NotNegative
from gradwire.quantize import Affine

Floats = NDArray[np.float32]
Matrix = NDArray[np.float64]
Grids = tuple[NDArray[np.uint8], Floats, Floats]  # codes, steps and bases


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

        Raises
        ------
        ValueError
            ``gram`` is not a Gram matrix of that many columns, or singular without damping; the
            block does not divide a row.
        """
        ...


class Preparation(Protocol):
    """Changes weights before their codes are chosen: `MagR`, or one of your own."""

    def prepare(self, w: Floats, gram: Matrix, affine: Affine) -> Any:
        """Return weights in place of ``w``, of the same shape; parameters as of `Solver.solve`."""
        ...


@dataclasses.dataclass(frozen=True)
class GPTQ(Checked):
    """Rounds the weights of one input after another; the following ones compensate the error.

    Inputs with large means of squares come first. Grids are those of ``affine.fit``, but
    ``"range"`` replaces ``"squares"``: a grid with a small error of weights need not have a small
    error of outputs.

    Parameters
    ----------
    damp : float
        Term added to the diagonal of the Gram matrix, as a share of its mean.

    References
    ----------
    Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
    Pre-trained Transformers", ICLR 2023, algorithm 1. Computed without an inverse, from the
    factorisation of Chee, Cai, Kuleshov, De Sa, "QuIP", NeurIPS 2023, section 3 (equal codes).
    """

    damp: NotNegative = 0.01

    def solve(self, w: Floats, gram: Matrix, affine: Affine) -> Grids:
        """Return codes, steps and bases: see `Solver.solve`."""
        return _native.solve_gptq(w, gram, affine.get_config(), self.damp)


@dataclasses.dataclass(frozen=True)
class COMQ(Checked):
    """Sets one code after another to its optimum, then the grid of their block.

    Every change is the exact minimum of the damped squared error of the layer's outputs over the
    changed values. In the end, a row keeps whichever codes have the smallest error without damping:
    these, GPTQ's, or the nearest. The paper has the codes, and a step by
    least squares. Ours are the start from GPTQ's codes, least squares over step and base of a block
    together, and GPTQ's codes for the new grids in every second sweep, where they are better: all
    matter most at 2 and 3 bits.

    Parameters
    ----------
    sweeps : int
        Maximum number of sweeps over all codes and grids; rows that no longer change are skipped.
    start : {"gptq", "nearest"}
        Codes to begin with: row by row the better ones of GPTQ's and the nearest, or these.
    damp : float
        As of `GPTQ`.
    bases : bool
        False for steps only, around the middle of the codes, as in the paper.

    References
    ----------
    Zhang, Yang, Wang, Qi, Xin, Li, Yin, "COMQ: A Backpropagation-Free Algorithm for Post-Training
    Quantization", IEEE Access 2025, section 3.
    """

    sweeps: Count = 10
    start: Literal["gptq", "nearest"] = "gptq"
    damp: NotNegative = 0.01
    bases: bool = True

    def solve(self, w: Floats, gram: Matrix, affine: Affine) -> Grids:
        """Return codes, steps and bases: see `Solver.solve`."""
        return _native.solve_comq(
            w, gram, affine.get_config(), self.damp, self.sweeps, self.start, self.bases
        )


@dataclasses.dataclass(frozen=True)
class MagR(Checked):
    """Shrinks the largest magnitudes of each block, and preserves the layer's outputs.

    A smaller range gives a finer grid. It helps if blocks are long and a few weights are far larger
    than the others: see ``docs/weights-inside.md``.

    Parameters
    ----------
    alpha : float
        The weight of the largest magnitudes against the squared error of the outputs, where the
        Gram matrix is divided by its largest eigenvalue.
    steps : int
        Of accelerated proximal gradient descent (FISTA).

    References
    ----------
    Zhang, Wang, Deng, Li, Yang, Yin, "MagR: Weight Magnitude Reduction for Enhancing Post-Training
    Quantization", NeurIPS 2024, section 3. The acceleration is ours (FISTA: Beck and Teboulle,
    SIAM Journal on Imaging Sciences 2009), and so are maxima of blocks in place of rows.
    """

    alpha: NotNegative = 1e-4
    steps: Count = 150

    def prepare(self, w: Floats, gram: Matrix, affine: Affine) -> Floats:
        """Return weights in place of ``w``: see `Preparation.prepare`."""
        block = w.shape[1] if affine.block is None else affine.block
        return _native.solve_magr(w, gram, block, self.alpha, self.steps)
