"""Training in FP8: sums are those of `gradwire.numerics`, and losses come in the paper's order."""

import re
import runpy

import numpy as np
import pytest
import torch

from gradwire.numerics import Float, chunked_sum
from tests.examples.runs import EXAMPLES, run


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_its_products_are_those_of_chunked_sum_bit_for_bit(chunk):
    product = runpy.run_path(str(EXAMPLES / "fp8_training.py"))["product"]
    rng = np.random.default_rng(chunk)
    a, b = (
        Float(5, 2).round(rng.standard_normal(shape) * 10.0 ** rng.uniform(-4, 2, shape))
        for shape in ((8, 512), (512, 9))
    )
    found = product(torch.from_numpy(a), torch.from_numpy(b), chunk).numpy()
    expected = chunked_sum(a[:, :, None] * b, chunk, Float(6, 9), axis=1)
    np.testing.assert_array_equal(found, expected)
    assert (found != a @ b).mean() > 0.9


@pytest.mark.full
def test_stochastic_updates_keep_the_loss_that_nearest_ones_raise(tmp_path):
    """As printed for the small batch; the large one and plain sums take five times as long."""
    example = (EXAMPLES / "fp8_training.py").read_text("utf-8")
    for left_out in ("32768: (25, 2.0), ", '"sums in FP16, plain": (FP8, 2**20, None), '):
        assert example.count(left_out) == 1
        example = example.replace(left_out, "")
    (tmp_path / "shorter.py").write_text(example, "utf-8")
    said = run(str(tmp_path / "shorter.py"))
    losses = [float(loss) for loss in re.findall(r"\{512: ([\d.]+)\}", said)]
    dense, exact, chunks, nearest, stochastic = losses
    assert max(exact, chunks, stochastic) < dense + 0.035
    assert nearest > max(chunks, stochastic) + 0.02
