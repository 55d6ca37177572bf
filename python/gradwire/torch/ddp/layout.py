"""What a bucket holds: named parameters, and how each of them travels."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.ddp.order import observe
from gradwire.torch.ddp.report import Tallies

__all__ = ["Layout", "Layouts", "Parameter", "Piece"]


@dataclass(slots=True, eq=False)
class Parameter:
    """One parameter, known by its name for as long as training lasts.

    Attributes
    ----------
    codec : gradwire.Codec or None
        How it is compressed now; None for a parameter that always travels dense, as all of these.
    state : gradwire.State or None
        Residual and controller.
    limit : SizeLimit or None
        Bytes that what varies in length may take: its frames, or the positions of a leader.
    turn : int
        Sets the order in which ranks lead for it: that of step s is s + turn, modulo their number.
    paused : bool
        It travels dense for now, and keeps its state.
    measured : numpy.ndarray or None
        float32, shape (numel,): the sum of this rank's gradients, where a schedule wants it.
    measured_before : numpy.ndarray or None
        The same without the last gradient.
    strides : tuple of int or None
        How its gradient lies in its bucket; its residual lies likewise. None before the first.
    """

    name: str
    tensor: torch.Tensor
    codec: Any = None
    state: Any = None
    limit: Any = None
    turn: int = 0
    paused: bool = False
    measured: NDArray[np.float32] | None = None
    measured_before: NDArray[np.float32] | None = None
    strides: tuple[int, ...] | None = None

    @property
    def compressed(self) -> bool:
        """Whether frames of it travel now."""
        return self.state is not None and not self.paused

    def measure(self, gradient: NDArray[Any]) -> None:
        """Add a gradient to what is measured, so that `unmeasure` takes back exactly this one."""
        if self.measured is None:
            return
        total = self.measured_before
        total = np.empty_like(self.measured) if total is None else total
        np.add(self.measured, gradient, out=total, casting="unsafe")
        self.measured, self.measured_before = total, self.measured

    def unmeasure(self) -> None:
        """Take back the last gradient. What it leaves is not to be taken back any further."""
        if self.measured is not None and self.measured_before is not None:
            self.measured, self.measured_before = self.measured_before, self.measured

    @property
    def numel(self) -> int:
        """Entries."""
        return self.tensor.numel()

    @property
    def width(self) -> int:
        """Numbers that an entry is in a bucket: DDP makes two of a complex one."""
        return 2 if self.tensor.is_complex() else 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A compressed parameter's place in a bucket's flat buffer: entries start to stop."""

    parameter: Parameter
    start: int
    stop: int


class Layout:
    """The parameters of one bucket, in the order of its buffer.

    Attributes
    ----------
    pieces : tuple of Piece
        What is compressed, one frame each.
    dense : tuple of Piece
        What travels as it is.
    runs : tuple of (int, int)
        Entries (start, stop) of the dense parameters, neighbours merged.
    dense_numel : int
        Entries in the runs, all together.
    dtype : torch.dtype
        Of the buffer's entries.
    sparse : bool
        The bucket is a sparse tensor, for a single parameter: there are no runs.
    digest : int
        CRC-32 of all of it; ranks compare it before they read each other's bytes.
    compressed : tuple of Parameter
        The parameters of the pieces.
    ends : list of int
        Where the pieces start and stop, one after another.
    tallies : Tallies
        Where all that is exchanged is counted.
    rows, dense_rows : numpy.ndarray
        Rows in there of the pieces, and of what travels as it is.
    dense_numels : numpy.ndarray
        Entries of each parameter that travels as it is.

    Parameters
    ----------
    parameters : sequence of Parameter
        In the order of the buffer.
    dtype : torch.dtype
        Of the buffer.
    tallies : Tallies, optional
        Of all parameters, these among them.
    rows : sequence of int, optional
        The row of each of these parameters in there: by default these are all, in this order.
    """

    __slots__ = (
        "compressed",
        "dense",
        "dense_numel",
        "dense_numels",
        "dense_rows",
        "digest",
        "dtype",
        "ends",
        "numel",
        "pieces",
        "rows",
        "runs",
        "sparse",
        "tallies",
    )

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: torch.dtype,
        tallies: Tallies | None = None,
        rows: Sequence[int] | None = None,
        *,
        sparse: bool = False,
    ) -> None:
        self.sparse = sparse
        pieces: list[Piece] = []
        dense: list[Piece] = []
        runs: list[tuple[int, int]] = []
        at = 0
        digest = zlib.crc32(f"{dtype}{' sparse' * sparse}".encode())
        all_rows = range(len(parameters)) if rows is None else rows
        piece_rows: list[int] = []
        dense_rows: list[int] = []
        for parameter, row in zip(parameters, all_rows, strict=True):
            piece = Piece(parameter, at, at + parameter.width * parameter.numel)
            at = piece.stop
            if parameter.compressed and not sparse:
                pieces.append(piece)
                piece_rows.append(row)
            else:
                dense.append(piece)
                dense_rows.append(row)
                if runs and runs[-1][1] == piece.start:
                    runs[-1] = (runs[-1][0], piece.stop)
                elif not sparse:
                    runs.append((piece.start, piece.stop))
            described = f"{parameter.name}\0{parameter.numel}\0{not parameter.compressed}\0"
            digest = zlib.crc32(described.encode(), digest)
        self.pieces = tuple(pieces)
        self.dense = tuple(dense)
        self.runs = tuple(runs)
        self.dense_numel = sum(stop - start for start, stop in runs)
        self.numel = at
        self.dtype = dtype
        self.digest = digest
        self.compressed = tuple(piece.parameter for piece in pieces)
        self.ends = [end for piece in pieces for end in (piece.start, piece.stop)]
        self.tallies = Tallies(len(parameters)) if tallies is None else tallies
        self.rows = np.array(piece_rows, np.intp)
        self.dense_rows = np.array(dense_rows, np.intp)
        self.dense_numels = np.array([piece.stop - piece.start for piece in dense], np.int64)


class Layouts:
    """Finds the layout of a bucket. DDP regroups its buckets, so nothing here is keyed by index.

    Attributes
    ----------
    tallies : Tallies
        A row of each parameter, in the order given, and one for all that the model no longer has.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        # The parameters are kept alive here, which keeps their ids valid.
        self._parameters = list(parameters)
        self._replaced = len(self._parameters)
        self._by_id = {id(each.tensor): row for row, each in enumerate(self._parameters)}
        self.tallies = Tallies(len(self._parameters) + 1)
        self._known: dict[tuple[int, ...], Layout] = {}

    def forget(self) -> None:
        """Make all layouts anew: other parameters travel dense than before."""
        self._known.clear()

    def of(self, tensors: Sequence[torch.Tensor], buffer: torch.Tensor) -> Layout:
        """Return the layout of a bucket, from its parameters and its flat buffer."""
        key = tuple(map(id, tensors))
        layout = self._known.get(key)
        if layout is None:
            layout = self._known[key] = self._make(key, tensors, buffer)
            for parameter in layout.compressed:
                observe(parameter)
        return layout

    def _make(
        self, key: tuple[int, ...], tensors: Sequence[torch.Tensor], buffer: torch.Tensor
    ) -> Layout:
        for tensor, id_ in zip(tensors, key, strict=True):
            if id_ not in self._by_id:
                # The model had it when it was wrapped, and has another one in its place now. DDP
                # goes on with the old one, and so does this, without compressing it.
                name = f"(replaced, shape {tuple(tensor.shape)})"
                self._by_id[id_] = len(self._parameters)
                self._parameters.append(Parameter(name, tensor))
        rows = [self._by_id[id_] for id_ in key]
        parameters = [self._parameters[row] for row in rows]
        # All that was replaced is counted together.
        rows = [min(row, self._replaced) for row in rows]
        sparse = buffer.layout != torch.strided
        layout = Layout(parameters, buffer.dtype, self.tallies, rows, sparse=sparse)
        if layout.numel != buffer.numel():
            raise RuntimeError(
                f"a bucket of {buffer.numel()} entries holds parameters of {layout.numel}"
            )
        return layout
