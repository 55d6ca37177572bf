"""What an optimizer and an attachment know of each other."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from torch.optim import Optimizer as _Optimizer
else:
    _Optimizer = object


class OptimizerHooks(Protocol):
    """What an attached optimizer asks of the attachment of one model."""

    def prepare(self) -> None:
        """Exchange gradients that are still this rank's own; raise if any cannot be applied."""

    def steps(self) -> set[int]:
        """Return the ids of the parameters whose ``.grad`` the codec has turned into a step."""

    def idle(self) -> set[int]:
        """Return the ids of the parameters that are not to be updated, whatever they hold."""

    def moments(self) -> "Mapping[torch.Tensor, dict[str, Any]]":
        """Return what dense training would go on with, of parameters whose moments codecs have."""

    def late(self) -> "Mapping[int, torch.Tensor]":
        """Return, once, what is to be applied before ``.grad``, by the ids of the parameters."""

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise a ValueError if the options of a group do not suit the codec."""


class Attachable(_Optimizer):
    """Mixed into an optimizer of torch, before it: applies what codecs have computed already.

    Without links it changes nothing. The class that it is mixed into applies steps in `_apply`.
    """

    _links: tuple[OptimizerHooks, ...] = ()
    _loaded = False

    # What attach calls ------------------------------------------------------------------------

    def _attach(self, link: OptimizerHooks) -> None:
        """Ask this attachment, too, from now on."""
        self._links = (*self._links, link)

    def _detach(self, link: OptimizerHooks) -> None:
        """Ask this attachment no more."""
        self._links = tuple(each for each in self._links if each is not link)

    def _take_loaded(self) -> bool:
        """Tell, once, whether a state was loaded."""
        loaded, self._loaded = self._loaded, False
        return loaded

    # What users call --------------------------------------------------------------------------

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's loss scaler asks of a fused step: not where it applies steps of a codec."""
        fused = bool(self.__dict__.get("_step_supports_amp_scaling", False))
        return fused and not self._applies

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supported: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = supported

    @property
    def _applies(self) -> bool:
        """Whether ``.grad`` may hold what a codec has computed."""
        return bool(self._links) or any(group.get("corrected") for group in self.param_groups)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters; return the result of the closure, if one is given.

        A collective if gradients are still this rank's own, as after a backward pass within
        ``no_sync()``: they are exchanged first.

        Raises
        ------
        ValueError
            Attached, and options have been changed so that they do not suit the codec any more.
        GradientError, ExchangeError, UpdateError
            As a backward pass. Nothing was applied.
        """
        if not self._applies:
            return self._torch_step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for link in self._links:
            link.prepare()
        self._apply_late()
        computed = set().union(*[link.steps() for link in self._links])
        hidden = computed.union(*[link.idle() for link in self._links])
        found = [(group, _with_gradients(group, computed)) for group in self.param_groups]
        every = [each for group in self.param_groups for each in _with_gradients(group, hidden)]
        try:
            for parameter, _ in every:
                parameter.grad = None  # not for torch
            self._torch_step(None)
        finally:
            for parameter, gradient in every:
                parameter.grad = gradient
        with torch.no_grad():
            for group, pairs in found:
                if pairs:
                    self._apply([each for each, _ in pairs], [each for _, each in pairs], group)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, also while attached; its options must suit the codec."""
        if self._links:
            given = param_group["params"]
            given = [given] if isinstance(given, torch.Tensor) else list(given)
            param_group = {**param_group, "params": given}
            tensors = [each[1] if isinstance(each, tuple) else each for each in given]
            for link in self._links:
                link.check_group({**self.defaults, **param_group, "params": tensors})
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return what torch's optimizer would, so that dense training can go on from it.

        The second moments that codecs keep are those of this rank, divided by what makes them ones
        of averages; first moments are zero. Not a collective: one rank may save for all.
        """
        given = {each: one for link in self._links for each, one in link.moments().items()}
        lacking = {each: one for each, one in given.items() if each not in self.state}
        self.state.update(lacking)
        try:
            found: dict[str, Any] = super().state_dict()
        finally:
            for each in lacking:
                del self.state[each]
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` of this or of torch's optimizer returned."""
        super().load_state_dict(state_dict)
        self._loaded = True

    # What optimizers are made of --------------------------------------------------------------

    def _apply(
        self, parameters: list[torch.Tensor], steps: list[torch.Tensor], group: dict[str, Any]
    ) -> None:
        """Update parameters of a group by what the codec has computed."""
        raise NotImplementedError

    @torch.no_grad()
    def _apply_late(self) -> None:
        """Apply what gradients of a later pass would have been added to."""
        late = {key: each for link in self._links for key, each in link.late().items()}
        for group in self.param_groups if late else ():
            given = [each for each in group["params"] if id(each) in late]
            if given:
                self._apply(given, [late[id(each)] for each in given], group)

    def _torch_step(self, closure: Callable[[], Any] | None) -> Any:
        step: Any = super().step
        # torch wraps `step` of every class that it has made an object of, and runs the hooks of
        # users there. This class is wrapped itself: they would run twice.
        if getattr(step, "hooked", False):
            return step.__wrapped__(self, closure)
        return step(closure)


def _with_gradients(
    group: dict[str, Any], computed: set[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the parameters of a group for which the codec has computed steps, with these."""
    return [
        (each, each.grad)
        for each in group["params"]
        if each.grad is not None and (group.get("corrected") or id(each) in computed)
    ]
