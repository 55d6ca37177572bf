"""COMQ: coordinate descent on codes, and least squares for the grids between."""

import dataclasses
from typing import Literal

from gradwire import _native, _validate
from gradwire.quantize import Affine
from gradwire.weights.solve.base import Floats, Grids, Matrix


@dataclasses.dataclass(frozen=True)
class COMQ:
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

    sweeps: int = 10
    start: Literal["gptq", "nearest"] = "gptq"
    damp: float = 0.01
    bases: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "sweeps", _validate.integer("sweeps", self.sweeps, low=1))
        _validate.choice("start", self.start, ("gptq", "nearest"))
        object.__setattr__(self, "damp", _validate.positive("damp", self.damp))
        _validate.boolean("bases", self.bases)

    def solve(self, w: Floats, gram: Matrix, affine: Affine) -> Grids:
        """Return codes, steps and bases: see `Solver.solve`.

        Raises
        ------
        ValueError
            As by `GPTQ.solve`.
        """
        return _native.solve_comq(
            w, gram, affine.get_config(), self.damp, self.sweeps, self.start, self.bases
        )
