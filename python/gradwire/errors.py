"""The exceptions of the package, one class per kind of error.

Invalid arguments raise a plain `ValueError` or `TypeError`. All other exceptions derive from
`GradwireError`. Those about the bytes of a frame or the values of a tensor are also `ValueError`,
so callers can catch them without importing this package. Exceptions can be pickled and keep their
attributes.
"""

__all__ = [
    "BaseMismatchError",
    "CorruptFileError",
    "CorruptFrameError",
    "DeviceError",
    "ExtensionError",
    "FrameTooLargeError",
    "GradwireError",
    "InputChangedError",
    "NonFiniteError",
    "PluginError",
    "StateInUseError",
    "TruncatedFrameError",
    "UnsupportedFrameError",
]


class GradwireError(Exception):
    """Base class of the exceptions of this package."""


class CorruptFrameError(GradwireError, ValueError):
    """The bytes are not a valid frame: wrong magic number, checksum, lengths or contents.

    Attributes
    ----------
    reason : str
        What violates the format.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"corrupt frame: {self.reason}"


class CorruptFileError(GradwireError, ValueError):
    """A file of weights is not valid: its header, its metadata, or a packed tensor.

    Attributes
    ----------
    reason : str
        What violates the format.
    name : str or None
        The corrupt tensor, if the error concerns one.
    """

    def __init__(self, reason: str, name: str | None = None) -> None:
        super().__init__(reason, name)
        self.reason = reason
        self.name = name

    def __str__(self) -> str:
        about = "" if self.name is None else f"tensor {self.name!r}: "
        return f"corrupt file: {about}{self.reason}"


class TruncatedFrameError(CorruptFrameError):
    """The bytes end before the frame does; reading more from the stream may help.

    Attributes
    ----------
    what : str
        The part that is incomplete.
    need, have : int
        Bytes needed up to the end of that part, and bytes given.
    """

    def __init__(self, what: str, need: int, have: int) -> None:
        super().__init__(f"{what} needs {need} bytes, got {have}")
        self.args = (what, need, have)
        self.what = what
        self.need = need
        self.have = have

    def __str__(self) -> str:
        return f"truncated frame: {self.reason}"


class FrameTooLargeError(GradwireError, ValueError):
    """The frame has more elements than the caller accepts.

    Attributes
    ----------
    numel, limit : int
        Elements that the frame claims to have, and elements that ``max_numel`` or ``out`` allows.
    """

    def __init__(self, numel: int, limit: int) -> None:
        super().__init__(numel, limit)
        self.numel = numel
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"frame of {self.numel} elements exceeds the limit of {self.limit}; "
            "pass a larger max_numel= or out= if the sender is trusted"
        )


class UnsupportedFrameError(GradwireError, ValueError):
    """The frame needs a newer version of this library, or a part from another package.

    Attributes
    ----------
    what : str
        The header field.
    found : int or str
        Its value, or the kind of a part that no installed package has.
    """

    def __init__(self, what: str, found: int | str) -> None:
        super().__init__(what, found)
        self.what = what
        self.found = found

    def __str__(self) -> str:
        if isinstance(self.found, str):
            return (
                f"unsupported frame: its {self.what} {self.found!r} is from another package; "
                "install or import the one that the sender uses"
            )
        return (
            f"unsupported frame: this version does not know {self.what} {self.found}; "
            "update gradwire"
        )


class NonFiniteError(GradwireError, ValueError):
    """A tensor to encode has NaN or infinite entries. The state does not change.

    Attributes
    ----------
    count : int
        Number of entries that are NaN or infinite after the residual was added.
    first : int
        Flat position of the first one.
    name : str or None
        Name of the tensor's state, as passed to ``init_state(..., name=)``.
    """

    def __init__(self, count: int, first: int, name: str | None = None) -> None:
        super().__init__(count, first, name)
        self.count = count
        self.first = first
        self.name = name

    def __str__(self) -> str:
        return (
            f"{_tensor(self.name)} has {self.count} non-finite value(s), the first at position "
            f"{self.first}; nothing was encoded, and the state is unchanged"
        )


class InputChangedError(GradwireError, RuntimeError):
    """Another thread wrote to a tensor while it was being encoded.

    The state does not change.

    Attributes
    ----------
    name : str or None
        Name of the tensor's state, as passed to ``init_state(..., name=)``.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"{_tensor(self.name)} changed while it was being encoded, so nothing was encoded; "
            "do not write to it from another thread during the call, or encode a copy"
        )


class BaseMismatchError(GradwireError, ValueError):
    """A patch was made from another base, or is applied a second time. The model is unchanged."""


class StateInUseError(GradwireError, RuntimeError):
    """Two threads used one state at the same time, or two publishers one folder."""


class ExtensionError(GradwireError, RuntimeError):
    """The CUDA extension is missing, or cannot be built or loaded; the message says what to do."""


class DeviceError(GradwireError, RuntimeError):
    """A device is lost to this process, or the process was forked from one that used it.

    All data on it is lost, including residuals kept by kernels. End the process, and resume from a
    checkpoint.
    """


class PluginError(GradwireError):
    """A preset or a part from another distribution cannot be used.

    Attributes
    ----------
    preset : str
        Name of the preset, or kind of the part.
    distribution : str
        Name of the distribution that provides it, or of the module that defines the part.
    reason : str
        What is wrong with it.
    what : str
        "preset", or "quantizer".
    """

    def __init__(self, preset: str, distribution: str, reason: str, what: str = "preset") -> None:
        super().__init__(preset, distribution, reason, what)
        self.preset = preset
        self.distribution = distribution
        self.reason = reason
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} {self.preset!r} from {self.distribution} cannot be used: {self.reason}"


def _tensor(name: str | None) -> str:
    return "the tensor" if name is None else f"tensor {name!r}"
