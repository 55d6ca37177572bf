"""The examples train under horovodrun, as their own first lines say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.ranks import ROOT
from tests.horovod.launcher import HOROVODRUN, end, run_script, variables

EXAMPLE = Path(ROOT, "examples", "horovod_train.py")
ELASTIC = Path(ROOT, "examples", "horovod_elastic.py")


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


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_elastic_example_takes_in_a_rank_and_goes_on(tmp_path: Path) -> None:
    assert len(ELASTIC.read_text("utf-8").splitlines()) <= 60
    (tmp_path / "hosts").write_text("localhost:1\n")
    (tmp_path / "discover").write_text("#!/bin/sh\ncat hosts\n")
    (tmp_path / "discover").chmod(0o755)
    command = [str(HOROVODRUN), "-np", "1", "--min-np", "1", "--max-np", "2", "--gloo"]
    command += ["--network-interfaces", "lo", "--host-discovery-script", "./discover"]
    said = []
    run = subprocess.Popen(
        [*command, sys.executable, str(ELASTIC), "3000"],
        cwd=tmp_path,
        env=variables(200.0),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert run.stdout is not None
        for line in run.stdout:
            said.append(line)
            if "step 50," in line:
                (tmp_path / "hosts").write_text("localhost:2\n")
        run.wait(60.0)
    finally:
        end(run)
    text = "".join(said)
    assert run.returncode == 0, text
    steps = re.findall(r"step (\d+), ranks (\d): loss ([\d.]+)", text)
    assert [int(step) for step, _, _ in steps] == list(range(50, 3001, 50)), text
    assert [ranks for _, ranks, _ in steps] == sorted(ranks for _, ranks, _ in steps)
    assert {ranks for _, ranks, _ in steps} == {"1", "2"}
    assert float(steps[-1][2]) < float(steps[0][2])
