"""Cart-pole by proximal policy optimization: the policy that is trained makes its own data.

The equations are those of Barto, Sutton, Anderson, "Neuronlike adaptive elements that can solve
difficult learning control problems" (1983), without friction, with the limits and the length of
500 steps that are usual; the updates those of Schulman, Wolski, Dhariwal, Radford, Klimov,
"Proximal Policy Optimization Algorithms" (2017), with generalized advantages.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

SEED = 20260101
ENVIRONMENTS = 16
"""Of all ranks together."""
HORIZON, EPOCHS, PARTS = 64, 4, 4
DISCOUNT, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
LONGEST = 500
GRAVITY, CART, POLE, HALF, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
FARTHEST, STEEPEST = 2.4, math.radians(12)
WIDTH = 256
HELD_OUT = 64
"""Episodes of an evaluation."""


class Policy(nn.Module):
    """Two networks of three layers, for actions and values: 0.13 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = _layers(2)
        self.critic = _layers(1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of both actions, and values."""
        return self.actor(states), self.critic(states).squeeze(-1)


def _layers(out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, out)
    )


class CartPoles:
    """Some carts, each with a pole to balance: one point a step, until it falls."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._generator = generator
        self.states = self._begun(count)
        self.ages = torch.zeros(count)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Push to the right where the action is 1; tell what fell, and what stood to the end."""
        place, speed, angle, turning = self.states.unbind(1)
        force = FORCE * (2 * actions - 1)
        sine, cosine = angle.sin(), angle.cos()
        push = (force + POLE * HALF * turning.square() * sine) / (CART + POLE)
        turned = (GRAVITY * sine - cosine * push) / (
            HALF * (4 / 3 - POLE * cosine.square() / (CART + POLE))
        )
        moved = push - POLE * HALF * turned * cosine / (CART + POLE)
        self.states = torch.stack(
            [
                place + SECONDS * speed,
                speed + SECONDS * moved,
                angle + SECONDS * turning,
                turning + SECONDS * turned,
            ],
            dim=1,
        )
        self.ages += 1
        fell = (self.states[:, 0].abs() > FARTHEST) | (self.states[:, 2].abs() > STEEPEST)
        ended = ~fell & (self.ages >= LONGEST)
        return fell, ended

    def renew(self, which: Tensor) -> None:
        """Begin some anew."""
        self.states = torch.where(which.unsqueeze(1), self._begun(len(which)), self.states)
        self.ages = torch.where(which, 0, self.ages)

    def _begun(self, count: int) -> Tensor:
        return 0.1 * torch.rand(count, 4, generator=self._generator) - 0.05


class Experience:
    """A rank's environments, and what it has seen in them of late.

    Each loss takes the next part; when all were taken `EPOCHS` times, the policy acts again.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._world = CartPoles(count, self._generator)
        self._parts: list[Tensor] = []

    def loss(self, policy: nn.Module) -> Tensor:
        """Return the loss of the next part."""
        if not self._parts:
            with torch.no_grad():
                self._act(policy)
        part = self._parts.pop()
        logits, values = policy(self._states[part])
        every = logits.log_softmax(-1)
        chosen = every.gather(-1, self._actions[part].unsqueeze(-1)).squeeze(-1)
        ratio = (chosen - self._before[part]).exp()
        advantages = self._advantages[part]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        entropy = -(every.exp() * every).sum(-1)
        error = functional.mse_loss(values, self._returns[part])
        loss: Tensor = 0.5 * error - gain.mean() - ENTROPY * entropy.mean()
        return loss

    def _act(self, policy: nn.Module) -> None:
        """Act for `HORIZON` steps, and keep states, actions, advantages and returns."""
        world = self._world
        seen, chosen, before, worth, ends, last = [], [], [], [], [], []
        for _ in range(HORIZON):
            logits, values = policy(world.states)
            every = logits.log_softmax(-1)
            draws = torch.rand(len(values), generator=self._generator)
            actions = (draws < every[:, 1].exp()).long()
            seen.append(world.states)
            chosen.append(actions)
            before.append(every.gather(-1, actions.unsqueeze(-1)).squeeze(-1))
            worth.append(values)
            fell, ended = world.step(actions)
            # One that was stopped, and did not fall, would have gone on.
            last.append(torch.where(fell, 0, policy(world.states)[1]))
            ends.append(fell | ended)
            world.renew(ends[-1])
        advantage = torch.zeros(len(world.states))
        advantages = []
        for now in reversed(range(HORIZON)):
            advantage = (~ends[now]).float() * advantage * DISCOUNT * LAMBDA
            advantage = advantage + 1 + DISCOUNT * last[now] - worth[now]
            advantages.append(advantage)
        self._states, self._actions = torch.cat(seen), torch.cat(chosen)
        self._before = torch.cat(before)
        self._advantages = torch.cat(advantages[::-1])
        self._returns = self._advantages + torch.cat(worth)
        for _ in range(EPOCHS):
            order = torch.randperm(len(self._states), generator=self._generator)
            self._parts += order.chunk(PARTS)


class Control:
    """Balance a pole on a cart."""

    def model(self, seed: int) -> nn.Module:
        """Return a newly initialized model."""
        torch.manual_seed(SEED + seed)
        return Policy()

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Experience]:
        """Yield a rank's environments, always the same ones."""
        if ENVIRONMENTS % ranks:
            raise ValueError(f"{ENVIRONMENTS} environments do not divide among {ranks} ranks")
        mine = Experience(ENVIRONMENTS // ranks, SEED + 1000 * seed + rank)
        while True:
            yield mine

    def loss(self, model: nn.Module, batch: Experience) -> Tensor:
        """Return the mean loss of what the environments gave last."""
        return batch.loss(model)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return how long poles stay up, as a share of the longest time, and what is missing."""
        world = CartPoles(HELD_OUT, torch.Generator().manual_seed(SEED))
        up = torch.ones(HELD_OUT, dtype=torch.bool)
        lasted = torch.zeros(HELD_OUT)
        while up.any() and lasted.max() < LONGEST:
            lasted += up
            fell, _ = world.step(model(world.states)[0].argmax(-1))
            world.renew(fell)
            up &= ~fell
        share = float(lasted.mean()) / LONGEST
        return {"loss": 1 - share, "return": share}

    def facts(self) -> dict[str, object]:
        """Return facts about data and model, for the record."""
        return {"data": "cart-pole", "environments": ENVIRONMENTS, "held_out_episodes": HELD_OUT}
