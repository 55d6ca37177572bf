"""What of the solvers cannot be tested in Rust: arrays, messages and Ctrl-C."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import _native, quantize

CONFIG = quantize.Affine(3, 16, fit="range").get_config()


def layer(rows: int, cols: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Weights, and the Gram matrix of inputs that go together."""
    random = np.random.default_rng(1)
    inputs = random.standard_normal((2 * cols, cols)) + random.standard_normal((2 * cols, 1))
    weights = random.standard_normal((rows, cols)).astype(np.float32)
    gram = inputs.T @ inputs
    return weights, (gram + gram.T) / 2


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs names of threads")
def test_ctrl_c_stops_a_solver_at_work() -> None:
    weights, gram = layer(2048, 512)
    at_work = []

    def interrupted(number: int, frame: object) -> None:
        names = [comm.read_text().strip() for comm in Path("/proc/self/task").glob("*/comm")]
        at_work.append("gradwire-solve" in names)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            _native.solve_comq(weights, gram, CONFIG, 0.01, 1_000_000, "gptq", True)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert at_work == [True]
