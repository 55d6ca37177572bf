"""Torchrun restarts a job that loses ranks, and a checkpoint serves another number of them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch.distributed.checkpoint")
ROOT = Path(__file__).parents[2]


def saved(folder: Path) -> Any:
    """All that is in a checkpoint of torch.distributed.checkpoint, of all ranks."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(folder, folder / "all.pt")
    return torch.load(folder / "all.pt", weights_only=True)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def test_a_job_that_loses_ranks_in_mid_step_goes_on_also_with_fewer(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainers.agents", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    said = done.stdout.splitlines()
    assert [each for each in said if each.startswith("agent")] == [
        "agent: 0",
        "agent: -9",  # the first loss ended no job, the second one did
        "agent: 0",
    ], done.stderr[-4000:]
    assert "rank 1 of 2: steps 20 to 30" in said
    # Killed in step 14, and trained again from step 10: bit for bit what an undisturbed job has.
    calm, lossy = (saved(tmp_path / name / "000020-of-3") for name in ("calm", "lossy"))
    assert set(calm["gradwire"]) == {"rank0", "rank1", "rank2"}
    assert any(each.any() for each in calm["gradwire"]["rank2"]["residual"].values())
    assert same(calm, lossy)
    assert sorted(each.name for each in (tmp_path / "lossy").iterdir()) == [
        "000010-of-3",
        "000020-of-3",
        "000030-of-2",
    ]
    assert set(saved(tmp_path / "lossy" / "000030-of-2")["gradwire"]) == {"rank0", "rank1"}
