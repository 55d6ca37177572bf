"""SIMD levels of the core within one process."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import gradwire
from gradwire import _native


def test_a_level_is_in_use_in_one_thread_until_the_call_ends():
    usual = gradwire.simd_level()

    def within():
        with ThreadPoolExecutor(1) as other:
            return gradwire.simd_level(), other.submit(gradwire.simd_level).result()

    assert _native.at_level("scalar", within) == ("scalar", usual)
    assert gradwire.simd_level() == usual
    with pytest.raises(ZeroDivisionError):
        _native.at_level("scalar", divmod, 1, 0)
    assert gradwire.simd_level() == usual
    with pytest.raises(ValueError, match='this CPU has no SIMD level "sse"'):
        _native.at_level("sse", gradwire.simd_level)
