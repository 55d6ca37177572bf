"""`gradwire.torch.horovod.DistributedOptimizer` trains as Horovod's own, and compresses."""

import re
from typing import Any

from tests.horovod.launcher import HorovodRanks as Ranks


def test_all_sent_it_is_horovods_own_optimizer(ranks: Ranks) -> None:
    # Two numbers have one sum; Horovod multiplies that of three by a rounded third.
    limit = 0.0 if ranks.world_size == 2 else 2e-6
    for found in ranks.run("training.parity"):
        assert max(found.values()) <= limit, found


def test_replicas_stay_bit_identical_with_every_exchange(ranks: Ranks) -> None:
    first, *others = ranks.run("training.replicas")
    assert len(first) == 7
    assert all(each == first for each in others)


def test_every_dtype_and_sparse_gradients_are_taken(ranks: Ranks) -> None:
    first, *others = ranks.run("training.dtypes")
    assert all(each == first for each in others)


def test_averages_may_be_clipped_and_closures_are_averaged(two: Ranks) -> None:
    first, second = two.run("training.clipping")
    assert first["apart"] == 0.0
    assert first["print"] == second["print"]


def test_mistakes_are_told_and_leave_no_trace(two: Ranks) -> None:
    first, second = two.run("training.mistakes")
    assert first == second
    assert first["steps"] == 2
    said = first["said"]
    for name in ("clears in flight", "loads in flight", "skips in flight"):
        assert said[name].startswith("UpdateError: "), name
        assert "synchronize()" in said[name]
    assert "was changed while it was being exchanged" in said["clips in flight"]
    assert "call optimizer.synchronize() before scaler.unscale_" in said["unscales in flight"]
    assert "more than backward_passes_per_step=1 times" in said["too many passes"]
    assert said["adds a group"].startswith("ValueError: add_param_group()")
    assert said["no passes"].startswith("ValueError: backward_passes_per_step")


REFUSED = {
    "adasum": "ValueError: op must be hvd.Average or hvd.Sum",
    "sum of steps": "ValueError: op=hvd.Sum would add up the steps",
    "predivide": "TypeError: .*unexpected keyword argument 'gradient_predivide_factor'",
    "passes": "ValueError: backward_passes_per_step",
    "groups": "ValueError: groups must be",
    "process set": "ValueError: Horovod does not know",
    "no optimizer": "TypeError: .*takes a torch.optim.Optimizer",
    "lbfgs": "TypeError: LBFGS decides by this rank's own loss",
    "horovod's": "ValueError: hvd.DistributedOptimizer has wrapped",
    "no codec": "TypeError: .*gradwire.topk",
    "name missing": "ValueError: named_parameters= lacks 1 parameters",
    "name twice": "ValueError: named_parameters= lacks 7 parameters",
    "no AdamW": "ValueError: .*use torch.optim.AdamW",
    "seconds": r"TypeError: timeout= takes a datetime.timedelta.*got 30 \(int\)",
    "no time": "ValueError: timeout= must be positive",
    "no scaler": "TypeError: grad_scaler= takes a torch.amp.GradScaler",
    "no number": "TypeError: min_numel must be an integer, got '1k'",
    "ranks differ": "ValueError: rank 1 and rank 0 attached with different groups",
    "again": "ValueError: this optimizer is already distributed",
    "its original": "ValueError: this optimizer is already distributed",
    "by both": "ValueError: this optimizer is a copy, or gradwire has distributed it already",
    "of another": "ValueError: '0.weight' belongs to another distributed optimizer",
}


def test_what_is_not_supported_is_refused_by_name(two: Ranks) -> None:
    for found in two.run("training.refused"):
        assert found.keys() == REFUSED.keys()
        for name, said in found.items():
            assert re.match(REFUSED[name], said, re.DOTALL), (name, said)


def test_a_gradient_that_is_not_finite_leaves_no_trace_on_any_rank(ranks: Ranks) -> None:
    last = ranks.world_size - 1
    for found in ranks.run("training.bad_gradients"):
        assert found["scaled apart"] == 0.0
        assert found["scales"] == [1024.0, 512.0]
        assert found["scaled steps"] == [4, 4]
        assert f"on rank {last}" in found["scaled error"]
        assert "optimizer.synchronize() before scaler" in found["unsynchronized"]
        assert found["error"][1] == last
        assert found["restored"]
        assert found["same"]


def test_parameters_may_be_unused_or_frozen_or_ready_in_any_order(ranks: Ranks) -> None:
    results = ranks.run("training.unused")
    for found in results:
        assert found["zero"]
        assert found["kept"] == {"a": False, "b": True, "c": True}
        assert found["frozen"]
        assert found["print"] == results[0]["print"]


def test_a_process_set_trains_by_itself(three: Ranks) -> None:
    outside, *members = three.run("training.process_sets")
    assert outside["alone"]
    for found in members:
        assert (found["alone"], found["size"], found["apart"]) == (False, 2, 0.0)
        assert found["print"] == members[0]["print"] != outside["print"]


def test_schedulers_and_broadcasts_go_on_as_with_horovods_own(two: Ranks) -> None:
    first, second = two.run("training.surroundings")
    assert first == second
    assert first["apart"] == 0.0
    assert first["rates"][0] == first["rates"][1]


def test_adamw_with_a_scheduler_from_before_resumes_bit_for_bit(two: Ranks) -> None:
    first, second = two.run("training.habits")
    assert first == second
    assert first["same"]
    assert first["warned"] == []


def test_the_handle_saves_resumes_pauses_discards_and_lets_go(ranks: Ranks) -> None:
    for found in ranks.run("training.controls"):
        assert found["gathered"] == [f"rank{each}" for each in range(ranks.world_size)]
        assert found["resumed"]
        assert found["discarded"]
        assert found["paused"] < 1e-6
        assert found["detached"] < 1e-6
        assert found["steps"] == 7


def test_after_a_rank_was_killed_every_call_is_an_error_that_elastic_knows(
    killed: dict[str, Any],
) -> None:
    for name, error in killed["said"].items():
        assert error is not None, f"{name} raised nothing"
        module, kind, message, recognized = error
        assert recognized, (name, error)
        if module != "horovod.common.exceptions":  # what Horovod itself says
            assert (kind, "another rank" in message) == ("LostRankError", True), (name, error)
    own = {name for name, error in killed["said"].items() if error[1] == "LostRankError"}
    assert killed["said"].keys() - own == {
        *("Horovod's own, waiting", "Horovod's own", "commit", "broadcast"),
    }


def test_an_elastic_state_returns_to_its_commit_and_divides_residuals(ranks: Ranks) -> None:
    results = ranks.run("training.elastic_state")
    for found in results:
        assert (found["at"], found["back"], found["step"], found["attached"]) == (3, True, 3, True)
        assert "ElasticState, whose sync() attaches it" in found["between"]
        assert found["print"] == results[0]["print"]
