"""The example trains under horovodrun, as its own first lines say."""

from pathlib import Path

import pytest

from tests.distributed.ranks import ROOT
from tests.horovod.launcher import run_script

EXAMPLE = Path(ROOT, "examples", "horovod_train.py")


@pytest.mark.full
def test_the_example_learns_and_reports(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text("utf-8").splitlines()) <= 45
    finished = run_script(tmp_path, 2, EXAMPLE)
    assert finished.status == 0, finished
    first, second = finished.ranks
    assert "gradwire, rank 0 of 2: 100 steps" in first, finished
    losses = [float(line.split()[-1]) for line in first.splitlines() if ": loss" in line]
    assert len(losses) == 2
    assert losses[1] < losses[0] < 2.3, finished
    assert "loss" not in second
