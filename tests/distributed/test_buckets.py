"""scope="bucket": entries are selected from a bucket as one vector, and kept by name."""

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.test_schedules import conserved


@pytest.mark.parametrize(
    ("cap", "whole"), [(25.0, False), (25.0, True), (0.01, False)], ids=["gaps", "all", "buckets"]
)
def test_a_bucket_is_selected_from_as_one_vector(two: Ranks, cap: float, whole: bool) -> None:
    results = two.run("buckets.selecting", cap=cap, whole=whole)
    for found in results:
        assert found["trimmed"] == 0
        assert found["same"] == found["kept"] == [True] * 4
        every = {"a", "b", "c", "bias", "scalar"} if whole else {"a", "b", "c"}
        assert [sum(map(len, each)) for each in found["bundles"]] == [len(every)] * 4
        assert len(found["bundles"][0]) == 1
        assert len(found["bundles"][-1]) == (2 if cap < 1 else 1)
        achieved, by_name = found["achieved"]
        assert achieved == pytest.approx(1.0) == found["metrics"]
        assert by_name.keys() == every
        assert 'scope="bucket": ratios are over buckets' in found["codec"]
        for name, expected in found["expected norms"].items():
            assert found["norms"][name] == pytest.approx(expected)
        assert found["bytes"]["a"] == 2 * 4 * 64 * 40
        assert sum(found["timeline"]) >= 5
        assert found["held"] == 64 * 40 + 50 * 30 + 1200 + (40 + 1) * whole


def test_over_a_bucket_the_scale_of_each_layer_decides_its_share(two: Ranks) -> None:
    for found in two.run("buckets.scales"):
        assert found["tensor"] >= 75
        assert found["bucket"] == 0


def test_what_is_given_is_applied_or_kept_by_name(two: Ranks) -> None:
    results = two.run("buckets.conserving")
    for name in results[0]:
        each = [found[name] for found in results]
        if name == "bfloat16":  # rounded when it is kept
            continue
        if name != "adacomp":  # whose signs have a magnitude that is rounded
            conserved(each)
        for found in each:
            assert found["kept"] == [True, True], name
            assert all(found["sent"][key] > 0 for key in "abc"), name
            assert all(
                np.array_equal(found["applied"][key], each[0]["applied"][key]) for key in "abc"
            ), name


def test_a_resumed_run_is_the_same_run(two: Ranks) -> None:
    for found in two.run("buckets.resuming"):
        assert all(found.values()), found


@pytest.mark.parametrize("codec", ["topk", "sidco", "drawn"])
def test_a_checkpoint_goes_from_one_scope_and_bucket_size_to_another(
    two: Ranks, codec: str
) -> None:
    results = two.run("buckets.converting", codec=codec)
    conserved(results)
    for found in results:
        assert found["same"] == [True] * 3
        assert found["bundles"] == [[], [1, 2], [3], []]


def test_a_checkpoint_of_another_number_of_ranks_is_divided_by_name(two: Ranks) -> None:
    results = two.run("buckets.regrouped")
    first, second = results
    for name, own in first["before"].items():
        total = own.astype(np.float64) + second["before"][name]
        for found in results:
            np.testing.assert_allclose(2 * found["sum-and-split"][name], total, atol=1e-6)
            assert not found["drop"][name].any()
        np.testing.assert_allclose(first["keep"][name], total, atol=1e-6)
        assert not second["keep"][name].any()
    for policy in ("sum-and-split", "keep", "drop"):
        assert first[policy, "fingerprint"] == second[policy, "fingerprint"]
    for found in results:
        assert found["gathered"]
        assert found["own"]


def test_a_step_that_does_not_count_leaves_no_trace(two: Ranks) -> None:
    results = two.run("buckets.undoing")
    for found in results:
        assert found["error"] == ("b", 2, 7 * 30 + 3, 1)
        assert found["restored"]
        assert found["skipped"]
        assert found["dropped"]
        assert found["step"] == 4
        assert (found["scaled"], found["adam"]) == (results[0]["scaled"], results[0]["adam"])


def test_a_discarded_pass_of_a_bucket_that_is_idle_in_part_is_taken_again_alike(two: Ranks) -> None:
    for found in two.run("buckets.discarded"):
        for name, same in found.items():
            assert same == [True] * 6, name


def test_ranks_agree_on_sizes_after_the_first_pass_of_a_resumed_run_failed(two: Ranks) -> None:
    results = two.run("buckets.failing_first")
    for found in results:
        assert found["bundles"] > 1
        assert found["error"] == results[0]["error"]
        assert found["same"]


def test_a_bucket_that_one_rank_cannot_copy_is_an_error_of_all(two: Ranks) -> None:
    for found in two.run("buckets.arranging"):
        for name, (said, kept) in found.items():
            assert "rank 1 could not encode: MemoryError: no memory for a copy" in said, name
            assert kept, name


def test_only_what_has_one_codec_rate_and_count_goes_together(two: Ranks) -> None:
    results = two.run("buckets.kinds")
    for found in results:
        assert found["by name"] == [["a"], ["bias", "c", "scalar"]]
        assert found["adam 0"] == found["adam 1"] == found["adam 2"] == [["a"], ["b", "c"]]
        assert found["adam 3"] == [["a"], ["b"], ["c"]]
        assert found["adam 4"] == [["a", "c"], ["b"]]
        assert [found[f"warm-up {step}"] for step in range(4)] == [0, 0, 1, 1]
        assert found["fingerprint"] == results[0]["fingerprint"]


def test_what_cannot_be_meant_is_refused(two: Ranks) -> None:
    results = two.run("buckets.refusals")
    for found in results:
        assert "factors the matrix of each parameter" in found["factors"]
        assert "in the residual of each parameter" in found["owners"]
        assert found["mistyped"].startswith("scope must be"), found["mistyped"]
        assert "attached with different scope" in found["ranks"]
        for name in ("stranger", "twice"):
            assert "cannot be a bundle of the bucket" in found[name]
        assert "rank 0 cannot load its state_dict" in found["scalars"]
        assert "sizes must be two counts" in found["sizes"]
        assert "must be a list, got dict" in found["kind"]
        assert found["fingerprint"] == results[0]["fingerprint"]


def test_shares_of_a_bucket_are_vectors_inside_nodes_and_with_fsdp(four: Ranks) -> None:
    for found in four.run("buckets.inside_nodes"):
        assert found["conserved"]
        assert found["sent"] > 0
        assert found["bundles"] >= 2
        assert found["alike"]
        assert found["resumed"]
        assert any(len(each) > 1 for each in found["members"])
