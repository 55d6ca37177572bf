"""`gradwire.torch.diloco.Membership`: processes that die, stop for a while, and come."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.ranks import Nursery, Ranks

pytestmark = [pytest.mark.timeout(900), pytest.mark.waits]


def same_everywhere(results: list[dict[str, Any]]) -> None:
    """What ranks share after a round is the same on all that were there."""
    numbers = {number for each in results for number in each["rounds"]}
    together = 0
    for number in numbers:
        there = [each["rounds"][number] for each in results if number in each["rounds"]]
        together += len(there) > 1
        assert len(set(there)) == 1, number
    assert together >= 4


@pytest.fixture
def apart(nursery: Nursery):
    """Sets of ranks, some of which do not survive the test."""
    made = []

    def make(size: int) -> Ranks:
        made.append(Ranks(nursery, size))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.mark.full
def test_ranks_that_die_are_left_behind_and_nothing_of_the_others_is_lost(
    apart, tmp_path: Path
) -> None:
    outcomes = apart(4).try_run("membership.losses", limit=400.0, folder=str(tmp_path))
    kinds = [kind for kind, _ in outcomes]
    assert kinds == ["returned", "died", "died", "died"], outcomes
    # The frames of survivors are all that moved what is shared: nothing else left their residuals.
    for moment, size in (("steps", 3), ("sent", 2), ("received", 1)):
        every = [torch.load(tmp_path / f"{moment}{rank}.pt") for rank in range(size)]
        assert {each["size"] for each in every} == {size}
        for name, sent in every[0]["sent"].items():
            mass = sum(each["mass"][name] for each in every)
            left = sum(each["left"][name] for each in every)
            assert torch.allclose(mass, left + sent, atol=1e-5), (moment, name)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    same_everywhere([outcomes[0][1], *found])


@pytest.mark.full
def test_a_rank_that_stops_for_a_while_comes_back(apart, tmp_path: Path) -> None:
    results = apart(3).run("membership.pauses", limit=400.0, folder=str(tmp_path))
    same_everywhere(results)
    assert results[2]["kept"]
    assert results[2]["missed"] >= 2
    assert {2, 3} <= set(results[0]["sizes"].values())


def test_ranks_join_others_in_the_middle_and_resume_together(apart, tmp_path: Path) -> None:
    results = apart(3).run("membership.joins", limit=400.0, folder=str(tmp_path))
    same_everywhere(results)
    late = results[2]
    assert late["begun"][0] >= 5
    assert late["begun"][1] >= 10
    assert "cannot join: its delay is 1, but that of the members is 3" in late["refused"]
    for each in results:
        assert set(each["sizes"].values()) == {2, 3} - ({2} if each is late else set())
        assert each["errors"] == results[0]["errors"]
        assert (
            1 <= len(each["errors"]) <= 2
        )  # one for each fragment that was sent before it is mended
        assert each["resumed"]["position"]
        assert each["resumed"]["kept"]
    assert len({tuple(each["resumed"]["rounds"]) for each in results}) == 1


@pytest.mark.full
def test_a_network_in_two_parts_has_one_that_goes_on_and_nobody_trains_without_the_store(
    apart, tmp_path: Path
) -> None:
    results = apart(5).run("membership.cut_off", limit=600.0, folder=str(tmp_path))
    ended, sides = results[:2], results[2:]
    same_everywhere(sides)
    for each in sides[:2]:  # two of three went on, twice, and took the third in again
        assert not each["errors"]
        assert set(each["sizes"].values()) == {2, 3}
    away = sides[2]
    assert "can reach the store, but not the other ranks" in away["errors"][0]
    assert "the store of the members did not answer" in away["errors"][1]
    assert away["kept"] == [True, True]
    assert max(away["rounds"]) == max(sides[0]["rounds"])
    for each in ended:
        assert "the store of the members did not answer" in each["error"]
        assert len(each["saved"]) == 8
        assert each["closed"]


@pytest.mark.full
def test_a_run_that_begins_again_is_told_what_it_waits_for(apart, tmp_path: Path) -> None:
    (found,) = apart(1).run("membership.starts_again", limit=400.0, folder=str(tmp_path))
    assert found["first"] == "trained 1 1"
    assert "a bug" in found["trace"]
    assert found["again"] == "trained 1 1"  # whoever ends by an error has left
    assert found["refused"] == ""
    warning = "the members of this run, which show no sign of life in the store"
    assert found["said"].partition("Traceback")[0].count(warning) == 1
    assert "If they have ended, use another name=" in found["said"]
    assert "MembershipError: gave up after" in found["said"]
