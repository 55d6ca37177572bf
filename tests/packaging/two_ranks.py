"""One compressed DDP step of two processes, with what is installed: `python two_ranks.py`."""

import os
import subprocess
import sys
import tempfile


def main(rank: int, store: str) -> None:
    import torch

    import gradwire.torch.ddp

    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
    before = model.module.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gradwire.torch.ddp.attach(model, optimizer=optimizer)
    torch.manual_seed(rank)
    model(torch.randn(8, 100)).square().mean().backward()
    optimizer.step()
    after = model.module.weight.detach()
    both = [torch.empty_like(after), torch.empty_like(after)]
    torch.distributed.all_gather(both, after)
    assert torch.equal(*both)
    assert not torch.equal(before, after)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(int(sys.argv[1]), sys.argv[2])
        sys.exit(0)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        command = [sys.executable, __file__]
        ranks = [subprocess.Popen([*command, str(rank), store]) for rank in (0, 1)]
        sys.exit(max(abs(rank.wait()) for rank in ranks))
