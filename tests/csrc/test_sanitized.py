"""The tests of this folder once more, under the address and undefined-behaviour sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.csrc.emulated.build import ROOT, build, compiler, proof
from tests.csrc.emulated.operators import RACES, SANITIZED

pytestmark = [
    pytest.mark.full,  # has a build of its own
    pytest.mark.skipif(
        SANITIZED or bool(RACES),
        reason="is itself running under the sanitizers, or the race detector",
    ),
]


def sanitized(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the sanitizers' library loaded first."""
    build(sanitized=True)
    ask = [compiler(), "-print-file-name=libasan.so"], [compiler(), "-print-file-name=libstdc++.so"]
    names = [subprocess.check_output(words, text=True).strip() for words in ask]
    environment = {
        **os.environ,
        "GRADWIRE_TEST_SANITIZED": "1",
        "LD_PRELOAD": " ".join(str(Path(name).resolve()) for name in names),
        # Python frees little at its end; fibers' stacks are not the ones that the check knows.
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.mark.timeout(900)
def test_no_kernel_leaves_its_memory_or_the_language() -> None:
    passed = proof(build(sanitized=True))
    if passed.exists():
        pytest.skip("has passed with these sources, these tests and this core")
    done = sanitized("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/csrc")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    passed.touch()


def test_a_write_past_the_end_is_found() -> None:
    program = """
import numpy as np
from tests.csrc.emulated.build import build
from tests.csrc.emulated.kernels import Kernels
Kernels(build(sanitized=True)).call("gradwire_test_write", np.zeros(1000, np.uint8), 1001)
"""
    done = sanitized("-c", program)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
