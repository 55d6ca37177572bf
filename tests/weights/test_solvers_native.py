"""What of the solvers cannot be tested in Rust: arrays, messages and Ctrl-C."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import NonFiniteError, _native, quantize

CONFIG = quantize.Affine(3, 16, fit="range").get_config()


def layer(rows: int, cols: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Weights, and the Gram matrix of inputs that go together."""
    random = np.random.default_rng(1)
    inputs = random.standard_normal((2 * cols, cols)) + random.standard_normal((2 * cols, 1))
    weights = random.standard_normal((rows, cols)).astype(np.float32)
    gram = inputs.T @ inputs
    return weights, (gram + gram.T) / 2


def lost(
    weights: NDArray[np.float32],
    gram: NDArray[np.float64],
    solved: tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]],
) -> float:
    codes, steps, bases = solved
    width = weights.shape[1] // steps.shape[1]
    errors = bases.repeat(width, 1) + steps.repeat(width, 1) * codes - weights
    return float(np.einsum("ri,ij,rj->", errors, gram, errors))


def test_arrays_have_the_shapes_of_rows_and_blocks_and_descent_ends_below_gptq() -> None:
    weights, gram = layer(5, 48)
    solved = _native.solve_gptq(weights, gram, CONFIG, 0.01)
    descended = _native.solve_comq(weights, gram, CONFIG, 0.01, 3, "gptq", True)
    for codes, steps, bases in (solved, descended):
        assert (codes.shape, steps.shape, bases.shape) == ((5, 48), (5, 3), (5, 3))
        assert [each.dtype.name for each in (codes, steps, bases)] == ["uint8", *2 * ["float32"]]
    assert lost(weights, gram, descended) < lost(weights, gram, solved)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"gram": np.ones((48, 47))}, ValueError, "give 48 rows and columns"),
        ({"gram": np.ones((48, 48))}, ValueError, "give a larger damp"),
        ({"gram": np.ones((48, 48), np.float32)}, TypeError, "gram must be .* float64"),
        ({"weights": np.ones(48, np.float32)}, ValueError, "rows and columns"),
        ({"weights": np.full((1, 48), np.nan, np.float32)}, NonFiniteError, "48 non-finite"),
        ({"start": "middle"}, ValueError, 'start must be "gptq" or "nearest"'),
        ({"sweeps": 0}, ValueError, "sweeps must be at least 1"),
        ({"damp": -1.0}, ValueError, "damp must be"),
    ],
)
def test_errors_say_what_is_wrong(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    weights, gram = layer(5, 48)
    given: dict[str, Any] = {"weights": weights, "gram": gram, "config": CONFIG, "damp": 0.0}
    given |= {"sweeps": 2, "start": "gptq", "bases": True} | change
    with pytest.raises(error, match=message):
        _native.solve_comq(*given.values())


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
