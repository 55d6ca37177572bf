"""Somebody who reaches the ports of `gradwire.torch.diloco.Membership`, and has no token."""

import re
from pathlib import Path

import pytest

from tests.distributed.ranks import Nursery, Ranks

pytestmark = [pytest.mark.timeout(600), pytest.mark.waits]


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


TEXTS = {
    "replays": "has seen",
    "deletes": "the store was restarted|somebody has deleted it",
}


@pytest.mark.full
def test_whoever_has_the_port_but_no_token_ends_the_run_and_gets_nothing_else(
    apart, tmp_path: Path
) -> None:
    *members, _ = apart(3).run("strangers.attacked", limit=500.0, folder=str(tmp_path))
    for found in members:
        wrong, none = found.pop("wrong token")
        assert "different tokens and need the same one" in wrong
        assert "with another release or token" in none
    for attack in members[0]:
        both = [each[attack] for each in members]
        rounds = [each["rounds"] for each in both]
        for number in rounds[0].keys() & rounds[1].keys():
            assert rounds[0][number] == rounds[1][number], attack
        for each in both:
            kind, text = each["error"]
            assert kind == "MembershipError", (attack, text)
            expected = TEXTS.get(attack, "was not written with this rank's token")
            assert re.search(expected, text), (attack, text)
            assert each["as before"], attack
            assert len(each["saved"]) == 8
            assert set(each["sizes"].values()) == {2}


def test_without_a_token_a_pickle_is_never_read_and_only_this_host_can_connect(
    apart, tmp_path: Path
) -> None:
    member, stranger = apart(2).run("strangers.unpickled", limit=300.0, folder=str(tmp_path))
    assert not member["executed"]
    assert set(member["sizes"].values()) == {1}
    assert "rank 1 sent a message that cannot be read" in stranger["error"]
    assert member["listens"]
    assert all(each[:9] in ("0100007F:", "0200007F:") for each in member["listens"])
    assert any(each.startswith("0200007F:") for each in member["listens"]), "as the store does"
