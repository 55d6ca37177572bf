"""DiLoCo: inner steps on each rank separately, outer steps on shared parameters."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist

from gradwire._validate import refuse_type, require
from gradwire.presets import call_of
from gradwire.presets import sparseloco as codec_of
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.diloco.checkpoint import save
from gradwire.torch.diloco.exchanges import FragmentExchanges
from gradwire.torch.diloco.fragments import OuterOptimizer, Timetable, divide
from gradwire.torch.diloco.membership import Membership
from gradwire.torch.diloco.ranks import ElasticRanks, StaticRanks
from gradwire.torch.diloco.replica import Replica
from gradwire.torch.errors import ExchangeError

if TYPE_CHECKING:
    from gradwire._codec import Codec


@dataclasses.dataclass(frozen=True, slots=True)
class DiLoCoReport:
    """The figures of one rank since its `DiLoCo` was created."""

    rank: int  #: Of this process.
    world_size: int  #: Number of ranks.
    codec: str  #: Of the pseudo-gradients, as ``gradwire.sparseloco()``.
    inner_steps: int  #: Steps of the inner optimizer.
    exchanges: int  #: Exchanges of a fragment that were sent, with those that failed.
    #: Bytes that this rank sends per inner step, as `gradwire.torch.ddp.Report` counts them, with
    #: the messages by which the ranks meet.
    wire_bytes: float
    #: Bytes that plain DDP sends per step: a ring all-reduce of all gradients in their own dtype.
    dense_wire_bytes: float
    compression: float  #: ``dense_wire_bytes / wire_bytes``.
    wait_ms: float  #: Mean milliseconds that `DiLoCo.step` waited for an exchange.
    residual_norm: float | None  #: Euclidean norm over all residuals.

    @classmethod
    def of(cls, replica: Replica, flights: FragmentExchanges, steps: int) -> Self:
        """Return the report of a rank after ``steps`` inner steps."""
        sent, seconds, exchanges = flights.figures()
        wire = sent / max(steps, 1)
        world = flights.engine.size
        dense = 2 * (world - 1) / world * sum(slot.tensor.nbytes for slot in replica.records)
        return cls(
            rank=flights.engine.rank,
            world_size=world,
            codec=call_of(replica.codec),
            inner_steps=steps,
            exchanges=exchanges,
            wire_bytes=wire,
            dense_wire_bytes=dense,
            compression=dense / wire if sent and dense else 1.0,
            wait_ms=1e3 * seconds / max(exchanges, 1),
            residual_norm=flights.engine.pipeline.run_in_sender(replica.residual_norm),
        )

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def __str__(self) -> str:
        norm = "-" if self.residual_norm is None else f"{self.residual_norm:.4g}"
        head = f"gradwire DiLoCo, rank {self.rank} of {self.world_size}"
        less = f"{self.compression:,.0f}x less than plain DDP ({self.dense_wire_bytes:,.0f})"
        lines = (
            f"{head}: {self.inner_steps} inner steps, {self.exchanges} exchanges",
            f"  codec           {self.codec}",
            f"  bytes sent      {self.wire_bytes:,.0f} per step, {less}",
            f"  waited          {self.wait_ms:.2f} ms per exchange",
            f"  residual norm   {norm}",
        )
        return "\n".join(lines)


_PATIENCE = timedelta(seconds=5)


class DiLoCo:
    """Train a model on ranks that are far apart. Creating one is a collective.

    Every rank trains by itself with an inner optimizer. Every ``inner_steps`` steps, the ranks
    average, compressed, how far their parameters have moved (pseudo-gradients). The mean is the
    gradient of an outer step on shared parameters, from which all ranks continue. Entries that the
    codec does not send stay in each rank's residual, and are sent later.

    Parameters
    ----------
    model : torch.nn.Module
        A plain module, not one wrapped for DDP. All ranks start with the parameters, also
        frozen ones, and the buffers of rank 0. Afterwards frozen parameters and buffers, such as
        the statistics of BatchNorm, are each rank's own, and `shared` has their averages.
    codec : gradwire.Codec
        Codec of the pseudo-gradients, such as `gradwire.sparseloco`.
    optimizer : torch.optim.Optimizer, optional
        The inner optimizer: `step` is then called after each of its steps.
    inner_steps : int
        Inner steps from one exchange of a parameter to the next.
    outer_lr, outer_momentum : float
        Options of the outer optimizer, SGD.
    nesterov : bool
        Use Nesterov's momentum.
    fragments : int or sequence of sequence of str
        Number of fragments into which the layers are divided, in strides, to be exchanged in turn;
        or the parameter names, or prefixes of names, of each fragment. 1 is DiLoCo, more are
        Streaming DiLoCo.
    delay : int
        Inner steps that overlap with an exchange. With 0, training waits for every exchange.
    mixing : float, optional
        By default, a rank's progress since it sent a fragment is added to the new shared
        parameters, and is sent the next time, once. A number selects the paper's rule instead: the
        share of a rank's own parameters that is kept, 0 <= mixing < 1. With 0 the steps of the
        delay are lost; above 0 only codecs without a residual will do.
    min_numel, min_ndim : int
        Parameters with fewer entries or dimensions are sent uncompressed.
    process_group : torch.distributed.ProcessGroup, optional
        The participating ranks; all ranks by default.
    timeout : datetime.timedelta, optional
        How long to wait for other ranks. Defaults to that of the group.
    membership : Membership, optional
        Let ranks join and leave, instead of a process group. Waits until this rank is admitted. New
        ranks get the shared parameters and the position of the present ones.
    state_dict : dict, optional
        With a membership: the `state_dict` of an earlier run of this rank, to keep its residuals.
        Load its model and optimizer before. If nobody trains yet, all ranks start from the furthest
        of these checkpoints.

    Raises
    ------
    TypeError, ValueError
        An argument is invalid, or differs between the ranks.
    ExchangeError
        The ranks could not be connected.
    MembershipError
        With a membership: the store does not answer, or this rank was not admitted.

    References
    ----------
    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv
    2311.08105, 2023, algorithm 1.

    Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a Distributed Free
    Lunch", arXiv 2501.18512, 2025, section 2.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        codec: "Codec",
        *,
        optimizer: torch.optim.Optimizer | None = None,
        inner_steps: int = 30,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        fragments: int | Sequence[Sequence[str]] = 1,
        delay: int = 0,
        mixing: float | None = None,
        min_numel: int = 1024,
        min_ndim: int = 1,
        process_group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
        membership: Membership | None = None,
        state_dict: Mapping[str, Any] | None = None,
    ) -> None:
        named = Replica.named(model)
        groups = divide(named, fragments)
        timetable = Timetable(inner_steps, len(groups), delay)
        if not isinstance(optimizer, torch.optim.Optimizer | None):
            refuse_type("optimizer", "a torch.optim.Optimizer, or None to call step()", optimizer)
        carry = mixing is None and delay > 0
        share = 0.0 if mixing is None else mixing
        outer = OuterOptimizer(outer_lr, outer_momentum, nesterov, share, carry)
        self.codec = codec
        self._replica = Replica(
            model, named, groups, codec, outer, timetable, min_numel=min_numel, min_ndim=min_ndim
        )
        self._ranks: StaticRanks | ElasticRanks
        if membership is None:
            without = "without a membership, load a state_dict with load_state_dict()"
            require(state_dict is None, without)
            self._ranks = StaticRanks(self._replica, process_group, timeout)
        else:
            beside = (
                "with a membership there is no process_group=, and timeout= is the membership's"
            )
            require(process_group is None and timeout is None, beside)
            self._ranks = ElasticRanks(membership, self._replica, state_dict)
        self._flights = self._ranks.flights
        self._steps = 0
        self._closed = False
        self._hook: Any = None
        if optimizer is not None:
            self._hook = optimizer.register_step_post_hook(self._hooked)

    # Training ---------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[str, ...]:
        """With a membership, the names of the ranks that train together now; otherwise empty."""
        return self._ranks.members

    @property
    def generation(self) -> int:
        """With a membership, a number that grows whenever the ranks change; else 0."""
        return self._ranks.generation

    @property
    def rank(self) -> int:
        """Place of this process among the ranks."""
        return self._flights.engine.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._flights.engine.size

    @property
    def inner_step(self) -> int:
        """Inner steps made, with those before a resume."""
        return self._replica.position["inner_step"]

    @property
    def rounds(self) -> int:
        """Exchanges of a fragment that were applied."""
        return self._replica.position["applied"]

    def step(self) -> int:
        """Count an inner step, and exchange the fragments due. Call it after the inner step.

        Do not call it with ``optimizer=``, which does so.

        Returns
        -------
        int
            Fragments whose outer step was made.

        Raises
        ------
        TensorError
            A parameter is NaN or infinite on some rank. All ranks raise it and skip the round:
            shared parameters and residuals are as before it. `restore` brings this rank back to
            them.
        ExchangeError
            Another rank has stopped, or did not come in time. `state_dict` still works, and every
            later exchange raises it again. With a membership, the remaining ranks continue instead.
        MembershipError
            With a membership: the store does not answer, or there are too few ranks.
        """
        if self._closed:
            raise ExchangeError("this DiLoCo is closed")
        before = self.rounds
        self._replica.position["inner_step"] += 1
        self._steps += 1
        self._ranks.advance()
        return max(self.rounds - before, 0)

    def _hooked(self, *_: object) -> None:
        self.step()

    def restore(self) -> None:
        """Reset this rank's parameters to the shared ones; its unsent progress is lost."""
        self._flights.restore()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Put the shared parameters into the model in this block: to evaluate or export them.

        They are the same bits on every rank. Between exchanges, a rank's own parameters differ from
        them. Do not train in the block.
        """
        untrained = self._replica.untrained
        flats = [(part, part.own()) for part in self._replica.parts]
        for part, _ in flats:
            part.write(part.shared)
        before = untrained.exchange(untrained.shared)
        try:
            yield
        finally:
            untrained.exchange(before)
            for part, flat in flats:
                part.write(flat)

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return shared parameters, outer momentum, residuals and position, to resume bit for bit.

        Call it between steps on every rank, and save all of the results, with each rank's model and
        inner optimizer. It waits for exchanges in progress. Tensors and text only, so that
        ``torch.load(weights_only=True)`` reads it.

        Returns
        -------
        dict
            One entry, ``rank0`` on rank 0: ``shared``, ``velocity``, ``pending`` (averages to be
            applied), ``sent`` (this rank's own parameters as they were sent, with a delay),
            ``residual`` and ``momentum``, each a dict of tensors by the names of parameters; and
            JSON texts ``outer`` and ``about``.

        Raises
        ------
        TensorError
            An exchange under way is not finite; `step` raises it when it is due, and skips it. Save
            after that.
        """
        return save(self._replica, self._flights)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        policy: Policy = "sum-and-split",
    ) -> None:
        """Restore what `state_dict` returned. A collective: call it on every rank.

        The model's own parameters are not touched: load each rank's as well, or call `restore`.

        Parameters
        ----------
        state_dict : dict or list of dict
            This rank's, or those of all old ranks, in any order.
        policy : {"sum-and-split", "keep", "drop"}
            What to do with residuals if the number of ranks has changed, as in
            `gradwire.torch.ddp.Handle.load_state_dict`.

        Raises
        ------
        ValueError
            On every rank, if any rank was given something else, or the ranks were given different
            rounds. Nothing changes then.
        ExchangeError
            Another rank called something else, or did not call in time.
        """
        self._ranks.load(state_dict, policy)

    # Its end ----------------------------------------------------------------------------------

    def report(self) -> DiLoCoReport:
        """Return this rank's report: bytes, waiting times, residuals (each read once)."""
        return DiLoCoReport.of(self._replica, self._flights, self._steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close(timedelta(0) if raised[0] is not None else _PATIENCE)

    def close(self, timeout: timedelta = _PATIENCE) -> None:
        """Stop participating. A second call has no effect.

        Waits up to ``timeout`` for the other ranks to do the same, so that none is cut off.
        Exchanges in progress are not applied.
        """
        if self._closed:
            return
        self._closed = True
        if self._hook is not None:
            self._hook.remove()
        engine = self._flights.engine
        if timeout:
            engine.leave(timeout)
        engine.abandon()
        self._ranks.leave()


def sparseloco(
    model: torch.nn.Module,
    *,
    k: int = 64,
    inner_steps: int = 30,
    outer_lr: float = 1.0,
    **options: Any,
) -> DiLoCo:
    """Train with SparseLoCo: the largest entries of each tile in two bits, no outer momentum.

    The residual, which fades by 0.95 a round, takes the place of the outer momentum.

    Parameters
    ----------
    model : torch.nn.Module
    k : int
        Entries sent of each tile of 64 x 64, or of each 4096 entries if a parameter is not a
        matrix.
    inner_steps, outer_lr
        As in `DiLoCo`, with the values of the authors' code.
    **options
        Others of `DiLoCo`, such as ``optimizer`` and ``process_group``.

    Returns
    -------
    DiLoCo
        With this codec; errors are those of `DiLoCo`, and a TypeError for what the method decides:
        the codec and the outer momentum.

    References
    ----------
    Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    arXiv 2508.15706, 2025.
    """
    return DiLoCo(
        model,
        codec_of(k),
        inner_steps=inner_steps,
        outer_lr=outer_lr,
        outer_momentum=0.0,
        nesterov=False,
        **options,
    )
