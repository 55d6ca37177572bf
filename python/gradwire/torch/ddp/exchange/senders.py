"""The mean over those ranks that sent an entry (Peng, Quesnelle, Kingma, arXiv 2411.19870)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradwire.frame import Frame

__all__ = ["divide_by_senders"]


def divide_by_senders(total: NDArray[np.float32], frames: Sequence[NDArray[np.uint8]]) -> None:
    """Divide the sum of some frames, at each position, by the number of frames with an entry there.

    Costs one write of two bytes for each position, and work on the entries.

    Parameters
    ----------
    total : numpy.ndarray
        float32 of shape (numel,), changed in place.
    frames : sequence of numpy.ndarray
        The bytes of the frames.
    """
    senders = np.zeros(total.size, np.uint16)
    for data in frames:
        frame = Frame(data, max_numel=total.size)
        if frame.count == total.size:
            senders += np.uint16(1)
        else:
            senders[frame.indices()] += np.uint16(1)  # a frame has no position twice
    several = np.flatnonzero(senders > 1)
    total[several] /= senders[several]
