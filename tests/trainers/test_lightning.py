"""Lightning's own Trainers in two processes, with and without the callback."""

import csv
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lightning", reason="these tests need Lightning")

from tests.distributed.ranks import Nursery, Ranks

ROOT = Path(__file__).parents[2]

Find = Callable[[int], Ranks]


@pytest.fixture
def two(lightning_ranks: Find) -> Ranks:
    return lightning_ranks(2)


def test_training_is_that_of_ddp_if_nothing_is_lost(two: Ranks) -> None:
    first, second = two.run("lightning.as_plain")
    assert first == second
    passes = {name: compressed[1] for name, (_, compressed) in first.items()}
    # The scaler skips a step, on both ranks, whose loss is not finite on one of them.
    expected = dict.fromkeys(passes, 12) | {"accumulated": 4, "overflow": 11}
    assert passes == expected
    for name, (plain, compressed) in first.items():
        assert plain[0] == compressed[0], name
    assert len({compressed[0] for _, compressed in first.values()}) == 5


def test_two_optimizers_by_hand_train_as_with_ddp(two: Ranks) -> None:
    first, second = two.run("lightning.gan")
    assert first == second
    plain, compressed = first
    assert plain[0] == compressed[0]
    assert compressed[1] == 24


def test_a_run_resumes_bit_for_bit_also_with_other_ranks(
    lightning_ranks: Find, tmp_path: Path
) -> None:
    for found in lightning_ranks(2).run("lightning.resumed", folder=str(tmp_path)):
        assert found["whole"][1] == 24
        if [int(each) for each in version("lightning").split(".")[:2]] >= [2, 6]:
            # Earlier ones begin the epoch anew.
            assert found["from within"] == found["whole"]
        assert found["from the end"] == found["whole"]
        assert found["first"] != found["whole"]
        assert found["from files"] == found["whole"]
        assert found["from where they were"] == found["whole"]
    assert sorted(torch.load(tmp_path / "files.ckpt", weights_only=True)["gradwire"]) == ["folder"]
    (last,) = (tmp_path / "files").glob("step=12-*")
    assert sorted(path.name for path in last.iterdir()) == ["gradwire_0.pt", "gradwire_1.pt"]

    saved = torch.load(tmp_path / "end.ckpt", weights_only=True)["gradwire"]
    assert sorted(saved) == ["rank0", "rank1"]
    results = lightning_ranks(3).run("lightning.elsewhere", folder=str(tmp_path))
    for found in results:
        for name, total in found["sum-and-split"].items():
            old = sum(each["residual"][name].double() for each in saved.values())
            assert np.abs(total).max() > 0.0
            np.testing.assert_allclose(total, old.numpy(), rtol=1e-5, atol=1e-9)
            assert not found["drop"][name].any()
        for policy in ("sum-and-split", "drop"):
            assert found[f"{policy}, trained"] == results[0][f"{policy}, trained"]


def test_dense_checkpoints_go_in_and_out(two: Ranks, tmp_path: Path) -> None:
    first, second = two.run("lightning.crossed", folder=str(tmp_path))
    assert first == second
    (text,) = first["coded", "said"]
    assert "dense.ckpt has no residuals" in text
    assert first["steps"] == {24}  # of second moments: half of them dense
    assert first["back", "said"] == []
    assert first["back", "held"] == ({24}, 8)


def test_figures_are_logged_and_each_fit_has_a_handle(two: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(two.run("lightning.logged", folder=str(tmp_path))):
        # A metric that never falls below that of the first epoch ends the fit after the second.
        assert found["steps"] == [24, 12]
        assert found["detached"] == [True, True]
        assert found["report"][0] == 12
        assert f"rank {rank} of 2: 12 steps" in found["report"][1]
    with open(tmp_path / "csv" / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["gradwire/steps"]]
    assert [row["step"] for row in rows[:4]] == ["4", "9", "14", "19"]
    assert [float(row["gradwire/steps"]) for row in rows[:4]] == [5.0, 10.0, 15.0, 20.0]
    assert {float(row["gradwire/wire_bytes"]) for row in rows if float(row["gradwire/wire_bytes"])}
    assert all(float(row["gradwire/compression"]) > 2.5 for row in rows)  # with sums of squares


def test_one_line_trains_as_a_loop_that_clips_or_scales_by_itself(two: Ranks) -> None:
    first, second = two.run("lightning.one_line")
    assert first == second
    for name, (trained, looped) in first.items():
        assert trained == looped, name


def test_what_cannot_work_is_refused_on_every_rank(two: Ranks, tmp_path: Path) -> None:
    first, second = two.run("lightning.refused", folder=str(tmp_path))
    assert first == second
    assert "not gradients, and got no optimizer: use torch.optim.AdamW" in first["two optimizers"]
    assert "the optimizer is torch.optim.RMSprop" in first["another optimizer"]
    assert "there is a loss scaler" in first["a scaler"]
    assert "state_dict" in first["another codec"]
    assert "on rank 1 has" in first["not finite"]


def test_what_is_not_compressed_or_checked_is_warned_of(two: Ranks) -> None:
    for found in two.run("lightning.warned"):
        (text,) = found["one device"]
        assert text.startswith("RuntimeWarning: SingleDeviceStrategy has no Distributed")
        assert "nothing is compressed" in text
        (text,) = found["two optimizers"]
        assert "attach() was given no optimizer=" in text
        assert found["clipping first"] == []
        (text,) = found["another optimizer"]
        assert "torch.optim.RMSprop is not torch.optim.AdamW" in text
        (text,) = found["a scaler"]
        assert "loss scaler: use bfloat16; so they are sent as gradwire.float8()" in text
        assert found["nothing"] == []


def test_a_checkpoint_that_an_exception_leaves_resumes_bit_for_bit(
    two: Ranks, tmp_path: Path
) -> None:
    for found in two.run("lightning.failing", folder=str(tmp_path), alone=False):
        assert found["raised"] == "KeyError"
        resumed, steps, whole = found["again"]
        assert steps == 12
        assert resumed == whole


@pytest.mark.timeout(900)
def test_a_rank_that_raises_alone_keeps_nobody_waiting(
    lightning_nursery: Nursery, tmp_path: Path
) -> None:
    ranks = Ranks(lightning_nursery, 2, timeout=200.0)  # out of step in the end
    found = ranks.run("lightning.failing", limit=280.0, folder=str(tmp_path), alone=True)
    ranks.stop()
    first, second = found
    assert first["raised"] == "ExchangeError"
    assert second["raised"] == "KeyError"
    assert max(first["seconds"], second["seconds"]) < 150.0  # less than the group's timeout


@pytest.mark.full
def test_a_checkpoint_that_a_killed_rank_leaves_has_no_residuals_and_says_so(
    lightning_nursery: Nursery, two: Ranks, tmp_path: Path
) -> None:
    ranks = Ranks(lightning_nursery, 2)  # one of which does not come back
    kinds = ranks.try_run("lightning_nodes.lost", folder=str(tmp_path))
    ranks.stop()
    assert [kind for kind, _ in kinds] == ["returned", "died"], kinds
    found = kinds[0][1]
    assert "ExchangeError" in found["raised"]
    (text,) = [each for each in found["said"] if "has no residuals" in each]
    assert "those of other ranks are missing" in text
    assert "gradwire" not in torch.load(tmp_path / "on_exception.ckpt", weights_only=True)
    again = two.run("lightning_nodes.found_again", folder=str(tmp_path))
    assert again[0] == again[1]
    assert any("on_exception.ckpt has no residuals" in each for each in again[0]["said"])
    assert 0 < again[0]["steps"] <= 12


def test_nodes_of_a_trainer_train_as_in_a_loop_and_resume_also_without_nodes(
    lightning_ranks: Find, tmp_path: Path
) -> None:
    results = lightning_ranks(4).run("lightning_nodes.nodes", folder=str(tmp_path))
    first = results[0]
    assert first["trained"] == first["looped"]
    assert first["resumed"] == first["resumed from files"]
    assert first["flat"] == first["flat from files"]
    assert first["flat"] != first["resumed"]
    for name, per_node in (("trained", 2), ("resumed", 2), ("resumed from files", 2), ("flat", 1)):
        assert first[f"{name}, per node"] == per_node
    for name in ("resumed", "flat", "flat from files"):
        assert first[f"{name}, mass"] == pytest.approx(first["resumed from files, mass"], rel=1e-4)
    for each in results:
        assert each == first


def test_pytorch_lightning_on_its_own_will_do(lightning_nursery: Nursery) -> None:
    ranks = Ranks(lightning_nursery, 2)  # with an interpreter of their own
    first, second = ranks.run("pytorch_lightning.alone")
    ranks.stop()
    assert first == second
    assert "pip install 'lightning>=2.4'" in first["neither"]
    assert first["base"].startswith("pytorch_lightning.callbacks")
    assert first["steps"] == 6


def test_the_example_trains_and_its_checkpoint_has_all_residuals(
    two: Ranks, tmp_path: Path
) -> None:
    path = ROOT / "examples" / "lightning_callback.py"
    assert len(path.read_text("utf-8").splitlines()) <= 40
    for found in two.run("lightning.example", path=str(path), folder=str(tmp_path)):
        assert found["steps"] > 0
        assert found["saved"] == ["rank0", "rank1"]


def test_the_guide_works_as_it_shows(two: Ranks, tmp_path: Path) -> None:
    found = two.run("lightning.page", folder=str(tmp_path))
    assert found == [[12, 12], [12, 12]]
