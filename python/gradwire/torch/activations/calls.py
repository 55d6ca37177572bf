"""The calls of modules in progress, by the interpreter's frames.

A hook after forward is not called after an interrupt from the keyboard, and is not there any more
after it was removed. So a call is in progress as long as its frame is on the stack.
"""

import contextlib
import sys
from types import FrameType

from torch import nn

_CALL = nn.Module._call_impl.__code__


def current() -> FrameType:
    """Return the frame of the module call that has called a hook."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not _CALL:
        frame = frame.f_back
    return frame or sys._getframe(2)


def is_live(call: FrameType, frame: FrameType | None = None) -> bool:
    """Return whether a call is on the stack that ends with a frame: this thread's, by default."""
    frame = frame or sys._getframe(1)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is not None


class Calls:
    """The calls in progress, in all threads, of the modules of one attachment.

    Parameters
    ----------
    ends : contextlib.ExitStack
        Removes the hooks after forward. They stay for calls in progress, which they end.
    """

    def __init__(self, ends: contextlib.ExitStack) -> None:
        self._ends, self._is_open = ends, True
        self._modules, self._roots = set[FrameType](), set[FrameType]()

    def is_packed(self, call: FrameType) -> bool:
        """Return whether what a call saves is to be packed."""
        return self._is_open and is_live(call)

    def begin(self, call: FrameType) -> bool:
        """Add the call of a module, and return whether it is to be packed."""
        self._modules.add(call)
        if not self._is_open:
            self.end(call)
        return self._is_open

    def begin_root(self, call: FrameType) -> bool:
        """Add a call of the model, and return whether no other one is in progress here."""
        outer = any(map(is_live, self._roots.copy()))
        if not outer:
            self._roots = _running(self._roots)
            self._modules = _running(self._modules)
        self._roots.add(call)
        return not outer

    def end(self, call: FrameType) -> None:
        """Forget a call, and remove the hooks if it was the last one since `close`."""
        self._modules.discard(call)
        self._roots.discard(call)
        # After an exception torch loops over the hooks, which must stay then.
        if not (self._is_open or self._modules or self._roots) and sys._getframe(2) is not call:
            self._ends.close()

    def close(self) -> None:
        """Pack no more, and remove the hooks as soon as no call is in progress."""
        self._is_open = False
        self._modules, self._roots = _running(self._modules), _running(self._roots)
        if not self._modules and not self._roots:
            self._ends.close()


def _running(calls: set[FrameType]) -> set[FrameType]:
    """Return those of these calls that are on the stack of any thread."""
    if not calls:
        return calls
    stacks = list(sys._current_frames().values())
    return {call for call in calls.copy() if any(is_live(call, each) for each in stacks)}
