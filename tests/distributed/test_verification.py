"""Buckets that are compared with the core: nothing changes by it, and planted faults are found."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.verification import CODECS, FAULTY, STEPS

SCALAR = "at the core's scalar level"
EXCHANGES = ("gather", "one buffer", "dense", "leader", "owners", "owners of all")
"""Codecs of which each goes another way."""
WORDS = {
    "frame": "another frame of",
    "scale": "another frame of",
    "state": "another state of",
    "average": "another average of",
    "cut": "another cut of the frame of",
    "sums": "another frame of the sums of",
}


@pytest.fixture
def kernels(backend: str) -> bool:
    """Whether kernels encode, and not the core."""
    return backend == "carried"


@pytest.mark.parametrize(
    "codec",
    [pytest.param(each, marks=() if each in EXCHANGES else pytest.mark.full) for each in CODECS],
)
def test_training_goes_on_bit_for_bit_as_without(two: Ranks, codec: str) -> None:
    options: dict[str, Any] = {"codec": codec, "small": True}
    expected = two.run("verification.trained", **options)
    found = two.run("verification.trained", **options, options={"verify": 2})
    for one, other in zip(found, expected, strict=True):
        assert one["error"] == ""
        for key in ("print", "state", "steps"):
            assert one[key] == other[key]
        assert other["compared"] == []
        # Buckets with compressed parameters are two, once DDP has made them anew.
        assert one["compared"] == [(step, step // 2 % 2) for step in range(0, STEPS, 2)]


@pytest.mark.parametrize(
    ("codec", "fault"),
    [
        ("gather", "frame"),
        ("gather", "scale"),
        ("gather", "state"),
        ("gather", "average"),
        ("one buffer", "scale"),
        ("one buffer", "average"),
        ("dense", "scale"),
        ("owners", "scale"),
        ("owners", "cut"),
        ("owners", "sums"),
        ("owners", "average"),
    ],
)
def test_a_fault_on_one_rank_is_the_same_error_on_all(two: Ranks, codec: str, fault: str) -> None:
    found = two.run("verification.trained", codec=codec, fault=fault, options={"verify": 2})
    assert len({each["error"] for each in found}) == 1
    for each in found:
        text = each["error"]
        assert text.startswith(f"ExchangeError: rank 1 has {WORDS[fault]} '")
        assert f"step {FAULTY}, bucket 0, torch.float32" in text
        assert repr(CODECS[codec]()) in text
        assert "Please report" in text
        assert (each["rank"], each["step"], each["steps"]) == (1, FAULTY, FAULTY)
    right = two.run("verification.trained", codec=codec, steps=FAULTY)
    for each, other in zip(found, right, strict=True):
        assert each["state"] == other["state"], "the step has left something in the states"
        assert each["print"] == other["print"]


@pytest.mark.parametrize(
    ("codec", "fault"),
    [
        ("gather", "frame"),
        ("gather", "scale"),
        ("gather", "state"),
        ("gather", "average"),
        ("one buffer", "average"),
        ("owners", "scale"),
        ("owners", "cut"),
        ("owners", "sums"),
        ("owners", "average"),
        ("owners of all", "sums"),
    ],
)
def test_training_goes_on_without_what_is_wrong(
    two: Ranks, codec: str, fault: str, kernels: bool
) -> None:
    way = "by the core on the host" if kernels else SCALAR
    options = {"verify": FAULTY, "on_mismatch": "fallback"}
    found = two.run("verification.trained", codec=codec, fault=fault, options=options)
    expected = two.run("verification.trained", codec=codec)
    for rank, (each, right) in enumerate(zip(found, expected, strict=True)):
        assert each["error"] == ""
        assert each["print"] == right["print"]
        assert each["state"] == right["state"]
        assert each["steps"] == STEPS
        (said,) = each["said"]
        assert said.startswith(f"rank 1 has {WORDS[fault]} '")
        assert f"step {FAULTY}, bucket 0, torch.float32" in said
        assert said.endswith(f"From now on all ranks encode and decode {way}")
        assert each["wrong"] == rank, "it went wrong again"


def test_the_bucket_that_is_wrong_is_named_among_several(two: Ranks) -> None:
    found = two.run("verification.trained", fault="scale", small=True, options={"verify": FAULTY})
    for each in found:
        assert "another frame of '0.weight' than" in each["error"]


@pytest.mark.parametrize("on_mismatch", ["raise", "fallback"])
def test_parameters_that_the_program_changed_on_one_rank_are_an_error_on_all(
    two: Ranks, on_mismatch: str
) -> None:
    options = {"verify": 2, "on_mismatch": on_mismatch}
    found = two.run("verification.trained", fault="parameter", options=options)
    assert found[0]["error"] == found[1]["error"]
    for each in found:
        assert f"ranks 0 and 1 have different parameters at step {FAULTY}" in each["error"]
        assert "in the bucket of '" in each["error"]
        assert (each["rank"], each["step"], each["steps"]) == (1, FAULTY, FAULTY)


@pytest.mark.parametrize("fault", ["scale", "average"])
def test_a_fault_in_a_hierarchy_is_an_error_on_all_ranks(four: Ranks, fault: str) -> None:
    options = {"verify": 2, "hierarchy": 2}
    found = four.run("verification.trained", fault=fault, options=options)
    for each in found:
        assert WORDS[fault] in each["error"]
        assert each["rank"] == 3
        assert each["step"] == FAULTY


def test_shards_of_fsdp_are_compared_between_nodes(kept: Callable[[int, str], Ranks]) -> None:
    expected, found, wrong, changed = (
        kept(4, "cpu").run("verification.sharded", fault=fault, verify=verify)
        for fault, verify in (("none", 0), ("none", 1), ("scale", 2), ("parameter", 2))
    )
    assert {"different parameters" in each["error"] for each in changed[1::2]} == {True}
    for rank, (one, other, faulty) in enumerate(zip(expected, found, wrong, strict=True)):
        assert one["error"] == other["error"] == ""
        assert one["state"] == other["state"]
        assert one["values"] == other["values"]
        assert faulty["step"] == FAULTY
        assert WORDS["scale"] in faulty["error"], rank


def test_ranks_agree_on_what_they_compare(two: Ranks) -> None:
    for text in two.run("verification.disagreeing"):
        assert "rank 1 and rank 0 attached with different verify or on_mismatch" in text
