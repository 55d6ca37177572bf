"""The figures of a report: of a rank, its parameters and its last buckets."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParameterReport:
    """Figures of one parameter on this rank.

    Attributes
    ----------
    name : str
        Name of the parameter in the model.
    numel : int
        Number of entries.
    dense : bool
        Whether it is sent uncompressed at present.
    steps : int
        Number of times it was exchanged.
    bytes_per_step : float
        Mean size of its frames, or of its dense values, on this rank.
    compression : float
        Size of the gradient divided by ``bytes_per_step``.
    achieved : float or None
        Entries sent divided by entries requested (k-hat / k), over all steps; None if the
        sparsifier has no target.
    trimmed : int
        Entries that were selected but left in the residual because the slot was full.
    encode_ms : float
        Mean milliseconds of encoding per step.
    decode_ms : float
        Mean milliseconds of decoding per step.
    residual_norm : float or None
        Euclidean norm of the residual at present; None without a memory, or if not requested.
    state_bytes : int
        Bytes that this rank keeps for it, which are residual and moments with the buffers that an
        undo needs, and what a schedule measures.
    """

    name: str
    numel: int
    dense: bool
    steps: int
    bytes_per_step: float
    compression: float
    achieved: float | None
    trimmed: int
    encode_ms: float
    decode_ms: float
    residual_norm: float | None
    state_bytes: int


@dataclass(frozen=True, slots=True)
class BucketTimes:
    """When one bucket of a recent step was encoded, exchanged and decoded.

    All times are milliseconds since the first bucket of its step was ready.

    Attributes
    ----------
    step : int
        Number of the step, from 1.
    bucket : int
        Number of the bucket within its step, from 0, in the order in which buckets became ready.
    parameters : int
        Number of parameters in the bucket.
    dense_bytes : int
        Bytes of its gradients.
    wire_bytes : float
        Bytes that this rank sent for it.
    ready : float
        When the gradients of the bucket were ready; those of the last bucket end the backward pass.
    encode : (float, float)
        Beginning and end of the encode.
    exchange : (float, float)
        Beginning and end of the exchange.
    decode : (float, float)
        Beginning and end of the decode.
    """

    step: int
    bucket: int
    parameters: int
    dense_bytes: int
    wire_bytes: float
    ready: float
    encode: tuple[float, float]
    exchange: tuple[float, float]
    decode: tuple[float, float]


@dataclass(frozen=True, slots=True, repr=False)
class ReportFields:
    """The fields of a `Report`, which explains them."""

    rank: int
    world_size: int
    codec: str
    carried_by: str
    step: int
    steps: int
    collectives: int
    wire_bytes: float
    dense_wire_bytes: float
    compression: float
    slot_use: float
    achieved: float | None
    encode_ms: float
    exchange_ms: float
    decode_ms: float
    wait_ms: float
    residual_norm: float | None
    state_bytes: int
    parameters: tuple[ParameterReport, ...]
    timeline: tuple[BucketTimes, ...] = ()
    node_wire_bytes: float = 0.0
    node_ms: float = 0.0
    exchange: str = ""
    decision: str = ""
    schedule: str = ""

    def bytes_per_entry(self) -> float:
        """Return the bytes kept per entry of the parameters that have a state."""
        numel = sum(each.numel for each in self.parameters if each.state_bytes)
        return self.state_bytes / max(numel, 1)

    def uncompressed(self) -> tuple[int, float]:
        """Return how many parameters are sent uncompressed, and their share of the bytes."""
        sent = [each.bytes_per_step for each in self.parameters if each.dense]
        return len(sent), sum(sent) / max(sum(each.bytes_per_step for each in self.parameters), 1)

    def largest(self, count: int) -> list[ParameterReport]:
        """Return the ``count`` parameters with the most entries, largest first."""
        return sorted(self.parameters, key=lambda each: -each.numel)[:count]
