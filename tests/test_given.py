"""Positions that somebody else chose, and the view that a selection has of a tensor."""

import ml_dtypes
import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
from tests.support import same_state


class TestPositions:
    codec = gradwire.topk(0.01)

    def test_zeros_are_sent_where_they_are_asked_for(self):
        x = np.array([[0, 2, 0], [0, -1, 4]], np.float64)
        state = self.codec.init_state(6)
        frame = self.codec.encode_at(x, state, np.array([0, 4], np.uint32))
        assert frame.indices().tolist() == [0, 4]
        assert frame.values().tolist() == [0, -1]
        assert state.residual.tolist() == [0, 2, 0, 0, 0, 4]
        assert state.last == {"count": 2, "target": 2, "threshold": 0.0, "trimmed": 0}
        state.rollback()
        assert state.residual.tolist() == [0] * 6

    def test_a_state_may_be_left_out_without_a_memory(self):
        codec = gradwire.topk(0.01, memory=NoMemory())
        x = np.arange(5, dtype=ml_dtypes.bfloat16)
        frame = codec.encode_at(x, None, np.array([1, 4], np.uint32))
        assert (frame.values().tolist(), frame.dtype) == ([1, 4], "bfloat16")
        assert codec.preview(x).tolist() == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize(
        ("positions", "error", "message"),
        [
            (np.array([2, 2], np.uint32), ValueError, "ascend strictly, got 2 before 2 at index 0"),
            (np.array([0, 3, 1], np.uint32), ValueError, "got 3 before 1 at index 1"),
            (np.array([4, 5], np.uint32), ValueError, "below 5, .*, got 5"),
            (np.array([1, 2], np.int64), TypeError, "positions must be a numpy array of uint32"),
            (np.array([1, 2], np.int32), TypeError, "uint32, got ndarray of int32"),
            (np.arange(8, dtype=np.uint32)[::2], ValueError, "positions must be C-contiguous"),
            ([1, 2], TypeError, "got list"),
        ],
    )
    def test_wrong_ones_are_named_and_change_nothing(self, positions, error, message):
        x = np.ones(5, np.float32)
        state = self.codec.init_state(5)
        self.codec.encode(x, state)
        before = state.state_dict()
        with pytest.raises(error, match=message):
            self.codec.encode_at(x, state, positions)
        assert same_state(state.state_dict(), before)
        state.rollback()

    def test_a_codec_that_sends_everything_takes_none(self):
        codec = gradwire.dense()
        with pytest.raises(ValueError, match="takes no positions"):
            codec.encode_at(np.ones(2, np.float32), None, np.array([0], np.uint32))
