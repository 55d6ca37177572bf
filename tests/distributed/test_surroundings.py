"""Training among threads, forks, copies and Ctrl-C: nothing hangs, aborts or gets out of step."""

from tests.distributed.ranks import Ranks


def test_what_is_no_exception_is_an_error_on_all_ranks_and_no_hang(short_lived: Ranks) -> None:
    for text, rank in short_lived.run("surroundings.no_exception"):
        assert text.endswith("rank 1 could not encode: Stop: stopped")
        assert rank == 1


def test_ctrl_c_between_steps_aborts_no_process(short_lived: Ranks) -> None:
    first, second = short_lived.run("surroundings.interrupted")
    assert first[0] == "ExchangeError"
    assert second[0] == "KeyboardInterrupt"


def test_a_thread_may_report_during_training(two: Ranks) -> None:
    first, second = two.run("surroundings.watched")
    assert first["print"] == second["print"]
    for found in (first, second):
        assert found["reports"] > 0
        assert found["steps"] == 60


def test_a_forked_process_leaves_the_ranks_alone(expendable: Ranks) -> None:
    first, second = expendable.run("surroundings.forked")
    assert first == second
    assert first["code"] == 5
    assert first["steps"] == 4


def test_copies_of_a_model_take_codecs_of_their_own(two: Ranks) -> None:
    for found in two.run("surroundings.copied"):
        assert found == [(2, True), (2, True)]


def test_without_a_network_for_gloo_it_is_said_which_one_to_name(two: Ranks) -> None:
    for text, trained in two.run("surroundings.no_network"):
        assert "its messages between the ranks go over Gloo, even if frames go over NCCL" in text
        assert "name its interface with GLOO_SOCKET_IFNAME" in text
        assert "missing0" in text, "what Gloo says of it"
        assert trained == 2, "plain DDP goes on, and a later attach() finds its ranks"


def test_gathering_to_different_ranks_is_an_error_at_once(two: Ranks) -> None:
    first, second = two.run("surroundings.to_different_ranks")
    assert "rank 1 called gathered_state_dict(None), this rank gathered_state_dict(0)" in first
    assert "rank 0 called gathered_state_dict(0), this rank gathered_state_dict(None)" in second
