"""The example runs under torchrun with two processes, as its own documentation says."""

import subprocess
import sys
from pathlib import Path

import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*options: str, example: str = "train.py", ranks: int = 2) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    # A free port, so that two of these may run at once.
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command += [str(EXAMPLES / example), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_learns_reports_and_goes_on_where_it_was(tmp_path):
    out = run("--steps", "50", "--checkpoint", str(tmp_path))
    assert "step 50: loss" in out
    assert "gradwire, rank 0 of 2: 50 steps" in out
    out = run("--steps", "100", "--checkpoint", str(tmp_path))
    assert "step 50: loss" not in out
    assert "step 100: loss" in out
    saved = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert saved[0]["step"] == 100
    for name, value in saved[0]["model"].items():
        assert torch.equal(value, saved[1]["model"][name])


def test_the_example_runs_without_compression_too():
    assert "step 50: loss" in run("--steps", "50", "--ratio", "1")


def test_the_example_of_a_hierarchy_compresses_between_nodes_only():
    out = run("2", example="hierarchy.py", ranks=4)
    assert "gradwire, rank 0 of 4: 30 steps" in out
    assert "inside the node" in out


def test_the_example_of_fsdp_compresses_between_nodes_only():
    out = run("2", example="fsdp2.py", ranks=4)
    assert "gradwire, rank 0 of 4: 30 steps" in out
