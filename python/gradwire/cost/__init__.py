"""The cost of exchanges: bytes, seconds and memory, for any number of ranks and any link.

>>> network = gradwire.cost.Network(64, gradwire.cost.Link(bandwidth=1e9, latency=50e-6))
>>> payload = gradwire.cost.Payload.sparse(25_000_000, entries=250_000)
>>> gradwire.cost.simulate(gradwire.cost.GatheredFrames(), payload, network).seconds

Nothing here needs torch. docs/cost.md has the model, what it was checked against, and its errors.
"""

from gradwire.cost.calibration import Calibration, CodecCost, Line
from gradwire.cost.exchanges import (
    Exchange,
    GatheredFrames,
    LowRankAllReduces,
    Phase,
    PlainRing,
    QuantizedAllReduce,
    RingAllReduce,
    SharedPositions,
    SparseReduceScatter,
)
from gradwire.cost.measuring import calibrate
from gradwire.cost.methods import Method, bf16, compressed, fp32
from gradwire.cost.network import Link, Network
from gradwire.cost.payload import Payload, information_bits
from gradwire.cost.prediction import Prediction, Workload, break_even, predict
from gradwire.cost.simulation import Exchanged, Support, simulate
from gradwire.cost.timeline import Bucket, Timeline, ddp_buckets, overlapped

__all__ = [
    "Bucket",
    "Calibration",
    "CodecCost",
    "Exchange",
    "Exchanged",
    "GatheredFrames",
    "Line",
    "Link",
    "LowRankAllReduces",
    "Method",
    "Network",
    "Payload",
    "Phase",
    "PlainRing",
    "Prediction",
    "QuantizedAllReduce",
    "RingAllReduce",
    "SharedPositions",
    "SparseReduceScatter",
    "Support",
    "Timeline",
    "Workload",
    "bf16",
    "break_even",
    "calibrate",
    "compressed",
    "ddp_buckets",
    "fp32",
    "information_bits",
    "overlapped",
    "predict",
    "simulate",
]
