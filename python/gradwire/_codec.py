"""The codec: an immutable composition of a sparsifier, a quantizer, a memory and an exchange."""

import dataclasses
import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from numpy import ndarray

from gradwire import _native, _outside, _plugins, _validate, extension
from gradwire._part import Part, check_part, option_names, part_from_config
from gradwire.exchange import ByRanks, Exchange
from gradwire.memory import Memory, Residual
from gradwire.quantize import Float32, Quantizer
from gradwire.sparsify import Sparsifier
from gradwire.state import State, on_host

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

__all__ = ["Codec"]

IndexCoding = Literal["auto", "elias-fano", "rice", "bitmap"]  # "auto": the smallest of each frame

# Parts are immutable, so one instance of each can be the default of all codecs and presets.
EXACT = Float32()
KEEP = Residual()
BY_RANKS = ByRanks()

_PARTS: dict[str, type[Part]] = {
    "sparsify": Sparsifier,
    "quantize": Quantizer,
    "memory": Memory,
    "exchange": Exchange,
}
_FROM_OUTSIDE = ("sparsify", "quantize")  # parts that other packages may define


class _Parts(TypedDict, total=False):
    sparsify: Sparsifier
    quantize: Quantizer
    memory: Memory
    indices: IndexCoding
    exchange: Exchange


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Codec(Part):
    """Encode tensors as frames. Immutable: everything that changes is in a `State`.

    Parameters
    ----------
    sparsify : gradwire.sparsify.Sparsifier
        Selects the entries to send.
    quantize : gradwire.quantize.Quantizer
        Codes the values that are sent. Exact float32 by default.
    memory : gradwire.memory.Memory
        Keeps the entries that are not sent. A residual by default.
    indices : {"auto", "elias-fano", "rice", "bitmap"}
        Coding of the positions: the smallest for each frame ("auto"), or always the same.
    exchange : gradwire.exchange.Exchange
        How ranks combine their frames. By default, an all-gather among few ranks, and a
        reduce-scatter among many: `gradwire.exchange.ByRanks`.

    Raises
    ------
    ValueError, TypeError
        A part of the wrong kind, a value out of range, or parts that do not fit together.

    Examples
    --------
    >>> codec = gradwire.Codec(sparsify=gradwire.sparsify.TopK(ratio=0.01))
    >>> state = codec.init_state(x)
    >>> frame = codec.encode(x, state)
    >>> y = gradwire.decode(frame)
    """

    sparsify: Sparsifier
    quantize: Quantizer = EXACT
    memory: Memory = KEEP
    indices: IndexCoding = "auto"
    exchange: Exchange = BY_RANKS
    _codec: _native.Codec = dataclasses.field(init=False, compare=False)
    _encoder: "_native.Codec | _outside.SelectingCodec" = dataclasses.field(
        init=False, compare=False
    )
    _open: bool = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        for name, base in _PARTS.items():
            check_part(name, getattr(self, name), base)
        super().__post_init__()
        self.exchange.check(self.sparsify, self.quantize, self.memory)
        self.quantize.check(self.sparsify)
        if self.memory.keeps:
            self.quantize.check_feedback()
        elif self.quantize.needs_memory:
            warnings.warn(
                f"{type(self.quantize).__name__} sends little more than signs; without a memory "
                "the rest is lost in every step, and training may not converge; use "
                "memory=gradwire.memory.Residual()",
                UserWarning,
                stacklevel=_caller(),
            )
        native = self._compiled()
        self._set("_codec", native)
        if isinstance(self.sparsify, extension.Sparsifier):
            self._set("_encoder", _outside.SelectingCodec(native, self.sparsify))
        else:
            self._set("_encoder", native)
        parts = [getattr(self, name) for name in _PARTS]
        self._set("_open", any(part.for_shape((2, 2)) is not part for part in parts))

    def _compiled(self) -> _native.Codec:
        """Return the compiled codec, which calls the parts that are written in Python."""
        config = self.get_config()
        config["memory"] = self.memory.for_optimizer({}).get_config()
        values = None
        if isinstance(self.sparsify, extension.Sparsifier):
            config["sparsify"] = {"kind": "custom", "name": self.sparsify.kind}
        if isinstance(self.quantize, extension.Quantizer):
            # Values are carried exactly to those that code them.
            config["quantize"], values = EXACT.get_config(), _outside.Values(self.quantize)
        return _native.Codec(config, self, values)

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the codec for tensors of this shape.

        Options that depend on the shape, such as the column of `gradwire.quantize.TwoMeans`, are
        None by default. A codec that has no such options, or has them all set, returns itself.
        Tensors are encoded flat whatever their shape.

        Parameters
        ----------
        shape : sequence of int
            Shape of the tensors.

        Returns
        -------
        Codec
        """
        parts = {name: getattr(self, name) for name in _PARTS}
        shaped = {name: part.for_shape(shape) for name, part in parts.items()}
        if all(shaped[name] is part for name, part in parts.items()):
            return self
        return self.replace(**shaped)

    def replace(self, **parts: Unpack[_Parts]) -> Self:
        """Return a copy of this codec with the given parts replaced.

        Parameters
        ----------
        sparsify, quantize, memory, indices, exchange
            As for `Codec`.

        Raises
        ------
        ValueError, TypeError
            As of `Codec`; also a TypeError for an argument that is not a part.

        Examples
        --------
        >>> half = gradwire.topk(ratio=0.01).replace(quantize=gradwire.quantize.BFloat16())
        """
        present: Any = {name: getattr(self, name) for name in option_names(type(self))}
        return type(self)(**present | parts)

    def init_state(
        self,
        numel: "int | NDArray[Any] | torch.Tensor",
        *,
        name: str | None = None,
        stream: int = 0,
    ) -> State:
        """Create the state of one tensor: residual, controller and step count.

        Parameters
        ----------
        numel : int, numpy.ndarray or torch.Tensor
            Number of entries of the tensor, at most 2**32 - 1; or a tensor of the same size. For a
            torch tensor this is `gradwire.torch.init_state`.
        name : str, optional
            Name of the tensor, for errors such as `NonFiniteError`. Random numbers depend on it.
        stream : int
            Stream of the random numbers for stochastic rounding. Pass the rank, so that the
            rounding errors of ranks are independent. Random *selection* does not depend on it.
        """
        if (tensors := _tensors(numel)) is not None:
            state: State = tensors.init_state(self, numel, name=name, stream=stream)
            return state
        stream = _validate.integer("stream", stream, low=0)
        size = numel.size if isinstance(numel, ndarray) else numel
        return State(self, _numel(size), name=name, stream=stream)

    def encode(
        self,
        x: "NDArray[Any] | torch.Tensor",
        state: State | None = None,
        *,
        max_nbytes: int | None = None,
    ) -> _native.Frame:
        """Encode one tensor.

        Encoding is a transaction: if it fails, the state is unchanged. The tensor is read in
        place, usually once (see `gradwire.sparsify`). The residual is written once. Other Python
        threads can run, but must not write to ``x``.

        Besides the frame it needs scratch memory: up to 16 bytes per candidate entry (usually three
        times the entries sent, or 1/64 of the tensor if that is more). Each thread keeps up to 64
        MiB of it for its next encode.

        A signal such as Ctrl-C is handled before the encode commits: if its handler raises, the
        state is unchanged.

        Parameters
        ----------
        x : numpy.ndarray or torch.Tensor
            float32, float64 or float16 (or ``ml_dtypes.bfloat16``), any shape, C-contiguous;
            float64 is rounded to float32 first. Encoded flat; not modified. For a torch tensor
            this is `gradwire.torch.encode`.
        state : State, optional
            A state from `init_state` of this codec; updated. Only codecs without a memory and
            without random numbers may omit it.
        max_nbytes : int, optional
            Maximum size of the frame. The smallest selected entries are left in the residual until
            the frame fits.

        Returns
        -------
        Frame
            A read-only buffer of the bytes to send.

        Raises
        ------
        NonFiniteError
            NaN or infinity in ``x``, or in ``x`` plus residual.
        InputChangedError
            Another thread wrote to ``x`` during the call, and the values read are inconsistent.
        StateInUseError
            Another thread is encoding with this state.
        ValueError
            ``x`` is not contiguous, has a different length than the state, or has several
            dimensions and the codec needs `for_shape`; the state belongs to another codec; no frame
            fits into ``max_nbytes``.
        TypeError
            ``x`` is not an array, or has the wrong dtype.
        MemoryError
            Not enough memory; the state is unchanged.
        """
        if type(x) is not ndarray and (tensors := _tensors(x)) is not None:
            frame: _native.Frame = tensors.encode(self, x, state, max_nbytes=max_nbytes)
            return frame
        return self._encode(x, state, max_nbytes)

    def encode_into(
        self,
        x: "NDArray[Any] | torch.Tensor",
        state: State | None,
        out: "bytearray | memoryview | NDArray[np.uint8] | torch.Tensor",
        *,
        max_nbytes: int | None = None,
    ) -> int:
        """Encode at the start of a buffer of the caller, and return the number of bytes written.

        Otherwise like `encode`. The rest of ``out`` is unchanged; it is written only on success, or
        if a signal handler raises.

        Parameters
        ----------
        out : numpy.ndarray or torch.Tensor
            uint8, writable, C-contiguous, sharing no memory with ``x``: else a ValueError or
            TypeError. If the frame does not fit, its smallest entries are left out; they stay in
            the residual. A torch tensor if ``x`` is one: this is `gradwire.torch.encode_into`.
        max_nbytes : int, optional
            A limit below the length of ``out``.
        """
        if type(x) is not ndarray and (tensors := _tensors(x)) is not None:
            nbytes: int = tensors.encode_into(self, x, state, out, max_nbytes=max_nbytes)
            return nbytes
        return self._encode_into(x, state, out, max_nbytes)

    def encode_at(
        self,
        x: "NDArray[Any] | torch.Tensor",
        state: State | None,
        positions: "NDArray[np.uint32] | torch.Tensor",
    ) -> _native.Frame:
        """Encode the entries at given positions instead of those that the codec would select.

        A transaction like `encode`, with the same memory and quantizer. Exactly these entries are
        sent, including zeros. Reads ``x``, the memory and the positions once and writes the memory
        once. The sparsifier's running state does not change.

        Parameters
        ----------
        x : numpy.ndarray or torch.Tensor
            As in `encode`; a torch tensor that is not on the CPU is copied to the host, where
            the state is from then on.
        positions : numpy.ndarray or torch.Tensor
            uint32, shape (count,), strictly ascending, each below ``x.size``.

        Raises
        ------
        GradwireError, ValueError, TypeError
            As `encode`; also a ValueError if positions do not ascend or are out of range, or if the
            codec sends every entry, and a TypeError if they are not an array of uint32. The state
            is unchanged.
        """
        if type(x) is not ndarray and (tensors := _tensors(x)) is not None:
            frame: _native.Frame = tensors.encode_at(self, x, state, positions)
            return frame
        return self._encode_at(x, state, positions)

    def preview(self, x: "NDArray[Any]", state: State | None = None) -> "NDArray[np.float32]":
        """Return what the sparsifier would see in the next `encode`: the sum of ``x`` and memory.

        The state does not change; ``x`` and the memory are read once. Errors are those of `encode`.

        Parameters
        ----------
        x, state
            As of `encode`.

        Returns
        -------
        numpy.ndarray
            A new array, float32 of shape (x.size,).
        """
        return self._codec.preview(x, on_host(state))

    def flush(self, state: State) -> _native.Frame:
        """Encode the whole residual exactly, and set it to zero.

        Use it at the end of training or before an evaluation: the sum of the frames of all ranks is
        everything not sent yet. The frame is dense, in float32. It counts as an encode, which
        `State.rollback` can undo. The residual is read once and written once.

        Raises
        ------
        ValueError
            The codec has no memory, or the state belongs to another codec.
        StateInUseError
            Another thread is encoding with this state.
        TypeError
            Not a state.
        """
        frame: _native.Frame = self._transaction(
            lambda x, held, undo: self._codec.flush(held, undo), None, state
        )
        return frame

    def max_encoded_len(self, numel: int) -> int:
        """Return an upper bound on the frames of a tensor.

        Parameters
        ----------
        numel : int
            Entries of the tensor, at most 2**32 - 1.

        Returns
        -------
        int
            Bytes.
        """
        return self._encoder.max_encoded_len(_numel(numel))

    def _encode(
        self, x: Any, state: State | None, max_nbytes: int | None, bfloat16: bool = False
    ) -> _native.Frame:
        """Encode a numpy array, or the array that shares the memory of a torch tensor."""
        most = _limit(max_nbytes)
        frame: _native.Frame = self._transaction(self._encoder.encode, x, state, most, bfloat16)
        return frame

    def _encode_into(
        self, x: Any, state: State | None, out: Any, max_nbytes: int | None, bfloat16: bool = False
    ) -> int:
        most, into = _limit(max_nbytes), self._encoder.encode_into
        nbytes: int = self._transaction(into, x, state, out, most, bfloat16)
        return nbytes

    def _encode_at(
        self, x: Any, state: State | None, positions: Any, bfloat16: bool = False
    ) -> _native.Frame:
        at = self._codec.encode_at
        frame: _native.Frame = self._transaction(at, x, state, positions, None, bfloat16, False)
        return frame

    def _transaction(
        self, act: Callable[..., Any], x: Any, state: State | None, *options: Any
    ) -> Any:
        """Encode with the core; until its result is here, any exception undoes the encode."""
        if self._open and getattr(x, "ndim", 1) > 1:
            raise ValueError(
                f"{self!r} has options that depend on the shape of the tensor; encode with "
                f"codec.for_shape({tuple(getattr(x, 'shape', ()))}), or pass a flat tensor"
            )
        held = state if type(state) is State else on_host(state)
        undo: list[Any] = [None]
        try:
            return act(x, held, *options, undo)
        except BaseException as error:
            self._codec.retract(held, error, undo)
            raise

    def get_config(self) -> dict[str, Any]:
        """Return the codec as a plain, JSON-able dict, for `from_config`."""
        return self._options()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the codec that `get_config` describes.

        Raises
        ------
        ValueError, TypeError
            A missing or unknown entry, or a value that its part does not accept.
        """
        expected = option_names(cls)
        _validate.keys("config", config, expected)
        return cls(**{name: _part(name, config[name]) for name in expected})

    def __repr__(self) -> str:
        # `gradwire._codec.Codec` is exported as `gradwire.Codec`.
        return super().__repr__().replace("gradwire._codec.", "gradwire.", 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_config, (self.get_config(),)


def _tensors(x: object) -> Any:
    """Return `gradwire.torch.tensors` for a torch tensor; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, getattr(torch, "Tensor", ())):
        return None
    return importlib.import_module("gradwire.torch.tensors")


def _caller() -> int:
    """Return the depth of the first stack frame outside the package: that of a preset's caller."""
    frame, depth = sys._getframe(1), 1
    while frame.f_globals.get("__name__", "").partition(".")[0] == "gradwire" and frame.f_back:
        frame, depth = frame.f_back, depth + 1
    return depth


def _part(name: str, config: Any) -> Any:
    """Build a part from its configuration; a coding of positions has only a name."""
    if name == "indices":
        return config
    kinds = _PARTS[name].KINDS
    if name in _FROM_OUTSIDE and isinstance(config, dict) and config.get("kind") not in kinds:
        _plugins.search(config.get("kind"), kinds)
    return part_from_config(name, config, kinds)


def _limit(max_nbytes: int | None) -> int | None:
    return None if max_nbytes is None else _validate.integer("max_nbytes", max_nbytes, low=0)


def _numel(value: object) -> int:
    return _validate.integer("numel", value, low=0, high=_validate.MAX_NUMEL)
