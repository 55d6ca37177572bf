"""FSDP2 inside two nodes of two ranks, compressed between the nodes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.ranks import Ranks


def test_what_sends_everything_trains_as_hybrid_sharding_of_torch(four: Ranks) -> None:
    for found in four.run("sharded.against_hsdp"):
        assert found["plain"] == found["factor"] == found["sums"] == 0.0
        # torch sums replicas in 16 bits, this in the parameters' 32.
        assert found["bf16"] < 1e-4
        assert found["f16"] < 1e-5


def test_frames_of_ranks_that_are_bound_to_devices_stay_there(
    kept: Callable[[int, str], Ranks],
) -> None:
    expected = kept(4, "cpu").run("sharded.bound")
    found = kept(4, "carried").run("sharded.bound")
    for one, other in zip(found, expected, strict=True):
        assert (one.pop("carried_by"), other.pop("carried_by")) == ("carrier", "gloo")
        assert one["alike"]
        assert one == other


def test_replicas_are_alike_by_every_exchange_and_without_compression(four: Ranks) -> None:
    for found in four.run("sharded.replicas"):
        assert found["alike"] == [True] * 4
        assert found["plain"] == 0.0


def test_accumulated_gradients_are_exchanged_once(four: Ranks) -> None:
    for found in four.run("sharded.accumulation"):
        for how, steps in (("gradient", 2), ("all-reduce", 2), ("each", 6)):
            assert found[how] < 1e-7
            assert found[f"{how} steps"] == steps


def test_a_loss_that_is_not_finite_on_one_rank_leaves_no_trace_on_any(four: Ranks) -> None:
    results = four.run("sharded.bad_gradients")
    assert all(each == results[0] for each in results)
    assert results[0] == {
        "error": (True, True, 2),  # of the second node, a rank whose shard shows it
        "kept": True,
        "steps": 4,
        "alike": True,
        "scale": 32.0,
        "scaled steps": 3,
        "scaled alike": True,
    }


def test_an_exception_in_a_backward_pass_leaves_no_trace(four: Ranks) -> None:
    for found in four.run("sharded.interrupted"):
        assert found == {"raised": True, "kept": True, "step": 2, "alike": True, "steps": 4}


def test_resume_through_dcp_is_bit_for_bit_and_ddp_takes_over(four: Ranks, tmp_path: Path) -> None:
    for found in four.run("sharded.resume", folder=str(tmp_path)):
        assert found["alike"]
        assert found["parameters"]
        assert found["states"]
        assert found["schedule"].endswith("epoch 0: ratio 0.02"), "that of the codec is 0.01"
        assert found["sums"][1] == pytest.approx(found["sums"][0], rel=1e-5)


def test_accordion_decides_by_the_shards_of_the_first_node(four: Ranks) -> None:
    results = four.run("sharded.regimes")
    first = results[0]
    for rank, each in enumerate(results):
        for what in ("norms", "critical"):
            assert each[what] == first[what]
        assert each["holds"] == (["a", "c"] if rank < 2 else [])
    # The second shard of `a` is three times as large in epoch 2: decided when that has ended.
    one, other = 17 * 40, 16 * 40
    norms = [2 * (one + other * factor**2) ** 0.5 for factor in (1.0, 1.0, 3.0, 3.0, 3.0)]
    assert [each["a"] for each in first["norms"][1:6]] == pytest.approx(norms, rel=1e-12)
    assert [each["c"] for each in first["norms"][1:6]] == pytest.approx([2 * 1500**0.5] * 5)
    critical = [True, True, False, True, False, False]
    assert [each["a"] for each in first["critical"][:6]] == critical
    assert [each["c"] for each in first["critical"][:6]] == [True, True] + [False] * 4
    for each in results:
        for sent, low in zip(each["sent"], critical, strict=False):
            assert (sent["a"] > 4 * 300) == low  # half of 640 or 680 entries, or a twentieth
            assert sent["a"] > 4 * 32
    # Saved within epoch 4, and ended by DDP with the same nodes: the same norms.
    assert first["norms"][6] == pytest.approx(first["norms"][5], rel=1e-12)
    assert first["critical"][6] == first["critical"][5]


def test_models_whose_shards_are_not_those_of_a_node_are_refused(four: Ranks) -> None:
    said = {
        "different meshes": "ValueError: all FSDP modules must have the same mesh",
        "several groups": "has several parameter groups, which shard_placement_fn",
        "tensor parallel": "is sharded over 2 dimensions",
        "meta": "over 1 dimensions, on meta",
        "nothing to train": "has no parameter that FSDP shards and that requires gradients",
        "three dimensions": "mesh= must have the dimensions (replicas, shards)",
        "other nodes": "with the shards over [",
        "a sound one": "nothing",
    }
    for told in four.run("sharded_refused.models"):
        assert told.keys() == said.keys()
        for what, text in said.items():
            assert text in told[what]


def test_a_module_that_is_called_twice_trains_as_in_hybrid_sharding(four: Ranks) -> None:
    assert four.run("sharded_refused.twice") == [0.0] * 4


def test_passes_whose_averages_come_too_late_are_refused(four: Ranks) -> None:
    for told in four.run("sharded_refused.passes"):
        assert "regroup() cannot change the ranks per node" in told["regroup"]
        assert (
            "has a hook from register_post_accumulate_grad_hook()" in told["a hook of a parameter"]
        )
        assert told["steps"] == "2"
        assert "was frozen at attach()" in told["frozen at attach"]


def test_what_cannot_be_attached_is_refused_and_said(four: Ranks) -> None:
    said = [
        "TypeError: attach() takes a model on which torch.distributed.fsdp.fully_shard()",
        "a two-dimensional mesh",
        "this rank must be the only one in both",
        "TypeError: mesh= takes the DeviceMesh of the replicas",
        "already has a hook",
        "nothing",
        "already has an attached codec",
        "nothing",
        "set_manual_backward_finalization(True) is not supported",
    ]
    for told in four.run("sharded.refusals"):
        assert len(told) == len(said)
        for text, expected in zip(told, said, strict=True):
            assert expected in text


def test_a_step_exchanges_what_is_reduced_inside_the_node_only(four: Ranks) -> None:
    for found in four.run("sharded_held.exchanged_by_the_step"):
        for how in ("one", "two", "last", "factor", "bf16", "cleared", "paused"):
            assert found[how] < (1e-4 if how == "bf16" else 1e-7), how
            assert found[f"{how} steps"] == (0 if how == "paused" else 4)


@pytest.mark.full
def test_clipping_is_of_gradients_before_their_exchange_and_told_after_it(four: Ranks) -> None:
    results = four.run("sharded_held.clipping")
    for found in results:
        assert found == results[0]
        assert all(each["alike"] for each in found.values())
        assert found["gradients"]["loss"] == pytest.approx(found["dense"]["loss"], rel=0.05)
        assert found["updates"]["loss"] > 1.5 * found["dense"]["loss"]
        assert found["dense"]["said"] == found["gradients"]["said"] == []
        (said,) = found["updates"]["said"]
        assert "Clipping gradients there clips updates" in said
        assert "set_requires_all_reduce(False)" in said


def test_a_gradient_of_the_node_on_top_of_an_update_is_not_applied(four: Ranks) -> None:
    for found in four.run("sharded_held.mixed"):
        (said,) = found["texts"]
        assert "zero_grad() between passes" in said
        assert found["steps"] == 3
        assert found["alike"]
