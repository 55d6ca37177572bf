"""State dicts from outside: an error that changes nothing, or a state that works."""

import contextlib
import copy

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import gradwire
from tests.support import CODECS, same_state

N = 64

X = np.random.default_rng(5).standard_normal(N).astype(np.float32)

numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([0.5, 1.0, 1e-9, 2.0**53]))
arrays = st.builds(
    np.full,
    st.sampled_from([0, N - 1, N]),
    st.sampled_from([0.0, -0.0, 1.5, 3e38, np.inf, np.nan]),
    st.sampled_from([np.float32, np.float64]),
)
anything = st.one_of(
    numbers, arrays, st.none(), st.booleans(), st.text(max_size=3), st.lists(numbers, max_size=2)
)


def paths(value, path=()):
    """Where a value of a state dict stands, down to the options of the codec's parts."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from paths(inner, (*path, key))


def changed(saved, path, value, drop):
    saved = copy.deepcopy(saved)
    inside = saved
    for key in path[:-1]:
        inside = inside[key]
    if drop:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return saved


@settings(max_examples=5 * settings().max_examples)
@given(codec=st.sampled_from(CODECS), data=st.data())
def test_any_state_dict_is_refused_whole_or_works(codec, data):
    state = codec.init_state(N)
    codec.encode(X, state)
    saved = state.state_dict()
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(paths(saved))))
        saved = changed(saved, path, data.draw(anything), data.draw(st.booleans()))
    other = codec.init_state(N)
    codec.encode(-X, other)
    before = other.state_dict()
    try:
        other.load_state_dict(saved)
    except (ValueError, TypeError, gradwire.GradwireError):
        assert same_state(other.state_dict(), before)
        return
    again = codec.init_state(N)
    again.load_state_dict(other.state_dict())
    # Near the largest float32, a residual and a gradient add up to infinity.
    with contextlib.suppress(gradwire.NonFiniteError):
        assert other.codec.encode(X, other) == again.codec.encode(X, again)
