"""Sending what was left."""

import pytest

import gradwire


def test_without_a_memory_there_is_nothing_to_flush():
    codec = gradwire.dense()
    with pytest.raises(ValueError, match="no memory"):
        codec.flush(codec.init_state(5))


def test_a_state_of_another_codec_is_refused():
    with pytest.raises(ValueError, match="belongs to another codec"):
        gradwire.topk(0.1).flush(gradwire.sidco(0.1).init_state(5))
    with pytest.raises(TypeError, match="state must be"):
        gradwire.topk(0.1).flush(None)
