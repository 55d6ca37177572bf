"""With "auto" ranks meet in the middle of training, which must not depend on their gradients."""

from tests.horovod.launcher import HorovodRanks as Ranks


def test_ranks_meet_although_one_goes_on_to_another_collective_of_the_program(two: Ranks) -> None:
    first, second = two.run("meeting.between_backward_and_step")
    assert first == second
    assert set(first["losses"]) == {1.0}
    assert len(first["seen"]) > 3  # dense, by the codec, in part, and all that was left


def test_ranks_meet_for_two_optimizers_whose_gradients_come_in_other_orders(two: Ranks) -> None:
    first, second = two.run("meeting.of_two_optimizers")
    assert first == second
    assert len(first["seen"]) > 3


def test_the_codec_is_left_while_a_parameter_is_frozen_which_stays_as_it_was(two: Ranks) -> None:
    first, second = two.run("meeting.frozen")
    assert first == second
    name, seen = first["first"], first["seen"]
    during = seen[23]
    assert during[name] == 0.05
    assert {each for key, each in during.items() if key != name} == {None}
    assert not all(first["meets"][18:24])
    # Its bucket, with it in one plan, is sent in one way.
    assert len(set(seen[-1].values())) == 1
