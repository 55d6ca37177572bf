"""Each parameter has the codec that its name calls for; a schedule may count steps."""

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.test_schedules import conserved


def test_the_first_pattern_counts_and_other_parameters_are_sent_dense(two: Ranks) -> None:
    results = two.run("named.conserving")
    for result in results:
        assert result["ratios"] == {"a": 0.05, "c": 0.5}
        assert result["dense"] == {"b", "bias", "scalar"}
        assert "{'a': gradwire.topk(ratio=0.05)" in result["text"]
        assert np.count_nonzero(result["final"]["a"]) > 0
    conserved(results)


def test_an_optimizer_makes_its_own_step_where_no_codec_does(two: Ranks) -> None:
    results = two.run("named.with_an_optimizer")
    for result in results:
        assert result["same"]
        assert result["fingerprint"] == results[0]["fingerprint"]
        assert "0.weight" not in result["kept"]
        assert {"3.weight", "5.weight", "0.bias"} <= result["kept"]


def test_codecs_of_one_sum_go_together(two: Ranks) -> None:
    results = two.run("named.summed")
    assert results[0] == results[1]
    assert results[0]["step"] == 3


def test_what_cannot_be_meant_is_refused_on_all_ranks(two: Ranks) -> None:
    for found in two.run("named.refusals"):
        assert (
            "no parameter is called '9.weight'; there are '0.weight', '0.bias'" in found["mistyped"]
        )
        assert "there is no codec among the values" in found["no codec"]
        assert found["not a name"].startswith("TypeError: the keys are names of parameters, got 0")
        assert "the function topk itself; call it" in found["not a codec"]
        assert "must have the same exchange" in found["exchanges"]
        assert "rank 1 and rank 0 attached with different codec" in found["ranks"]
        assert "sends steps, not gradients, and got no optimizer" in found["no optimizer"]


@pytest.mark.parametrize(
    ("dense", "expected"),
    [(False, [0.5, 0.5, 0.2, 0.2, 0.05, 0.05, 0.05]), (True, [None, None, *[0.05] * 5])],
    ids=["warm-up", "dense"],
)
def test_a_schedule_by_steps_advances_alone_and_resumes(
    two: Ranks, dense: bool, expected: list[float | None]
) -> None:
    results = two.run("named.by_steps", dense=dense)
    for result in results:
        assert result["ratios"] == expected
        assert result["same"]
        assert result["fingerprint"] == results[0]["fingerprint"]
