"""Frames are put one behind another to the last byte, whatever their lengths."""

import numpy as np
import pytest

from gradwire.torch.backends.cuda import structs
from gradwire.torch.backends.cuda.states import COLUMNS

CASES = {
    "none": [0],
    "one": [7],
    "every short length": list(range(20)),
    "none between others": [5, 0, 0, 9, 0, 33, 0],
    "tiles and a bit": [8191, 1, 8192, 8193, 3, 16387],
    "many": [(37 * i) % 211 for i in range(600)],
}


@pytest.mark.parametrize("lens", CASES.values(), ids=CASES)
def test_frames_follow_one_another(kernels, lens):
    generator = np.random.default_rng(len(lens))
    # To the byte as long as they are: the sanitizers see what is read beyond an end.
    frames = [generator.integers(0, 256, n, np.uint8) for n in lens]
    pieces, selections = (structs.Piece * len(lens))(), (structs.Selection * len(lens))()
    for frame, piece, selection in zip(frames, pieces, selections, strict=True):
        piece.frame, selection.nbytes = frame.ctypes.data, frame.size
    most = sum(lens) + 40
    for _ in kernels.orders():
        out, table = np.full(most, 9, np.uint8), np.zeros((len(lens), COLUMNS), np.int64)
        kernels.call("gradwire_test_gather", pieces, selections, len(lens), most, out, table)
        assert out[: sum(lens)].tobytes() == b"".join(frame.tobytes() for frame in frames)
        assert (out[sum(lens) :] == 9).all()
        assert table[:, 7].tolist() == [sum(lens[:i]) for i in range(len(lens))]


def test_a_frame_that_failed_is_left_out(kernels):
    frames = [np.full(5, value, np.uint8) for value in (1, 2, 3)]
    pieces, selections = (structs.Piece * 3)(), (structs.Selection * 3)()
    for frame, piece, selection in zip(frames, pieces, selections, strict=True):
        piece.frame, selection.nbytes = frame.ctypes.data, frame.size
    selections[1].status = structs.STATUS.index("non_finite")
    out, table = np.zeros(15, np.uint8), np.zeros((3, COLUMNS), np.int64)
    kernels.call("gradwire_test_gather", pieces, selections, 3, 15, out, table)
    assert out.tobytes() == b"\1" * 5 + b"\3" * 5 + b"\0" * 5
