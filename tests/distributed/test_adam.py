"""AdamW on each rank, whose updates are sent: as simulated, and whatever programs do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Ranks


@pytest.mark.parametrize(
    ("ratio", "dtype", "options", "ddp"),
    [
        (1.0, "float32", {}, {}),
        (1.0, "float32", {"maximize": True, "foreach": False}, {}),
        (0.1, "float32", {"fused": True}, {}),
        (1.0, "float64", {}, {"gradient_as_bucket_view": True}),
        (0.1, "float64", {}, {"static_graph": True}),
    ],
    ids=str,
)
def test_training_is_what_a_simulation_of_all_ranks_gives(
    ranks: Ranks, ratio: float, dtype: str, options: dict[str, Any], ddp: dict[str, Any]
) -> None:
    results = ranks.run("adam.reference", ratio=ratio, dtype=dtype, options=options, ddp=ddp)
    for found in results:
        assert found["difference"] < 2e-5
        assert found["moved"] > 0.01
        assert found["print"] == results[0]["print"]
        assert found["state"] == 8, "5 are sent dense, and detach() has given 3 back"


def test_bfloat16_parameters_take_rounded_updates(two: Ranks) -> None:
    results = two.run("adam.reference", ratio=1.0, dtype="bfloat16", options={}, ddp={})
    for found in results:
        assert found["difference"] < 0.02
        assert found["print"] == results[0]["print"]


@pytest.mark.parametrize("how", ["leader", "reduce", "onebit", "half", "sid"])
def test_every_way_to_send_updates_trains(ranks: Ranks, how: str) -> None:
    results = ranks.run("adam.exchanged", how=how)
    assert all(found == results[0] for found in results)


def test_a_loss_scale_changes_nothing_and_a_skipped_step_leaves_no_trace(two: Ranks) -> None:
    first, second = two.run("adam.scaled")
    assert first == second
    assert first["rolled back"]
    assert first["same"]


def test_a_gradient_that_is_not_finite_changes_no_moment(two: Ranks) -> None:
    first, second = two.run("adam.raised")
    assert first == second
    assert first["error"] == ("a", 1)
    assert first["same"]


def test_tied_unused_frozen_and_late_parameters(two: Ranks) -> None:
    first, second = two.run("adam.odd_parameters")
    assert first["print"] == second["print"]
    for found in (first, second):
        assert len(found["told"]) == 1
        assert "'late.weight', 'late.bias', are not in any group" in found["told"][0]
        assert "the codec's eps is 1e-08" in found["other eps"]
        for what in ("waits", "not trained", "trained later", "frozen", "thawed", "tied"):
            assert found[what], what


@pytest.mark.parametrize("how", ["dense", "warm-up", "accordion"])
def test_the_second_moment_goes_on_while_a_schedule_changes_the_codec(two: Ranks, how: str) -> None:
    first, second = two.run("adam.scheduled", how=how)
    assert first["print"] == second["print"]
    assert not first["kept"], "the codec has taken over"
    assert first["averaged"] == first["steps"]  # Adam's bias is corrected by as many
    if how != "dense":
        assert first["steps"] == list(range(1, 10))
        return
    assert first["steps"] == [0, 0, 0, 4, 5, 6, 7, 8, 9]
    before, after = first["moments"]
    added = after - np.float32(0.999) * before.ravel()
    assert before.any()
    assert (added >= -1e-12).all()


@pytest.mark.parametrize(
    "policy",
    ["sum-and-split", *(pytest.param(p, marks=pytest.mark.full) for p in ("keep", "drop"))],
)
def test_another_world_size_averages_second_moments(
    two: Ranks, three: Ranks, tmp_path: Path, policy: str
) -> None:
    old = two.run("adam.saved", folder=str(tmp_path))
    own = policy == "keep"
    new = three.run("adam.loaded", folder=str(tmp_path), old_size=2, policy=policy, own=own)
    mean = sum(each["second_moment"].astype(np.float64) for each in old) / 2
    for rank, found in enumerate(new):
        np.testing.assert_allclose(found["second_moment"], mean, rtol=1e-6)
        assert found["step"] == found["averaged"] == 4
        assert found["print"] == new[0]["print"]
        if policy == "keep" and rank < 2:
            np.testing.assert_array_equal(found["residual"], old[rank]["residual"])
        elif policy != "sum-and-split":
            assert not found["residual"].any()
    if policy == "sum-and-split":
        total = sum(each["residual"].astype(np.float64) for each in old)
        np.testing.assert_allclose(3.0 * new[0]["residual"], total, rtol=1e-5, atol=1e-9)


def test_without_any_state_everything_starts_anew(three: Ranks, two: Ranks, tmp_path: Path) -> None:
    two.run("adam.saved", folder=str(tmp_path))
    for found in three.run(
        "adam.loaded", folder=str(tmp_path), old_size=0, policy="drop", own=False
    ):
        assert found["step"] == 0
        assert not found["second_moment"].any()


def test_after_detaching_it_is_torchs_adamw_with_the_moments_of_the_codec(two: Ranks) -> None:
    first, second = two.run("adam.detached")
    assert first == second
    assert first["kept"] == 3
    assert first["same"]


def test_a_compiled_model_trains_like_the_eager_one(two: Ranks) -> None:
    for eager, compiled in two.run("adam.compiled"):
        assert eager == compiled


def test_frameworks_save_and_load_both_halves(two: Ranks, three: Ranks, tmp_path: Path) -> None:
    results = two.run("adam.by_frameworks", folder=str(tmp_path))
    assert all(found["same"] for found in results)
    assert results[0]["print"] == results[1]["print"]
    by_rank = three.run("adam.resharded", folder=str(tmp_path), old_size=2)
    for first, *others in zip(*by_rank, strict=True):
        for other in others:
            assert other["print"] == first["print"]
            np.testing.assert_array_equal(other["moment"], first["moment"])
        assert first["moment"].any()


def test_checkpoints_of_other_codecs_have_the_keys_that_they_had(two: Ranks) -> None:
    for found in two.run("adam.kinds"):
        assert found["topk"] == ["about", "measured", "momentum", "residual"]
        assert found["adam"] == ["about", "measured", "momentum", "residual", "second_moment"]


def test_a_checkpoint_of_dense_training_goes_on_without_a_warning(two: Ranks) -> None:
    for found in two.run("adam.after_dense"):
        assert found["before"] == found["after"] == []


def test_steps_without_an_optimizer_are_those_of_each_rank(two: Ranks) -> None:
    """Measured, they would be longer where the ranks' first gradients have one sign."""
    assert two.run("adam.without_an_optimizer") == pytest.approx([0.25, 0.25])


def test_a_rank_that_cannot_measure_is_an_error_of_all(two: Ranks) -> None:
    first, second = two.run("adam.unmeasured")
    assert first == second
    assert first[:3] == ["ExchangeError", True, True]
