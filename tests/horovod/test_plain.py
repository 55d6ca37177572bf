"""What goes without the codec is what Horovod's own optimizer makes of it, to the last bit."""

from tests.horovod.launcher import HorovodRanks as Ranks


def test_averages_without_the_codec_are_horovods_own_bit_for_bit(ranks: Ranks) -> None:
    for cases in ranks.run("plain.exact_sums"):
        assert len(cases) == 4
        for name, found in cases.items():
            assert found == {"paused": True, "own": True}, name


def test_what_stays_dense_in_one_group_trains_bit_for_bit_as_with_horovods_own(
    ranks: Ranks,
) -> None:
    # Horovod adds up three numbers in an order that follows from their place among those that were
    # ready at the same time. In one group that is the same.
    assert set(ranks.run("plain.one_group")) == {0.0}
