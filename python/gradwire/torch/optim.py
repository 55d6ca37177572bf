"""Lets torch's own AdamW, Adam, SGD and Muon apply the updates that codecs compute.

`gradwire.torch.ddp.attach` does it by itself; a loop that encodes and decodes by itself calls
`adapt`:

>>> optimizer = gradwire.torch.optim.adapt(torch.optim.AdamW(groups, lr=1e-3))
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

__all__ = ["MUONS", "adapt"]

Family = Literal["adam", "sgd", "muon"]
"""The rule by which an optimizer makes its steps."""

MUONS: set[type[Optimizer]] = {
    kind for kind in (getattr(torch.optim, "Muon", None),) if kind is not None
}
"""Classes that make momentum orthogonal and apply that, as `torch.optim.Muon` does.

Add others, and subclasses with another ``step``, before `attach`. Their groups have ``momentum``,
their states a ``momentum_buffer``, and the length of momentum must have no effect:

>>> gradwire.torch.optim.MUONS.add(muon.SingleDeviceMuon)
"""


def adapt(optimizer: Optimizer) -> Optimizer:
    """Make an optimizer of torch apply the updates that codecs compute, and return it.

    Its class, its options and its checkpoints stay as they are. What it applies is ``.grad`` of the
    groups that have ``corrected=True``, and of the parameters that an attached codec has computed
    steps for:

    - With Adam and AdamW, the average of all ranks' steps, which include the learning rate
      (`gradwire.memory.AdamCorrection`), with decoupled weight decay:
      ``parameter = parameter * (1 - lr * weight_decay) - grad``. `attach` refuses an Adam that adds
      weight decay to gradients, because the codec does not see it.
    - With SGD, the average of gradients with momentum (`gradwire.memory.MomentumCorrection`). The
      optimizer only adds the momentum of weight decay, which no rank sends: it updates by ``grad +
      momentum(weight_decay * parameter)``.
    - With Muon, the mean of all ranks' momentum (`gradwire.memory.Estimate`). The optimizer's own
      momentum becomes the same before each step, so that it changes nothing.

    All other parameters are updated by torch, bit for bit as without this.

    Parameters
    ----------
    optimizer : torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD or one of `MUONS`
        Or a subclass with the same ``step``. An optimizer that is already adapted is unchanged.

    Returns
    -------
    torch.optim.Optimizer
        The same object.

    Raises
    ------
    TypeError
        The optimizer is none of these.

    References
    ----------
    Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.

    Chen, Shen, Liu, Luo, "Efficient-Adam: Communication-Efficient Distributed Adam", 2022: moments
    of each rank's own, and error feedback on their steps.

    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018, section 3.2; weight decay as in the authors' code.
    """
    OptimizerAdapter.of(optimizer)._stays = True
    return optimizer


def family_of(optimizer: object) -> Family | None:
    """Return the rule of an optimizer; None if its ``step`` is another one than torch's."""
    kind = getattr(optimizer, "wrapped_class", type(optimizer))
    for ancestor in kind.__mro__:
        if ancestor in (torch.optim.AdamW, torch.optim.Adam):
            return "adam"
        if ancestor is torch.optim.SGD:
            return "sgd"
        if ancestor in MUONS:
            return "muon"
        if "step" in vars(ancestor):
            return None
    return None


def decays_gradients(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    """Return whether weight decay is added to the gradients, as in Adam but not in AdamW."""
    kind = getattr(optimizer, "wrapped_class", type(optimizer))
    decoupled = group.get("decoupled_weight_decay", issubclass(kind, torch.optim.AdamW))
    return bool(group["weight_decay"] != 0.0 and not decoupled)


_ATTRIBUTE = "_gradwire_adapter"
_AMP = "_step_supports_amp_scaling"


class OptimizerAdapter:
    """Makes the steps of one optimizer apply the updates of codecs, through torch's hooks.

    So it works for any caller of the step, and for bound methods that schedulers and loss scalers
    keep. The hooks hide ``.grad`` of the computed parameters from torch, and update them
    afterwards. If torch's step raises in between, the next step puts them back, unless a backward
    pass has begun.
    """

    def __init__(self, family: Family) -> None:
        self._update = _update_adam if family == "adam" else _update_sgd
        self._stands_in = family == "muon"  # for the optimizer's momentum, which it is then
        self._links: tuple[Any, ...] = ()  # an `OptimizerLink` of each attachment
        self._handles: tuple[RemovableHandle, ...] = ()
        self._stays = False  # after the last attachment
        # Parameters and their gradients, by ids of parameters.
        self._hidden: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._steps: dict[int, bool] = {}  # by ids of parameters: see `OptimizerLink.prepare`
        self._scales = False  # torch's loss scaler leaves it to the optimizer to unscale

    @classmethod
    def of(cls, optimizer: Optimizer) -> "OptimizerAdapter":
        """Return the adapter of an optimizer, a new one if it has none; or raise a TypeError."""
        adapter: OptimizerAdapter | None = optimizer.__dict__.get(_ATTRIBUTE)
        if adapter is not None:
            return adapter
        family = family_of(optimizer)
        if family is None:
            raise TypeError(
                "only torch.optim.AdamW, Adam, SGD and Muon apply what codecs compute, and classes "
                f"derived from them without a step() of their own; got {type(optimizer).__name__}"
            )
        adapter = cls(family)
        after = optimizer.register_step_post_hook(adapter._after_step)
        # Hooks of users are to see gradients where they were.
        optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]
        adapter._handles = (
            after,
            optimizer.register_step_pre_hook(adapter._before_step),
            optimizer.register_state_dict_post_hook(adapter._add_moments),
        )
        adapter._scales = bool(getattr(optimizer, _AMP, False))
        adapter._let_scale(optimizer)
        optimizer.__dict__[_ATTRIBUTE] = adapter
        return adapter

    def _applies(self, optimizer: Optimizer) -> bool:
        """Tell whether ``.grad`` may hold a codec's update."""
        return bool(self._links) or any(group.get("corrected") for group in optimizer.param_groups)

    def _let_scale(self, optimizer: Optimizer) -> None:
        """Leave unscaling to fused kernels, as torch does, unless a codec's steps bypass them."""
        if self._scales:
            optimizer.__dict__[_AMP] = not self._applies(optimizer)

    # What an attachment calls -----------------------------------------------------------------

    def attach(self, optimizer: Optimizer, link: object) -> None:
        """Serve this attachment as well, from now on."""
        self._links = (*self._links, link)
        self._let_scale(optimizer)

    def detach(self, optimizer: Optimizer, link: object) -> None:
        """Stop serving this attachment."""
        self._links = tuple(other for other in self._links if other is not link)
        self._let_scale(optimizer)
        if self._links or self._stays:
            return
        self._restore()
        for handle in self._handles:
            handle.remove()
        optimizer.__dict__.pop(_ATTRIBUTE, None)

    def forget(self) -> None:
        """Drop the gradients of a step that raised: a backward pass begins."""
        self._hidden.clear()

    # What torch calls -------------------------------------------------------------------------

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Prepare the step, after its closure and the hooks of users have run."""
        if not self._links and not self._applies(optimizer):
            return None
        kwargs = dict(kwargs)
        closure = args[1] if len(args) > 1 else kwargs.pop("closure", None)

        def begin() -> Any:
            loss = None if closure is None else closure()
            if self._hidden:  # after a step that raised
                self._restore()
            self._steps = {}
            for link in self._links:
                self._steps |= link.prepare()
            for group in optimizer.param_groups:
                corrected = group.get("corrected")
                for tensor in group["params"]:
                    step = tensor.grad
                    if step is None or not (corrected or id(tensor) in self._steps):
                        continue
                    if not self._stands_in:
                        self._hidden[id(tensor)] = tensor, step
                        tensor.grad = None
                    elif corrected or self._steps[id(tensor)]:
                        # Whatever their weights, the mean of it and of what equals it is the same.
                        state = optimizer.state[tensor]
                        state.setdefault("momentum_buffer", torch.empty_like(step)).copy_(step)
            return loss

        return (args[0], begin), kwargs

    def _restore(self) -> None:
        """Put hidden gradients back, unless there are new ones."""
        for parameter, gradient in self._hidden.values():
            if parameter.grad is None:
                parameter.grad = gradient
        self._hidden.clear()

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        hidden = dict(self._hidden)
        self._restore()
        for group in optimizer.param_groups if hidden else ():
            updates = [
                hidden[key]
                for key in map(id, group["params"])
                if key in hidden and (group.get("corrected") or self._steps[key])
            ]
            if updates:
                parameters, steps = map(list, zip(*updates, strict=True))
                self._update(optimizer, parameters, steps, group)

    def _add_moments(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """Add optimizer states for uncompressed training, for moments kept by codecs.

        The second moments that codecs keep are those of this rank, divided by what makes them ones
        of averages; first moments are zero. Not a collective: one rank may save for all.
        """
        moments = {
            id(parameter): one for link in self._links for parameter, one in link.moments().items()
        }
        groups = zip(optimizer.param_groups, state_dict["param_groups"], strict=True)
        for group, saved in groups:
            for parameter, key in zip(group["params"], saved["params"], strict=True):
                if id(parameter) in moments:
                    state_dict["state"].setdefault(key, moments[id(parameter)])


def _update_adam(
    optimizer: Optimizer,
    parameters: list[torch.Tensor],
    steps: list[torch.Tensor],
    group: dict[str, Any],
) -> None:
    del optimizer
    keep = 1.0 - float(group["lr"]) * group["weight_decay"]
    sign = 1.0 if group["maximize"] else -1.0
    torch._foreach_mul_(parameters, keep)
    torch._foreach_add_(parameters, steps, alpha=sign)


def _update_sgd(
    optimizer: Optimizer,
    parameters: list[torch.Tensor],
    steps: list[torch.Tensor],
    group: dict[str, Any],
) -> None:
    rate, decay = float(group["lr"]), group["weight_decay"]
    # Weight decay pulls towards zero, whether the rest ascends or descends.
    sign = -1.0 if group["maximize"] else 1.0
    for parameter, step in zip(parameters, steps, strict=True):
        if decay != 0.0:
            moved = _with_momentum(optimizer.state[parameter], decay * parameter, group)
            parameter.sub_(sign * step + moved, alpha=rate)
        else:
            parameter.sub_(step, alpha=sign * rate)


def _with_momentum(
    state: dict[str, Any], step: torch.Tensor, group: Mapping[str, Any]
) -> torch.Tensor:
    momentum = group["momentum"]
    if momentum == 0.0:
        return step
    if state.get("momentum_buffer") is None:
        state["momentum_buffer"] = torch.zeros_like(step)
    buffer: torch.Tensor = state["momentum_buffer"].mul_(momentum).add_(step)
    return step.add(buffer, alpha=momentum) if group["nesterov"] else buffer
