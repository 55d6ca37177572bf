"""What Accordion saves where a model is really trained: the digits of the demo."""

import pytest

pytest.importorskip("torch", reason="trains a model")
pytest.importorskip("sklearn", reason="brings the digits")

from gradwire.cli.training.accordion import measure
from gradwire.schedule import Accordion


def test_accordion_sends_a_third_of_its_low_setting_at_its_accuracy() -> None:
    low, scheduled = measure(Accordion(0.5, 0.02, interval=1))
    assert low.accuracy > 0.975
    # Two images of 359 are a difference by chance.
    assert scheduled.accuracy > low.accuracy - 0.006
    assert low.bytes_per_step >= 3 * scheduled.bytes_per_step
