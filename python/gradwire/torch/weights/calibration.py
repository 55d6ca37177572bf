"""Calibration: Gram matrices of the inputs of a model's weights, by name."""

import collections
import contextlib
import copy
import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._pytree import tree_map

from gradwire._validate import require
from gradwire.torch.weights.inputs import BLOCK, Inputs, Sum, cross, reader_of, weights_of
from gradwire.torch.weights.ops import FLOATS
from gradwire.torch.weights.slots import slots_of, unwrapped
from gradwire.weights import Gram, load_grams, save_grams
from gradwire.weights.pack import shape_for

See = Callable[[str, list[Inputs]], None]


class Calibration(Mapping[str, Gram]):
    """Collects Gram matrices of the inputs of a model's weights, while it runs.

    >>> with weights.Calibration(model) as seen:
    ...     for batch in batches:
    ...         model(batch)
    >>> report = weights.pack(model, {"*": quantize.Affine(3, 64)}, calibration=seen)

    A mapping of names, as in ``model.named_parameters()``, to `gradwire.weights.Gram`, in the order
    of their first use. It may be entered again, to collect more. An error within a batch keeps
    everything collected before.

    Supported are the weights of these modules, when they are called: `nn.Linear`; `nn.Conv1d` to
    `nn.Conv3d`, by patches; `nn.MultiheadAttention`; and `nn.LSTM`, `nn.GRU`, `nn.RNN` and their
    cells. Attention and recurrent layers run a second time for it. Groups of channels have a matrix
    each, and so have queries, keys and values that differ. A weight that another module holds as
    well, as a head that is tied to an embedding, has none: codes that suit its inputs would be
    worse where it is looked up than the nearest codes. Uses outside of the weight's module, as by
    ``F.linear(x, module.weight)``, are not seen. `unseen` lists weights without inputs.

    Inputs are multiplied in blocks of 4096, in float32 (float64 in float64), and summed in float64:
    ``n`` multiply-adds for each entry of an input of width ``n``, once for successive weights that
    share inputs. The matrices need 8 bytes an entry, and two more of the widest layer.

    Parameters
    ----------
    model : torch.nn.Module
        A model on any device. A result of `torch.compile` runs uncompiled meanwhile.
    sequential : bool
        Keep only the arguments of the model's calls: tensors without a copy (do not write to them),
        objects as copies. Each matrix is computed on request: the model runs again on all batches,
        in eval mode, up to the weight's last use. `pack` then calibrates each layer on the outputs
        of the packed layers before it, whose decoded values it holds beside the model.

    Raises
    ------
    TypeError
        The model, or a part, is wrapped for training.
    NonFiniteError
        While it runs: an input of a layer has NaN or infinite entries.
    RuntimeError
        While it runs: a part of the model was called alone, and would have to be run again.
    """

    def __init__(self, model: nn.Module, *, sequential: bool = False) -> None:
        inner, kinds = unwrapped(model), (DataParallel, DistributedDataParallel)
        wrapped = any(isinstance(module, kinds) for module in inner.modules())
        refusal = "Calibration takes an unwrapped model: pass its module"
        require(not wrapped, refusal, kind=TypeError)
        stanced = inner is model or hasattr(torch.compiler, "set_stance")
        refusal = "before torch 2.6, calibrate the model before you compile it"
        require(stanced, refusal, kind=TypeError)
        #: Whether matrices depend on how the weights before them were packed.
        self.sequential = sequential
        self._model = inner
        self._parameters: dict[str, nn.Parameter] = {}
        self._names: dict[tuple[nn.Module, str], str] = {}
        described = {owner for module in inner.modules() for owner in weights_of(module)}
        shared, looked_up = list[str](), set[str]()
        for slot in slots_of(inner):
            value = slot.value
            if type(value) is not nn.Parameter or value.dtype not in FLOATS:
                continue
            if value.dim() < 2 or not value.numel():
                continue
            self._parameters[slot.name] = value
            if described.issuperset(slot.owners):
                self._names.update(dict.fromkeys(slot.owners, slot.name))
            elif not described.isdisjoint(slot.owners):
                shared.append(slot.name)
            elif any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m, _ in slot.owners):
                looked_up.add(slot.name)
        #: Names of the weights that modules of other kinds hold as well, so without a matrix.
        self.shared = tuple(shared)
        self._without = looked_up.union(shared)
        self._loaded: dict[str, Gram] = {}
        self._sums: dict[str, Sum | None] = {}  # None: computed on request
        self._last: tuple[list[Inputs], list[Any], Sum] | None = None
        self._batches: list[_Batch] = []
        self._batch: _Batch | None = None
        self._open: contextlib.ExitStack | None = None

    def __enter__(self) -> Self:
        require(self._open is None, "the calibration is entered already", kind=RuntimeError)
        with contextlib.ExitStack() as stack:
            _by_modules(stack)
            if self.sequential:
                before = self._model.register_forward_pre_hook(
                    self._begin, prepend=True, with_kwargs=True
                )
                stack.callback(before.remove)
                stack.callback(self._model.register_forward_hook(self._end_batch).remove)
            stack.enter_context(self._reporting_inputs(self._see, self._parameters))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._open is not None
        stack, self._open, self._batch, self._last = self._open, None, None, None
        stack.__exit__(*error)

    @contextlib.contextmanager
    def _reporting_inputs(self, see: See, names: Collection[str]) -> Iterator[None]:
        """Report the inputs of some weights before modules use them."""

        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            with torch.inference_mode(False), torch.no_grad():
                for owner, attribute, inputs in reader_of(module)(module, *args, **kwargs):
                    name = self._names.get((owner, attribute), "")
                    if name not in names or not inputs[0].samples:
                        continue
                    # Inputs of another width are an error of the module, which it raises itself.
                    if inputs[0].width == self._parameters[name][0].numel():
                        see(name, inputs)

        with contextlib.ExitStack() as stack:
            for module in self._model.modules():
                if any(self._names.get(owner, "") in names for owner in weights_of(module)):
                    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
                    stack.callback(handle.remove)
            yield

    def _begin(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        kind = next((parameter.device.type for parameter in self._parameters.values()), "cpu")
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        args, kwargs = _copy_arguments(args, kwargs)
        self._batch = _Batch(args, kwargs, torch.autocast(kind, dtype, enabled))

    def _end_batch(self, *_: Any) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            self._batches.append(batch)
            self._sums.update(dict.fromkeys(batch.uses))

    def _see(self, name: str, inputs: list[Inputs]) -> None:
        if not self.sequential:
            self._sums[name] = self._sum(name, inputs) + self._sums.get(name)
            return
        if self._batch is None:
            raise RuntimeError(
                f"{name!r} was used outside a call to the model: with sequential=True, call the "
                "model itself, because its calls are repeated"
            )
        for part in inputs:
            part.precision(name)
        self._batch.uses[name] += 1

    def _sum(self, name: str, inputs: list[Inputs]) -> Sum:
        """Sum inputs, unless they are those of the last weight, unchanged."""
        rows = [part.rows for part in inputs]
        key: list[Any] = [None]  # inference tensors do not count the writes to them
        if not any(x.is_inference() for x in rows):
            key = [(x.data_ptr(), x.shape, x.stride(), x._version) for x in rows]
        if self._last is None or self._last[1] != key or key == [None]:
            self._last = inputs, key, Sum.of([part.blocks(name) for part in inputs])
        return self._last[2]

    @property
    def unseen(self) -> tuple[str, ...]:
        """Names of the weights without inputs, except those that are `shared` or looked up."""
        known = self._without.union(self._loaded, self._sums)
        return tuple(name for name in self._parameters if name not in known)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._loaded, **self._sums})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._sums or name in self._loaded

    def __getitem__(self, name: str) -> Gram:
        """Return the Gram matrix of a weight's inputs, as float64 on the host.

        It is a KeyError if the weight has none, and a RuntimeError within the ``with`` of a
        sequential calibration, or if nothing reaches the weight any more.
        """
        if name not in self._sums:
            return self._loaded[name]
        known = self._sums[name]
        gram = self.pair(name, {})[0] if known is None else known.gram()
        if gram is None:
            raise RuntimeError(f"no input reached {name!r} when the model ran again, in eval mode")
        return self._loaded[name] + gram if name in self._loaded else gram

    def __repr__(self) -> str:
        return f"Calibration({len(self)} weights seen, {len(self.unseen)} unseen)"

    def pair(
        self, name: str, replaced: Mapping[str, torch.Tensor]
    ) -> tuple[Gram | None, NDArray[np.float64] | None]:
        """Run a sequential calibration's batches again, for one matrix, with weights replaced.

        It is None if nothing reaches the weight any more, such as an expert. The second result is
        ``X^T Y`` of original inputs X and inputs Y with weights replaced; None if these do not
        correspond, as when a router sends other inputs to an expert, or if nothing is replaced.
        """
        refusal = "leave the `with` of the calibration before matrices are computed"
        require(self._open is None, refusal, kind=RuntimeError)
        total: Sum | None = None
        products: Any = 0 if replaced else None
        for batch in self._batches:
            after = self._run(batch, name, replaced)
            for inputs in after:
                total = Sum.of([torch.split(part, BLOCK, 1) for part in inputs]) + total
            if products is None:
                continue
            before = self._run(batch, name, {})
            shapes = [[[x.shape for x in use] for use in uses] for uses in (before, after)]
            if shapes[0] == shapes[1]:
                products += sum(map(cross, before, after))
            else:
                products = None
        gram = None if total is None else total.gram()
        if gram is None or products is None or not products.isfinite().all():
            return gram, None
        return gram, products.cpu().numpy().reshape(gram.matrix.shape)

    def _run(
        self, batch: "_Batch", name: str, replaced: Mapping[str, torch.Tensor]
    ) -> list[list[torch.Tensor]]:
        """Run a batch until a weight was used as often as before; return its inputs of each use."""
        uses: list[list[torch.Tensor]] = []
        if not batch.uses[name] and not replaced:
            return uses

        def see(name: str, inputs: list[Inputs]) -> None:
            uses.append([torch.cat(list(part.blocks(name)), 1) for part in inputs])
            if len(uses) == batch.uses[name]:
                raise _ReplayFinished

        with contextlib.suppress(_ReplayFinished), contextlib.ExitStack() as stack:
            # The same random numbers, with weights replaced and without.
            cuda = {
                parameter.device for parameter in self._parameters.values() if parameter.is_cuda
            }
            stack.enter_context(torch.random.fork_rng(cuda))
            stack.enter_context(in_eval_mode(self._model))
            stack.enter_context(batch.autocast)
            _by_modules(stack)
            for other, value in replaced.items():
                parameter = self._parameters[other]
                stack.callback(setattr, parameter, "data", parameter.data)
                parameter.data = value
            stack.enter_context(self._reporting_inputs(see, (name,)))
            args, kwargs = _copy_arguments(batch.args, batch.kwargs)
            self._model(*args, **kwargs)
        return uses

    def __add__(self, other: "Calibration") -> "Calibration":
        """Combine two calibrations, as of two machines, with all matrices on the host.

        It is a ValueError if one is sequential, or a matrix of the other does not fit this model.
        """
        if not isinstance(other, Calibration):
            return NotImplemented
        refusal = "a sequential calibration keeps batches: give one all of them"
        require(not self.sequential and not other.sequential, refusal)
        merged = Calibration(self._model)
        for name, gram in itertools.chain(self.items(), other.items()):
            merged._load(name, gram)
        return merged

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all matrices to a safetensors file, exactly; see `gradwire.weights.save_grams`."""
        save_grams(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module) -> Self:
        """Load a saved calibration for a model; it may be entered to collect more.

        Errors are those of `gradwire.weights.load_grams`, and a ValueError for another model.
        """
        calibration = cls(model)
        for name, gram in load_grams(path).items():
            calibration._load(name, gram)
        return calibration

    def _load(self, name: str, gram: Gram) -> None:
        """Add a matrix; raise a ValueError if it does not fit the model."""
        message = "there is a Gram matrix of {!r}, and no such weight in the model"
        require(name in self._parameters, message, name)
        shape_for(gram, tuple(self._parameters[name].shape), repr(name))
        if name not in self._without:
            self._loaded[name] = self._loaded[name] + gram if name in self._loaded else gram


@dataclasses.dataclass
class _Batch:
    """One call of a model, and how often it used each weight."""

    args: Any
    kwargs: Any
    autocast: torch.autocast
    uses: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class _ReplayFinished(BaseException):
    """Ends a forward when a weight's last inputs were seen."""


def _copy_arguments(args: Any, kwargs: Any) -> Any:
    """Copy arguments that a model may write to, such as key-value caches, but not tensors."""

    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach()
        return value if isinstance(value, nn.Module) else copy.deepcopy(value)

    try:
        return tree_map(copied, (args, kwargs))
    except Exception as error:
        raise TypeError(f"the arguments of a call cannot be kept to repeat it: {error}") from error


def _by_modules(stack: contextlib.ExitStack) -> None:
    """Run nothing compiled, nor a layer of a transformer as one operator: hooks see neither."""
    mha = torch.backends.mha
    stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
    mha.set_fastpath_enabled(False)
    if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
        stack.enter_context(torch.compiler.set_stance("force_eager"))


@contextlib.contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Set a model to eval mode, without gradients, within a block."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in training:
            module.training = mode
