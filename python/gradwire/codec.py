"""The codec: a sparsifier, a quantizer, a memory and an exchange, composed and immutable."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from gradwire import _compose, _native, _plugins, _validate, extension
from gradwire._part import Part, option_names, part_from_config
from gradwire._selecting import Selecting
from gradwire.exchange import EXCHANGES, AllGather, Exchange
from gradwire.memory import MEMORIES, Memory, Residual
from gradwire.quantize import QUANTIZERS, Float32, Quantizer
from gradwire.sparsify import SPARSIFIERS, Sparsifier
from gradwire.state import State

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Codec"]

IndexCoding = Literal["auto", "elias-fano", "rice", "bitmap"]
"""How positions may be coded; "auto" takes the smallest for each frame."""

# The defaults: parts are immutable, so that one of each serves all codecs.
_EXACT = Float32()
_KEEP = Residual()
_GATHER = AllGather()

_PARTS = {
    "sparsify": (*SPARSIFIERS, extension.Sparsifier),
    "quantize": QUANTIZERS,
    "memory": MEMORIES,
    "exchange": EXCHANGES,
}
_LATER: dict[str, Any] = {
    "exchange": _GATHER.get_config()
}  # entries that configurations once were without
_CODINGS = ("auto", "elias-fano", "rice", "bitmap")


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Codec(Part):
    """A way to turn tensors into frames. Frozen; all that changes lives in a `State`.

    Parameters
    ----------
    sparsify : Sparsifier
        Which entries go; see `gradwire.sparsify`.
    quantize : Quantizer
        What values they take; see `gradwire.quantize`. Exact float32 by default.
    memory : Memory
        What happens to the rest; see `gradwire.memory`. A residual by default.
    indices : {"auto", "elias-fano", "rice", "bitmap"}
        How positions are coded: the smallest for each frame, or always the same.
    exchange : Exchange
        How ranks combine their frames; see `gradwire.exchange`. An all-gather by default.

    Raises
    ------
    ValueError, TypeError
        A part of the wrong kind, a value out of range, or a composition without meaning.

    Examples
    --------
    >>> codec = gradwire.Codec(sparsify=gradwire.sparsify.TopK(ratio=0.01))
    >>> state = codec.init_state(x.size)
    >>> frame = codec.encode(x, state)
    >>> y = gradwire.decode(frame)
    """

    sparsify: Sparsifier
    quantize: Quantizer = _EXACT
    memory: Memory = _KEEP
    indices: IndexCoding = "auto"
    exchange: Exchange = _GATHER
    _codec: _native.Codec = dataclasses.field(init=False, compare=False)
    _encoder: "_native.Codec | Selecting" = dataclasses.field(init=False, compare=False)
    _open: bool = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        for name, classes in _PARTS.items():
            _validate.instance(name, getattr(self, name), classes, f"gradwire.{name}")
        _validate.choice("indices", self.indices, _CODINGS)
        if not isinstance(self.exchange, AllGather):  # which takes every codec
            self.exchange.check(self.sparsify, self.quantize)
        _compose.check(self.sparsify, self.quantize, self.memory)
        config = self.get_config()
        if isinstance(self.sparsify, extension.Sparsifier):
            config["sparsify"] = {"kind": "custom", "name": self.sparsify.kind}
            native = _native.Codec(config, self)
            self._set("_encoder", Selecting(native, self.sparsify))
        else:
            native = _native.Codec(config, self)
            self._set("_encoder", native)
        self._set("_codec", native)
        parts = [getattr(self, name) for name in _PARTS]
        self._set("_open", any(part.for_shape((2, 2)) is not part for part in parts))

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the codec for tensors of this shape.

        Options that depend on the shape are None until then, such as the column of
        `gradwire.quantize.TwoMeans`. A codec without any, or with all of them given, returns
        itself.

        Parameters
        ----------
        shape : sequence of int
            The shape of the tensor, whose elements are encoded flat.

        Returns
        -------
        Codec
            It can be used with every tensor of as many elements.
        """
        parts = {name: getattr(self, name) for name in _PARTS}
        shaped = {name: part.for_shape(shape) for name, part in parts.items()}
        if all(shaped[name] is part for name, part in parts.items()):
            return self
        return dataclasses.replace(self, **shaped)

    def init_state(self, numel: int, *, name: str | None = None, stream: int = 0) -> State:
        """Make the state of one tensor: residual, controller, step count.

        Parameters
        ----------
        numel : int
            Entries of the tensor, at most 2**32 - 1.
        name : str, optional
            Named in errors about this tensor, such as `NonFiniteError`. Codecs that draw random
            numbers draw others for other names.
        stream : int
            Codecs that round by chance draw other numbers in other streams: the rank, so that the
            errors of ranks are independent. What is *selected* by chance does not depend on it.
        """
        stream = _validate.integer("stream", stream, low=0)
        return State(self, _numel(numel), name=name, stream=stream)

    def encode(
        self, x: "NDArray[Any]", state: State | None = None, *, max_nbytes: int | None = None
    ) -> _native.Frame:
        """Encode one tensor.

        A transaction: on any error the state is what it was. The tensor is read in place, twice,
        or three times with ``low_memory``; a residual is written once. Other Python threads run
        meanwhile; none of them may write to ``x``.

        Besides the frame, an encode needs scratch memory: up to 16 bytes per entry that is in the
        running for a selection (as a rule three times the entries sent, or 1/64 of the tensor if
        that is more). Each thread keeps up to 64 MiB of it for its next encode.

        A signal such as Ctrl-C is handled before the encode commits: if its handler raises, the
        state is what it was, and the encode can be repeated. With ``low_memory`` there is no way
        back once the residual is being overwritten. A signal that arrives then is raised with the
        frame as its attribute ``frame`` (``nbytes`` from `encode_into`): send it, or save it with
        the state.

        Parameters
        ----------
        x : numpy.ndarray
            float32, float64 or float16 (or ``ml_dtypes.bfloat16``), any shape, C-contiguous;
            float64 is rounded to float32 first. Encoded flat, never written to.
        state : State, optional
            What `init_state` of this codec made; updated. Without a memory it may be left out.
        max_nbytes : int, optional
            Limit of the frame's size: the smallest selected entries are left to the residual until
            it fits.

        Returns
        -------
        Frame
            A read-only buffer of bytes to put onto a wire.

        Raises
        ------
        NonFiniteError
            NaN or infinity in ``x``, or in ``x`` plus residual.
        InputChangedError
            Another thread wrote to ``x`` during the call, and no frame could be made of what was
            read. With ``low_memory`` the residual may have taken in some of it.
        StateInUseError
            Another thread is encoding with this state.
        ValueError
            Not contiguous; another length than the state's; a state of another codec;
            no frame can fit into ``max_nbytes``; an ``x`` of several dimensions with a codec that
            wants to be told the shape by `for_shape`.
        TypeError
            Not an array, or of another dtype.
        MemoryError
            Not enough memory; the state is what it was.
        """
        return self._encode(x, state, max_nbytes)

    def encode_into(
        self,
        x: "NDArray[Any]",
        state: State | None,
        out: "bytearray | memoryview | NDArray[np.uint8]",
        *,
        max_nbytes: int | None = None,
    ) -> int:
        """Encode like `encode`, into a buffer of the caller's.

        Parameters
        ----------
        x, state
            As in `encode`.
        out : numpy.ndarray
            uint8, writable, C-contiguous, sharing no memory with ``x``. The frame is trimmed to fit
            into it, its smallest entries first; they stay in the residual.
        max_nbytes : int, optional
            A limit below the length of ``out``.

        Returns
        -------
        int
            Bytes written at the start of ``out``; the rest of it is left alone.

        Raises
        ------
        GradwireError, ValueError, TypeError
            As `encode`, and for an ``out`` that cannot be written to or shares memory with ``x``.
            Bytes of ``out`` are written on success only.
        """
        return self._encode_into(x, state, out, max_nbytes)

    def encode_at(
        self, x: "NDArray[Any]", state: State | None, positions: "NDArray[np.uint32]"
    ) -> _native.Frame:
        """Encode the entries at these positions, instead of those the codec would select.

        A transaction like `encode`, with the same memory and quantizer. Entries go whatever they
        are, zeros too, and none is left out. One read of x and memory, one write of the memory, and
        the positions themselves. What the sparsifier tracks stays as it is.

        Parameters
        ----------
        x, state
            As in `encode`.
        positions : numpy.ndarray
            uint32, shape (count,), strictly ascending, each below ``x.size``.

        Returns
        -------
        Frame
            As `encode` returns.

        Raises
        ------
        NonFiniteError, InputChangedError, StateInUseError
            As `encode`.
        ValueError
            As `encode`; positions that do not ascend or are out of range; a codec that sends
            every entry. The state is what it was.
        TypeError
            As `encode`; positions that are not an array of uint32.
        """
        self._check_shape(x)
        return self._codec.encode_at(x, state, positions)

    def encode_at_into(
        self,
        x: "NDArray[Any]",
        state: State | None,
        positions: "NDArray[np.uint32]",
        out: "bytearray | memoryview | NDArray[np.uint8]",
    ) -> int:
        """Encode like `encode_at`, into a buffer of the caller's.

        Parameters
        ----------
        x, state, positions
            As in `encode_at`.
        out : numpy.ndarray
            uint8, writable, C-contiguous, sharing no memory with ``x`` or ``positions``.

        Returns
        -------
        int
            Bytes written at the start of ``out``; the rest of it is left alone.

        Raises
        ------
        GradwireError, ValueError, TypeError
            As `encode_at`, and for an ``out`` that cannot be written to, shares memory with an
            input or is too short: nothing is trimmed, and the state is what it was.
        """
        self._check_shape(x)
        return self._codec.encode_at_into(x, state, positions, out)

    def preview(self, x: "NDArray[Any]", state: State | None = None) -> "NDArray[np.float32]":
        """Return what the sparsifier of the next `encode` would see: x and memory together.

        The state stays as it is. One read of x and memory, and a new array.

        Parameters
        ----------
        x, state
            As in `encode`.

        Returns
        -------
        numpy.ndarray
            float32, shape (x.size,).

        Raises
        ------
        NonFiniteError, StateInUseError, ValueError, TypeError
            As `encode`.
        """
        return self._codec.preview(x, state)

    def flush(self, state: State) -> _native.Frame:
        """Encode all that was left, exactly, and leave a residual of zeros.

        For the end of training, or before an evaluation: what the frames of all ranks come to is
        what was not sent yet. It counts as an encode, which `State.rollback` can undo. The residual
        is read once and written once.

        Parameters
        ----------
        state : State
            What `init_state` of this codec made; updated.

        Returns
        -------
        Frame
            Dense float32: as long as the tensor.

        Raises
        ------
        ValueError
            The codec has no memory; a state of another codec.
        StateInUseError
            Another thread is encoding with this state.
        TypeError
            Not a state.
        """
        return self._codec.flush(state)

    def max_encoded_len(self, numel: int) -> int:
        """Return the size in bytes that no frame of a tensor of numel entries exceeds."""
        return self._encoder.max_encoded_len(_numel(numel))

    def _encode(
        self,
        x: "NDArray[Any]",
        state: State | None,
        max_nbytes: int | None,
        bfloat16: bool = False,
    ) -> _native.Frame:
        """Encode an array, or the array that shares a tensor's memory: the way of both."""
        if max_nbytes is not None:
            max_nbytes = _validate.integer("max_nbytes", max_nbytes, low=0)
        self._check_shape(x)
        return self._encoder.encode(x, state, max_nbytes, bfloat16)

    def _encode_into(
        self,
        x: "NDArray[Any]",
        state: State | None,
        out: "bytearray | memoryview | NDArray[np.uint8]",
        max_nbytes: int | None,
        bfloat16: bool = False,
    ) -> int:
        if max_nbytes is not None:
            max_nbytes = _validate.integer("max_nbytes", max_nbytes, low=0)
        self._check_shape(x)
        return self._encoder.encode_into(x, state, out, max_nbytes, bfloat16)

    def _check_shape(self, x: object) -> None:
        if self._open and getattr(x, "ndim", 1) > 1:
            raise ValueError(
                f"{self!r} has options that depend on the shape of the tensor: encode with "
                f"codec.for_shape({tuple(getattr(x, 'shape', ()))}), or a flat tensor"
            )

    def get_config(self) -> dict[str, Any]:
        """Return the codec as a plain, JSON-able dict; `from_config` is the way back."""
        return {
            "sparsify": self.sparsify.get_config(),
            "quantize": self.quantize.get_config(),
            "memory": self.memory.get_config(),
            "indices": self.indices,
            "exchange": self.exchange.get_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the codec that `get_config` describes, also one of before there were exchanges.

        Raises
        ------
        ValueError, TypeError
            A missing or unknown entry, or a value that the part refuses.
        """
        expected = option_names(cls).keys()
        if not isinstance(config, dict):
            raise TypeError(f"config must be a dict, got {config!r} ({type(config).__name__})")
        config = _LATER | config
        if config.keys() != expected:
            raise ValueError(
                f"config must have exactly the keys {', '.join(sorted(expected))}, "
                f"got {', '.join(sorted(map(str, config)))}"
            )
        parts: dict[str, Any] = {
            name: part_from_config(name, config[name], _known(name, config[name], classes))
            for name, classes in _PARTS.items()
        }
        return cls(indices=config["indices"], **parts)

    def __repr__(self) -> str:
        # `gradwire.codec.Codec` is exported as `gradwire.Codec`.
        return super().__repr__().replace("gradwire.codec.", "gradwire.", 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_config, (self.get_config(),)


def _known(name: str, config: Any, classes: tuple[type[Part], ...]) -> tuple[type[Part], ...]:
    """Return the classes that a part of a configuration can be of."""
    if name != "sparsify":
        return classes
    kind = config.get("kind") if isinstance(config, dict) else None
    if all(kind != each.kind for each in SPARSIFIERS):
        custom = _plugins.find(kind)
        if custom is not None:
            return (*SPARSIFIERS, custom)
    return SPARSIFIERS


def _numel(value: object) -> int:
    return _validate.integer("numel", value, low=0, high=_validate.MAX_NUMEL)
