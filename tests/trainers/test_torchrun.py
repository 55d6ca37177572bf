"""Torchrun restarts a job that loses ranks, and a checkpoint serves another number of them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

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


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of all jobs, and the process that ran them."""
    folder = tmp_path_factory.mktemp("agents")
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainers.agents", str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    return folder, done


def test_a_job_that_loses_ranks_in_mid_step_goes_on_also_with_fewer(
    ended: tuple[Path, Any],
) -> None:
    folder, done = ended
    # The first loss ended no job, the second one did.
    assert re.findall(r"agent: (-?\d+)", done.stdout) == ["0", "-9", "0"], done.stderr[-4000:]
    assert "rank 1 of 2: steps 20 to 30" in done.stdout
    # Killed in step 14, and trained again from step 10: bit for bit what an undisturbed job has.
    calm, lossy = (saved(folder / name / "000020-of-3") for name in ("calm", "lossy"))
    assert set(calm["gradwire"]) == {"rank0", "rank1", "rank2"}
    assert any(each.any() for each in calm["gradwire"]["rank2"]["residual"].values())
    assert same(calm, lossy)
    assert sorted(each.name for each in (folder / "lossy").iterdir()) == [
        "000010-of-3",
        "000020-of-3",
        "000030-of-2",
    ]
    assert set(saved(folder / "lossy" / "000030-of-2")["gradwire"]) == {"rank0", "rank1"}


def test_a_job_goes_on_without_an_agent_that_is_lost_and_takes_it_back(
    ended: tuple[Path, Any],
) -> None:
    folder, done = ended
    assert "nodes: [-9, 0, 0]" in done.stdout, done.stderr[-6000:]
    for rank in range(3):
        assert f"rank {rank} of 3: steps 20 to 40" in done.stdout
    assert sorted(each.name for each in (folder / "nodes").iterdir()) == [
        "000010-of-3",
        "000020-of-2",
        "000030-of-3",
        "000040-of-3",
    ]
    for name, size in (("000010-of-3", 2), ("000020-of-2", 3)):
        old = list(saved(folder / "nodes" / name)["gradwire"].values())
        begun = folder / "nodes.begun"
        new = [
            torch.load(begun / f"{name}-into-{size}-{rank}.pt", weights_only=True)[f"rank{rank}"]
            for rank in range(size)
        ]
        assert set(old[0]["residual"]) == {"0.weight", "2.weight"}
        for weight in old[0]["residual"]:
            before, after = (
                sum(each["residual"][weight] for each in those) for those in (old, new)
            )
            assert before.abs().max() > 0.0
            torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-8)
            mean = sum(each["second_moment"][weight] for each in old) / len(old)
            for each in new:
                torch.testing.assert_close(each["second_moment"][weight], mean)
