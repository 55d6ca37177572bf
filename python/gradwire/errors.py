"""Every exception of the package: one class for each way to be wrong.

A wrong argument is a plain `ValueError` or `TypeError`. All else derives from `GradwireError`;
what concerns the bytes of a frame or the values of a tensor is a `ValueError` as well, so code
that knows nothing of this package can catch it. Exceptions survive pickling, attributes included.
"""

__all__ = [
    "CorruptFrameError",
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
    """Root of the exceptions of this package."""


class CorruptFrameError(GradwireError, ValueError):
    """The bytes are not a frame: bad magic, checksum, lengths or contents.

    Attributes
    ----------
    reason : str
        What contradicts the format.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"corrupt frame: {self.reason}"


class TruncatedFrameError(CorruptFrameError):
    """The bytes end before the frame does; reading more of the stream may help.

    Attributes
    ----------
    what : str
        The part that is cut off.
    need, have : int
        Bytes needed up to the end of that part, and bytes given.
    """

    def __init__(self, what: str, need: int, have: int) -> None:
        super().__init__(f"{what} needs {need} bytes, {have} are there")
        self.args = (what, need, have)
        self.what = what
        self.need = need
        self.have = have

    def __str__(self) -> str:
        return f"truncated frame: {self.reason}"


class FrameTooLargeError(GradwireError, ValueError):
    """The frame holds more elements than the caller is ready to take.

    Attributes
    ----------
    numel, limit : int
        Elements the frame claims to have, and elements allowed by ``max_numel`` or ``out``.
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
    """The frame needs a newer version of this library, or a part it was built without.

    Attributes
    ----------
    what : str
        The field of the header.
    found : int
        The value found in it.
    """

    def __init__(self, what: str, found: int) -> None:
        super().__init__(what, found)
        self.what = what
        self.found = found

    def __str__(self) -> str:
        return (
            f"unsupported frame: {self.what} {self.found} is not known to this version; "
            "update gradwire"
        )


class NonFiniteError(GradwireError, ValueError):
    """NaN or infinity in a tensor to encode. The state is as it was before the call.

    Attributes
    ----------
    count : int
        How many entries are NaN or infinite, the residual added.
    first : int
        Flat position of the first one.
    name : str or None
        The name of the tensor's state, as given to ``init_state(..., name=)``.
    """

    def __init__(self, count: int, first: int, name: str | None = None) -> None:
        super().__init__(count, first, name)
        self.count = count
        self.first = first
        self.name = name

    def __str__(self) -> str:
        where = "the tensor" if self.name is None else f"tensor {self.name!r}"
        return (
            f"{where} has {self.count} non-finite value(s), the first at position {self.first}; "
            "nothing was encoded and the state is unchanged"
        )


class InputChangedError(GradwireError, RuntimeError):
    """Another thread wrote to a tensor while it was being encoded.

    The state is as it was before the call. Only a residual of ``Residual(low_memory=True)``, which
    an encode overwrites, may have taken in what was read.

    Attributes
    ----------
    name : str or None
        The name of the tensor's state, as given to ``init_state(..., name=)``.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        where = "the tensor" if self.name is None else f"tensor {self.name!r}"
        return (
            f"{where} changed while it was being encoded; nothing was encoded; "
            "let no other thread write to it during the call, or encode a copy"
        )


class StateInUseError(GradwireError, RuntimeError):
    """Two threads used one state at the same time; give each thread, or each tensor, its own."""


class PluginError(GradwireError):
    """A preset of another distribution cannot be used.

    Attributes
    ----------
    preset : str
        Its name.
    distribution : str
        Whose it is.
    reason : str
        What is wrong with it.
    """

    def __init__(self, preset: str, distribution: str, reason: str) -> None:
        super().__init__(preset, distribution, reason)
        self.preset = preset
        self.distribution = distribution
        self.reason = reason

    def __str__(self) -> str:
        return f"preset {self.preset!r} of {self.distribution} cannot be used: {self.reason}"
