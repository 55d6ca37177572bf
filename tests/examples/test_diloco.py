"""The example of training across sites runs under torchrun, as its own documentation says."""

import subprocess
import sys
from pathlib import Path

import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "diloco.py"


def test_the_example_learns_reports_and_saves(tmp_path):
    assert len(EXAMPLE.read_text("utf-8").splitlines()) <= 40
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", str(EXAMPLE)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if "loss" in line]
    assert len(losses) == 4
    assert losses[-1] < 1.8  # 2.3 for an even guess
    assert "gradwire DiLoCo, rank 0 of 2: 200 inner steps, 10 exchanges" in done.stdout
    assert torch.load(tmp_path / "model.pt", weights_only=True)["0.weight"].shape == (512, 64)
