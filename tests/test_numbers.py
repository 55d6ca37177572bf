"""A number that nothing can hold is a `ValueError` or `TypeError` wherever a number is taken.

`OverflowError` is neither, and says nothing about the argument.
"""

import itertools

import numpy as np
import pytest

import gradwire
from tests.support import CODECS, name_of

HUGE = [10**400, -(10**400), 2**63, 2**64, -(2**63) - 1, 2**31, 2**32]


def taken(call, *args, **options):
    """Call it: whatever it says, it is no `OverflowError` and no panic."""
    try:
        return call(*args, **options)
    except (ValueError, TypeError):
        return None


@pytest.mark.parametrize("codec", CODECS, ids=name_of)
def test_of_configurations(codec):
    config = codec.get_config()
    for number in HUGE:
        taken(codec.for_shape, (number, 2))
    for (name, part), number in itertools.product(config.items(), HUGE):
        if isinstance(part, dict):
            for option in part.keys() - {"kind"}:
                changed = config | {name: part | {option: number}}
                taken(gradwire.Codec.from_config, changed)
        else:
            taken(gradwire.Codec.from_config, config | {name: number})


def test_the_errors_name_the_argument():
    frame = gradwire.dense().encode(np.ones(3, np.float32))
    with pytest.raises(ValueError, match="max_numel is out of range, got 9223372036854775808"):
        gradwire.Frame(bytes(frame), 2**63)
    with pytest.raises(ValueError, match="scale is out of range"):
        gradwire.decode_add(frame, np.zeros(3, np.float32), 10**400)
    with pytest.raises(TypeError, match="scale"):
        gradwire.decode_add(frame, np.zeros(3, np.float32), "1")
    state = gradwire.topk(0.1).init_state(10)
    saved = state.state_dict()
    with pytest.raises(ValueError, match="'bound' in scalars is out of range"):
        state.load_state_dict(saved | {"scalars": {"bound": 10**400}})
    assert state.step == 0
