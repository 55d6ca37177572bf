"""Training in FP8: sums are those of `gradwire.numerics`, and the table is in the paper's order."""

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
@pytest.mark.timeout(900)  # 100 s of one processor, when nothing else runs
def test_chunks_and_stochastic_updates_keep_the_loss_that_plain_sums_and_nearest_ones_raise():
    said = run("fp8_training.py")
    table = re.findall(r"(.*?) *\{32768: ([\d.]+), 512: ([\d.]+)\}", said)
    long, small = ({name: float(row[i]) for name, *row in table} for i in (0, 1))
    assert next(iter(long)) == "float32"
    exact, chunks, plain, nearest, stochastic = list(long)[1:]
    for losses in (long, small):
        assert max(losses[each] for each in (exact, chunks, stochastic)) < losses["float32"] + 0.035
    assert long[plain] > max(long[chunks], long[stochastic]) + 0.02
    assert small[nearest] > max(small[chunks], small[stochastic]) + 0.02
    assert abs(small[plain] - small[chunks]) < 0.02
