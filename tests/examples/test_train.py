"""The examples of distributed training run under torchrun, as their own documentation says."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.examples.agents import EXAMPLES, RUNS

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, str]:
    """Return what each run printed, by its title."""
    command = [sys.executable, "-m", "tests.examples.agents", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = {title: (folder / title).read_text("utf-8") for title in RUNS}
    for title in RUNS:
        assert f"{title}: 0\n" in done.stdout, found[title] + done.stderr
    return found


def test_the_example_learns_reports_and_goes_on_where_it_was(
    printed: dict[str, str], folder: Path
) -> None:
    assert "step 50: loss" in printed["first"]
    assert "gradwire, rank 0 of 2: 50 steps" in printed["first"]
    assert "step 50: loss" not in printed["resumed"]
    assert "step 100: loss" in printed["resumed"]
    saved = [torch.load(folder / f"saved/rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert saved[0]["step"] == 100
    for name, value in saved[0]["model"].items():
        assert torch.equal(value, saved[1]["model"][name])


def test_the_example_runs_without_compression_too(printed: dict[str, str]) -> None:
    assert "step 50: loss" in printed["dense"]


@pytest.mark.parametrize("name", ["hierarchy", "fsdp2"])
def test_the_examples_of_nodes_compress_between_nodes_only(
    printed: dict[str, str], name: str
) -> None:
    assert "gradwire, rank 0 of 4: 30 steps" in printed[name]
    if name == "hierarchy":
        assert "inside the node" in printed[name]


def test_the_example_of_sites_learns_reports_and_saves(
    printed: dict[str, str], folder: Path
) -> None:
    assert len((EXAMPLES / "diloco.py").read_text("utf-8").splitlines()) <= 40
    losses = [float(line.split()[-1]) for line in printed["diloco"].splitlines() if "loss" in line]
    assert len(losses) == 4
    assert losses[-1] < 1.8  # 2.3 for an even guess
    assert "gradwire DiLoCo, rank 0 of 2: 200 inner steps, 10 exchanges" in printed["diloco"]
    assert torch.load(folder / "model.pt", weights_only=True)["0.weight"].shape == (512, 64)
