"""Calibration: Gram matrices of the inputs of a model's weights, by name."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gradwire import _validate
from gradwire.torch.weights.cross import CrossProducts
from gradwire.torch.weights.inputs import Inputs, Range
from gradwire.torch.weights.replay import Batch, replay, uncompiled
from gradwire.torch.weights.slots import slots_of
from gradwire.torch.weights.sums import Adder, Layer, Sum, check, nbytes
from gradwire.torch.weights.watch import FLOATS, Watch
from gradwire.weights import Gram, gram, load_grams


class Calibration(Mapping[str, Gram]):
    """Collects Gram matrices of the inputs of a model's weights, while it runs.

    >>> with weights.Calibration(model) as seen:
    ...     for batch in batches:
    ...         model(batch)
    >>> report = weights.pack(model, {"*": quantize.Affine(3, 64)}, calibration=seen)

    A mapping of names, as in ``model.named_parameters()``, to `gradwire.weights.Gram`, in the order
    of their first use. It may be entered again, to collect more. An error within a batch keeps
    everything collected before.

    Supported are weights of linear layers, also through ``F.linear``, ``x @ w.t()`` and
    ``torch.addmm``; convolutions, by patches; the projections of `nn.MultiheadAttention`; and both
    matrices of `nn.LSTM`, `nn.GRU`, `nn.RNN` and their cells, whose layers run a second time for
    it, without dropout between them. If groups of a weight's rows have different inputs, as groups
    of channels, queries and keys, or experts within one parameter, there is a matrix for each equal
    group of rows. A weight that is also used otherwise, as a head that is tied to an embedding, has
    none: codes that suit its inputs would be worse where it is looked up than the nearest codes.
    Not supported are embeddings, transposed convolutions, projections of an LSTM's
    states (``weight_hr``), products with a weight of shape (in, out), and computations outside
    torch's functions, as in scripted modules. `unseen` lists weights without inputs.

    Inputs are multiplied in blocks of 4096, in float32, whatever the model's dtype (float64 in
    float64), and summed in float64, on their device: a batch costs its forward pass, and ``n``
    multiply-adds for each entry of an input of width ``n``. Inputs shared by successive weights,
    such as queries, keys and values, are multiplied once (not under ``torch.inference_mode``).
    Besides the matrices it needs memory for two more of the widest layer, and a block of its
    inputs.

    Parameters
    ----------
    model : torch.nn.Module
        A model on any device. A result of `torch.compile` runs uncompiled meanwhile.
    memory : int, optional
        Bytes for matrices, 8 for each entry; at least one layer is always held. If they do not all
        fit, the layers used first are held, and the arguments of the model's calls are kept:
        tensors without a copy (do not write to them), objects as copies. The matrices of other
        layers are computed on request, by running the model again, for as many layers at once as
        fit, replacing the previous ones. Requested in order, all of them cost about (their bytes /
        `memory`) partial forwards of all batches.
    sequential : bool
        Keep only the arguments of calls, so that `gram` computes each matrix with the weights
        before it replaced: one partial forward of all batches for each layer. `pack` then
        calibrates each layer on the outputs of the packed layers before it.

    Raises
    ------
    TypeError
        The model, or a part, is scripted or wrapped for training.
    NonFiniteError
        While it runs: an input of a layer has NaN or infinite entries. Earlier inputs of the layer
        are kept.
    RuntimeError
        While it runs: a part of the model was called alone, and would have to be run again.
    """

    def __init__(
        self, model: nn.Module, *, memory: int | None = None, sequential: bool = False
    ) -> None:
        inner = getattr(model, "_orig_mod", model)  # what torch.compile returns
        for name, module in inner.named_modules():
            if isinstance(module, (DataParallel, DistributedDataParallel)):
                raise TypeError("Calibration takes an unwrapped model: pass its module")
            if isinstance(module, torch.jit.ScriptModule):
                where = f"module {name!r}" if name else "the model"
                raise TypeError(f"{where} is scripted, which hides what reaches its weights")
        if memory is not None:
            memory = _validate.integer("memory", memory, low=0)
        #: Whether matrices are to be asked for with the weights before them replaced.
        self.sequential = sequential
        self._model = inner
        if inner is not model and not hasattr(torch.compiler, "set_stance"):
            raise TypeError("before torch 2.6, calibrate the model before you compile it")
        self._memory = memory
        self._keeps = sequential or memory is not None
        self._shapes = {name: tuple(each.shape) for name, each in self._parameters().items()}
        tables = (nn.Embedding, nn.EmbeddingBag)
        looked_up = {id(each.weight) for each in inner.modules() if isinstance(each, tables)}
        self._tables = {n for n, each in self._parameters().items() if id(each) in looked_up}
        #: Names of weights with uses that no matrix describes, whether or not they have inputs too.
        self._others = set(self._tables)
        self._layers: dict[str, Layer] = {}
        self._loaded: dict[str, Gram] = {}
        self._batches: list[Batch] = []
        self._batch: Batch | None = None
        self._adder = Adder()
        self._open: contextlib.ExitStack | None = None

    def _parameters(self) -> dict[str, nn.Parameter]:
        """Return the weights that may have inputs, by their first names."""
        return {
            slot.name: slot.value
            for slot in slots_of(self._model)
            if type(slot.value) is nn.Parameter
            and slot.dtype in FLOATS
            and slot.value.dim() > 1
            and slot.value.numel()
        }

    def __enter__(self) -> Self:
        if self._open is not None:
            raise RuntimeError("the calibration is entered already")
        with contextlib.ExitStack() as stack:
            stack.enter_context(uncompiled())
            if self._keeps:
                before = self._model.register_forward_pre_hook(
                    self._begin, prepend=True, with_kwargs=True
                )
                stack.callback(before.remove)
                stack.callback(self._model.register_forward_hook(self._end).remove)
            stack.callback(self._adder.forget)
            stack.enter_context(Watch(self._parameters(), self._see, others=self._others))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._open is not None
        stack, self._open, self._batch = self._open, None, None
        stack.__exit__(*error)

    def _begin(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self._batch = Batch.of(model, args, kwargs)

    def _end(self, *_: Any) -> None:
        """Keep a batch that was run completely."""
        batch, self._batch = self._batch, None
        if batch is not None:
            self._batches.append(batch)
            for (name, at), count in batch.counts.items():
                counts = self._layers[name].counts
                counts[at] = counts.get(at, 0) + count

    def _see(self, name: str, at: Range, rows: int, inputs: Inputs) -> None:
        peak = inputs.checked(name)
        if self._keeps and self._batch is None:
            raise RuntimeError(
                f"{name!r} was used outside a call to the model: with memory= or sequential=, call "
                "the model itself, because its calls are repeated"
            )
        layer = self._layers.get(name)
        if layer is None:
            sums: dict[Range, Sum] | None = None if self.sequential else {}
            layer = self._layers[name] = Layer(rows, inputs.width, inputs.groups, sums=sums)
        if (layer.width, layer.groups) != (inputs.width, inputs.groups):
            raise ValueError(
                f"{name!r} is multiplied by inputs of width {layer.width}, and of {inputs.width}"
            )
        if self._batch is not None:
            self._batch.saw(name, at, inputs.samples)
        if layer.sums is None:
            return
        if at not in layer.sums and not self._fits(name, nbytes(layer.width, layer.groups)):
            layer.sums = None
            return
        layer.add(at, inputs, self._adder.sum(inputs, peak))

    def _fits(self, name: str, more: int) -> bool:
        """Tell whether a layer fits into the memory; one layer always does."""
        held = {each: layer.nbytes for each, layer in self._layers.items() if layer.sums}
        others = sum(held.values()) - held.get(name, 0)
        return self._memory is None or not others or sum(held.values()) + more <= self._memory

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the weights with inputs, in the order of their first use."""
        return tuple(name for name in self._names_with_inputs() if name not in self._others)

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of the weights with inputs that are used otherwise as well, so without a matrix."""
        return tuple(name for name in self._names_with_inputs() if name in self._others)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Names of the weights without inputs, except those of embeddings."""
        known = {*self._names_with_inputs(), *self._tables}
        return tuple(name for name in self._parameters() if name not in known)

    def _names_with_inputs(self) -> list[str]:
        used = [name for name, layer in self._layers.items() if layer.count()]
        return list(dict.fromkeys([*self._loaded, *used]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)

    def __contains__(self, name: object) -> bool:
        layer = self._layers.get(str(name))
        has_inputs = name in self._loaded or (layer is not None and bool(layer.count()))
        return has_inputs and name not in self._others

    def __getitem__(self, name: str) -> Gram:
        """Return a matrix, on the host; see `gram`, without weights replaced."""
        return self.gram(name)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        """Return the numbers of layers and batches, for `print`."""
        return f"Calibration({len(self)} weights seen, {len(self.unseen)} unseen)"

    def gram(self, name: str, replaced: Mapping[str, torch.Tensor] | None = None) -> Gram:
        """Return the Gram matrix of a weight's inputs, as float64 on the host.

        Parameters
        ----------
        name : str
            As in `order`.
        replaced : mapping of str to torch.Tensor, optional
            Values that replace weights, by their first names, while the batches run again for this
            matrix, such as decoded packed weights. It is queried at each use, and may decode then.
            The model itself is never changed. For ``sequential=True``.

        Raises
        ------
        KeyError
            The weight has no inputs, or none with others replaced, such as an expert.
        NonFiniteError
            With weights replaced, an input is not finite.
        RuntimeError
            The batches would have to run again within the ``with`` of the calibration, or run
            differently than before; or no batches are kept, and ``replaced`` is given.
        """
        if name not in self:
            raise KeyError(name)
        if replaced is not None:
            if not self.sequential:
                raise RuntimeError("replaced= needs batches: give sequential=True to Calibration")
            found = self._replayed([name], replaced)[name]
            if not found.count():
                raise KeyError(name)
            return found.gram()
        layer = self._layers.get(name)
        if layer is None or not layer.count():
            return self._loaded[name]
        if layer.sums is None:
            self._move(name)
        own = layer.gram()
        return self._loaded[name] + own if name in self._loaded else own

    def pair(
        self, name: str, replaced: Mapping[str, torch.Tensor]
    ) -> tuple[Gram, NDArray[np.float64] | None]:
        """Return a matrix with weights replaced, and cross products of inputs before and after.

        Parameters
        ----------
        name, replaced
            As of `gram`.

        Returns
        -------
        Gram
            As of `gram`.
        numpy.ndarray or None
            float64, of the shape of its matrix: ``X^T Y`` of original inputs X and inputs Y with
            weights replaced. None if these do not correspond, as when a router sends other inputs
            to an expert; or if nothing is replaced.

        Raises
        ------
        KeyError, NonFiniteError, RuntimeError
            As by `gram`.
        """
        if not replaced:
            return self.gram(name, replaced), None
        if name not in self:
            raise KeyError(name)
        self._check_left()
        products = CrossProducts(self._layers[name], name)
        parameters = self._parameters()
        for batch in self._batches:
            products.add(self._model, batch, parameters, replaced)
        if not products.after.count():
            raise KeyError(name)
        return products.after.gram(), products.cross

    def _move(self, name: str) -> None:
        """Compute the sums of a layer, and of as many after it as fit, replacing others."""
        names = [name]
        left = (self._memory or 0) - self._layers[name].nbytes
        for other in self.order[self.order.index(name) + 1 :]:
            left -= self._layers[other].nbytes
            if self._memory is None or left >= 0:
                names.append(other)
        for layer in self._layers.values():
            layer.sums = None
        found = self._replayed(names, {})
        for each, layer in found.items():
            if layer.known() != self._layers[each].counts:
                raise RuntimeError(
                    f"{each!r} saw {layer.count()} inputs when the batches were run again, and "
                    f"{self._layers[each].count()} before: do not change the model or its batches"
                )
        for each, layer in found.items():
            self._layers[each].sums = layer.sums

    def _check_left(self) -> None:
        if self._open is not None:
            raise RuntimeError("leave the `with` of the calibration before matrices are computed")

    def _replayed(self, names: list[str], replaced: Mapping[str, torch.Tensor]) -> dict[str, Layer]:
        self._check_left()
        known = {name: self._layers[name] for name in names}
        found = {name: Layer(k.rows, k.width, k.groups, sums={}) for name, k in known.items()}
        adder = Adder()

        def see(name: str, at: Range, _: int, inputs: Inputs) -> None:
            found[name].add(at, inputs, adder.sum(inputs, inputs.checked(name)))

        replay(self._model, self._batches, self._parameters(), see, names, replaced)
        return found

    def __add__(self, other: "Calibration") -> "Calibration":
        """Combine two calibrations, as of two machines, with all matrices on the host.

        Raises
        ------
        ValueError
            Weights differ in names or in widths; the message lists them. Or one is sequential.
        """
        if not isinstance(other, Calibration):
            return NotImplemented
        if self.sequential or other.sequential:
            raise ValueError("a sequential calibration keeps batches: give one all of them")
        apart = sorted(
            name
            for name in {*self._shapes, *other._shapes}
            if self._shapes.get(name) != other._shapes.get(name)
        )
        if apart:
            raise ValueError(f"the models differ in {', '.join(map(repr, apart))}")
        merged = Calibration(self._model)
        merged._others |= self._others | other._others
        for name in dict.fromkeys([*self, *other]):
            both = [each[name] for each in (self, other) if name in each]
            try:
                merged._loaded[name] = both[0] + both[1] if len(both) > 1 else both[0]
            except ValueError as error:
                raise ValueError(f"{name!r}: {error}") from None
        return merged

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all matrices to a safetensors file, exactly; see `gradwire.weights.save_grams`.

        They are computed one at a time, if ``memory`` does not hold all.
        """
        known = {}
        for name in self:
            layer, loaded = self._layers.get(name), self._loaded.get(name)
            count = loaded.count if loaded else 0
            shape = loaded.matrix.shape if loaded else ()
            if layer is not None and layer.count():
                shape, count = layer.shape(), count + layer.count()
            known[name] = (shape, count)
        gram.write(path, known, self.gram)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module) -> Self:
        """Load a saved calibration for a model; it may be entered to collect more.

        Raises
        ------
        CorruptFileError
            As by `gradwire.weights.load_grams`.
        ValueError
            A matrix belongs to a weight that the model does not have, or has the wrong width.
        """
        loaded = cls(model)
        for name, each in load_grams(path).items():
            check(name, each, loaded._shapes.get(name))
            loaded._loaded[name] = each
        return loaded
