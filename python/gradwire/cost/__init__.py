"""The cost of exchanges: bytes, seconds and memory, for any number of ranks and any link.

>>> network = gradwire.cost.Network(64, gradwire.cost.Link(bandwidth=1e9, latency=50e-6))
>>> payload = gradwire.cost.Payload.sparse(25_000_000, entries=250_000)
>>> gradwire.cost.simulate(gradwire.exchange.AllGather(), payload, network).seconds

Nothing here needs torch. docs/cost-model.md has the model, docs/cost-measured.md its errors.
"""

from gradwire.cost.calibration import Calibration, calibrate
from gradwire.cost.exchanges import ExchangeCost, simulate
from gradwire.cost.methods import Method, bf16, compressed, fp32
from gradwire.cost.network import Link, Network, Payload
from gradwire.cost.prediction import Prediction, Workload, predict

__all__ = [
    "Calibration",
    "ExchangeCost",
    "Link",
    "Method",
    "Network",
    "Payload",
    "Prediction",
    "Workload",
    "bf16",
    "calibrate",
    "compressed",
    "fp32",
    "predict",
    "simulate",
]
