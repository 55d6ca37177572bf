"""attach(model, "auto") ends no program that DDP runs, whatever it does with gradients."""

from typing import Any

import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.auto_programs import BEGINS


def trained(two: Ranks, name: str) -> dict[str, Any]:
    """What became of it, the same on both ranks, and about as good as by DDP alone."""
    first: dict[str, Any]
    first, second = two.run("auto_programs.trained", name=name)
    assert first["auto"] == second["auto"]
    assert first["auto"]["loss"] == pytest.approx(first["ddp"]["loss"], rel=0.02)
    return first


@pytest.mark.parametrize("name", ["twice", "adversarial"])
def test_passes_that_add_up_from_the_beginning_never_see_the_codec(two: Ranks, name: str) -> None:
    found = trained(two, name)
    assert found["auto"]["print"] == found["ddp"]["print"]
    assert not any(found["auto"]["coded"])
    (told,) = found["auto"]["told"]
    assert "no_sync()" in told
    assert "The codec is not used" in found["auto"]["decision"]


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "twice_later",
        "four_times_later",
        "cleared_by_zeros",
        "not_stepped_every_time",
        "unsynchronised_afterwards",
        "clipped_in_between",
        "through_one_graph",
    ],
)
def test_passes_that_begin_to_add_up_end_the_codec(two: Ranks, name: str) -> None:
    found = trained(two, name)["auto"]
    assert found["coded"][BEGINS - 1]
    assert not any(found["coded"][BEGINS + 2 :])
    assert sum("adds up several exchanged" in each for each in found["told"]) == 1
    assert "The codec is not used" in found["decision"]


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "once",
        "thrown_away",
        "penalised",
        "differentiated_in_between",
        "replaced",
        "by_closure",
        "for_another_model",
        "frozen_and_thawed",
        "not_finite",
    ],
)
def test_other_programs_go_on_with_the_codec(two: Ranks, name: str) -> None:
    found = trained(two, name)["auto"]
    assert any(found["coded"][-16:])
    assert found["decision"] == "It was told so."


def test_gradients_that_are_not_finite_are_an_error_where_they_are_applied(two: Ranks) -> None:
    first, second = two.run("auto_programs.spoiled")
    assert first == second
    assert [each for each in first if " " in each] == ["1 True"] * 2
