"""Exceptions: who they derive from, what they carry, and that they survive a process boundary."""

import pickle

import pytest

from gradwire import errors

EXAMPLES = [
    errors.CorruptFrameError("bad magic"),
    errors.TruncatedFrameError("header", 48, 3),
    errors.FrameTooLargeError(10, 5),
    errors.UnsupportedFrameError("version", 9),
    errors.UnsupportedFrameError("quantizer", "log_grid"),
    errors.NonFiniteError(2, 7, "layer.weight"),
    errors.NonFiniteError(2, 7),
    errors.InputChangedError("layer.weight"),
    errors.InputChangedError(),
    errors.StateInUseError("in use"),
    errors.ExtensionError("no compiler"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_pickling_keeps_class_message_and_attributes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_one_root(error):
    assert isinstance(error, errors.GradwireError)


def test_bad_bytes_and_bad_values_are_value_errors():
    assert all(isinstance(error, ValueError) for error in EXAMPLES[:-4])
    assert all(isinstance(error, RuntimeError) for error in EXAMPLES[-4:])


def test_a_truncated_frame_is_a_corrupt_one():
    assert issubclass(errors.TruncatedFrameError, errors.CorruptFrameError)
    assert not issubclass(errors.FrameTooLargeError, errors.CorruptFrameError)
    assert not issubclass(errors.UnsupportedFrameError, errors.CorruptFrameError)


def test_messages_name_the_tensor():
    assert "'layer.weight'" in str(errors.NonFiniteError(1, 0, "layer.weight"))
    assert "the tensor" in str(errors.NonFiniteError(1, 0))
