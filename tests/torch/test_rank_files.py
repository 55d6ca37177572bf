"""The states of all ranks as files."""

from pathlib import Path

from tests.support import run_on_a_small_disk


def test_a_full_disk_is_told_and_the_earlier_file_stays(tmp_path: Path) -> None:
    printed = run_on_a_small_disk(
        """
        import os, sys
        from pathlib import Path
        from types import SimpleNamespace
        import torch
        from gradwire.torch.checkpoint import files as rank_files

        def handle(numel):
            state = {"rank0": {"about": "{}", "residual": {"w": torch.ones(numel)}}}
            return SimpleNamespace(rank=0, state_dict=lambda: state)

        folder = Path(sys.argv[1])
        rank_files.save(handle(10), folder)
        try:
            rank_files.save(handle(200_000), folder)
        except OSError as error:
            print(error)
        print(os.listdir(folder), torch.load(folder / "gradwire_0.pt")["rank0"]["residual"])
        """,
        tmp_path,
    )
    said, left = printed.splitlines()[0], " ".join(printed.splitlines()[1:])
    assert said == f"[Errno 28] No space left on device: '{tmp_path}/gradwire_0.pt'"
    assert left.startswith("['gradwire_0.pt'] {'w': tensor([1., 1.,")
