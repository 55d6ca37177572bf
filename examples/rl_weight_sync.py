"""Reinforcement learning: a trainer sends its policy to two servers as patches, version by version.

    python examples/rl_weight_sync.py run/        # or with a number of steps: run/ 100

The servers act with the newest policy in bfloat16, which each follows in a process of its own; the
folder could as well be on a network. The trainer has float32 masters, which it moves by the rewards
of their actions at a rate of fine-tuning.
"""

import contextlib
import multiprocessing
import queue
import sys
import time
from typing import Any

import torch
from torch import nn

from gradwire import delta

INPUTS, WIDTH, ACTIONS, SERVERS, RATE = 64, 2048, 16, 2, 1e-6


def make_policy() -> nn.Module:
    """Return a policy of 12.8 million weights."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.SiLU())]
    layers = nn.Linear(INPUTS, WIDTH), nn.SiLU(), *hidden, nn.Linear(WIDTH, ACTIONS)
    return nn.Sequential(*layers).bfloat16()


def serve(folder: str, number: int, rollouts: Any, times: Any) -> None:
    """Act with the newest policy for ever, and look for a newer one between batches."""
    torch.set_num_threads(1)
    policy, follower = make_policy(), delta.Follower(folder)
    torch.manual_seed(1 + number)
    while True:
        before, start = follower.step, time.perf_counter()
        step = follower.pull(policy, timeout=60 if before is None else 0)
        if step != before:
            times.put(time.perf_counter() - start)
        states = torch.randn(64, INPUTS)
        with torch.no_grad():
            chances = policy(states.bfloat16()).float().softmax(1)
        batch = states.numpy(), torch.multinomial(chances, 1)[:, 0].numpy()
        with contextlib.suppress(queue.Full):  # the trainer has enough to learn from
            rollouts.put(batch, timeout=0.1)


def train(folder: str, steps: int, rollouts: Any, times: Any) -> None:
    """Learn from what the servers did, and publish each version."""
    policy = make_policy()
    parameters = [*policy.parameters()]
    masters = [each.detach().float() for each in parameters]
    optimizer = torch.optim.AdamW(masters, lr=RATE)
    best = torch.randn(INPUTS, ACTIONS, generator=torch.Generator().manual_seed(7))
    numel = sum(each.numel() for each in parameters)
    with delta.Publisher(folder) as publisher:
        publisher.push(0, policy)
        for _ in range(SERVERS):
            times.get()  # each has read the whole policy
        for step in range(1, steps + 1):
            states, actions = (torch.from_numpy(each) for each in rollouts.get())
            reward = ((states @ best).argmax(1) == actions).float()
            chances = policy(states.bfloat16()).float().log_softmax(1)
            chosen = chances.gather(1, actions[:, None])[:, 0]
            (-chosen * (reward - reward.mean())).mean().backward()
            changed = 0
            for parameter, master in zip(parameters, masters, strict=True):
                assert parameter.grad is not None
                master.grad, parameter.grad = parameter.grad.float(), None
            optimizer.step()
            with torch.no_grad():
                for parameter, master in zip(parameters, masters, strict=True):
                    changed += int((parameter != master.bfloat16()).sum())
                    parameter.copy_(master)
            start = time.perf_counter()
            nbytes = publisher.push(step, policy).patch
            written = time.perf_counter() - start
            applied = max(times.get() for _ in range(SERVERS))
            print(
                f"version {step}: {changed / numel:.1%} of {numel / 1e6:.1f} M weights changed, "
                f"{nbytes / 1e3:.0f} kB ({8 * nbytes / max(changed, 1):.1f} bits each; whole: "
                f"{2 * numel / 1e6:.1f} MB), written in {written * 1e3:.0f} ms, applied by "
                f"{SERVERS} followers in {applied * 1e3:.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python rl_weight_sync.py FOLDER [STEPS]")
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    rollouts, times = context.Queue(4), context.Queue()
    servers = [
        context.Process(target=serve, args=(sys.argv[1], number, rollouts, times), daemon=True)
        for number in range(SERVERS)
    ]
    for server in servers:
        server.start()
    train(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 50, rollouts, times)
    for server in servers:
        server.terminate()
