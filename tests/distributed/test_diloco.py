"""`gradwire.torch.diloco` over real processes."""

from pathlib import Path

import pytest

from tests.distributed.ranks import Ranks


@pytest.mark.parametrize(("way", "rounds"), [("diloco", 3), ("streaming", 5), ("no momentum", 4)])
def test_what_is_shared_is_the_same_everywhere(ranks: Ranks, way: str, rounds: int) -> None:
    results = ranks.run("diloco.replicas", way=way)
    assert len({each["begun"] for each in results}) == 1
    assert len({each["common"] for each in results}) == 1
    assert len({each["own"] for each in results}) == len(results)
    for each in results:
        assert each["restored"]
        assert each["rounds"] == rounds
        assert each["steps"] == 14
        assert each["report"].compression > 2
        assert "bytes sent" in str(each["report"])
        assert '"wire_bytes"' in each["report"].to_json()


def test_it_computes_what_the_paper_says(two: Ranks) -> None:
    for found in two.run("diloco.against_plain"):
        assert found["same"]


def test_a_run_resumes_bit_for_bit_and_with_other_ranks(
    two: Ranks, three: Ranks, tmp_path: Path
) -> None:
    for way in ("diloco", "streaming"):
        for found in two.run("diloco.resume", way=way, folder=str(tmp_path)):
            assert found == {"same": True, "steps": 9}
    results = three.run("diloco.other_size", folder=str(tmp_path), old=2)
    for found in results:
        assert "rank 0 cannot load its state_dict: expected what" in found["refused"]
        assert found["shared"]
        assert found["residuals"]
    assert len({each["common"] for each in results}) == 1


def test_with_a_delay_every_inner_step_is_sent_once(two: Ranks) -> None:
    for found in two.run("diloco.conserves"):
        assert found["errors"] == 1
        assert found["under way"]
        assert found["rounds"] >= 9
        assert found["off"] < 1e-5


def test_a_rank_that_diverges_is_an_error_on_all_and_the_next_round_goes_on(two: Ranks) -> None:
    first, second = two.run("diloco.failures")
    for found in (first, second):
        assert found["error"] == ("0.weight", 1)
        assert found["unchanged"]
        assert found["rounds"] == 3
        assert found["finite"]
        assert "with different codec" in found["disagree"]
    assert first["shared"] == second["shared"]


def test_a_checkpoint_replaces_all_or_nothing_also_of_a_run_that_has_diverged(two: Ranks) -> None:
    results = two.run("diloco.replaces")
    for found in results:
        assert found["replaced"]
        assert found["rounds"]
        assert found["finite"]
        assert "with these 4 fragments, averages of" in found["refused"]
        assert found["unchanged"]
    assert len({found["common"] for found in results}) == 1


def test_a_rank_that_stops_is_an_error_for_the_others(short_lived: Ranks) -> None:
    (kind, text), _ = short_lived.try_run("diloco.stops")
    assert kind == "returned", text
    assert "no error" not in text


def test_a_damaged_checkpoint_or_one_of_another_run_is_refused_by_all_before_anything_changes(
    two: Ranks,
) -> None:
    first, second = two.run("diloco.damaged")
    assert first == second
    for name, text in first.items():
        assert text.startswith("rank 1 cannot load its state_dict: "), (name, text)
    for name in ("of another run", "other averages", "other momentum"):
        assert "at the same step as that of rank 0, but its shared parameters" in first[name]
