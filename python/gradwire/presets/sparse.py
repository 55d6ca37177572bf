"""Presets that send a few entries, exactly or in a float type."""

from typing import Literal

from gradwire import _validate
from gradwire._codec import BY_RANKS, EXACT, KEEP, Codec, IndexCoding
from gradwire.exchange import AllReduce, Exchange, LeaderIndices
from gradwire.memory import (
    AdamCorrection,
    Estimate,
    LowPass,
    Memory,
    MomentumCorrection,
    Residual,
)
from gradwire.presets._registry import composition, preset
from gradwire.quantize import Codebook, Quantizer, SignScale
from gradwire.sparsify import (
    SID,
    All,
    ChunkTopK,
    Gaussian,
    RandomK,
    SampledTopK,
    Threshold,
    TopK,
    Trimmed,
)

__all__ = [
    "adam",
    "dgc",
    "gaussiank",
    "muon",
    "randomk",
    "redsync",
    "scalecom",
    "sidco",
    "threshold",
    "topk",
]

_FITTED = Codebook()
_SIGNS = SignScale()
_REDUCE = AllReduce()


def _ratio(ratio: float | None, other: int | None) -> float | None:
    """Return the ratio, or 0.01 where neither it nor what may stand in its place is given."""
    return 0.01 if ratio is None and other is None else ratio


@preset(
    summary="the largest entries of Adam's local step, the rest kept for later",
    paper="Kingma, Ba: Adam: A Method for Stochastic Optimization, ICLR 2015; Chen, Shen, Liu, "
    "Luo: Efficient-Adam: Communication-Efficient Distributed Adam, arXiv 2022",
    example={"ratio": 0.01},
)
def adam(
    ratio: float = 0.01,
    *,
    beta2: float | None = None,
    eps: float | None = None,
    quantize: Quantizer = _FITTED,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send the largest entries of each rank's own Adam steps; keep the rest for later.

    What is decoded is an update and not a gradient; attached, `torch.optim.AdamW` subtracts it, and
    ``beta2`` and ``eps`` are the optimizer's unless they are given. So is the learning rate, for
    any number of ranks: see `gradwire.memory.AdamCorrection`. Attached without a schedule, it sends
    more in the first steps: see `gradwire.schedule.recommended`. What is sent lies just above one
    threshold, so that a sign and one of two fitted magnitudes say it; what rounding takes away
    stays in the residual. The composition with exact top-k is this library's.
    """
    return composition(
        TopK(ratio=ratio), quantize, AdamCorrection(beta2=beta2, eps=eps), indices, exchange
    )


@preset(
    summary="exactly the k largest entries, the rest kept for later",
    paper="Aji, Heafield: Sparse Communication for Distributed Gradient Descent, EMNLP 2017; "
    "Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018",
    example={"ratio": 0.01},
)
def topk(
    ratio: float | None = None,
    *,
    k: int | None = None,
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send exactly the k largest entries; keep the rest for later.

    Pass either ``ratio``, 0.01 by default, or ``k``.
    """
    return composition(TopK(ratio=_ratio(ratio, k), k=k), quantize, memory, indices, exchange)


@preset(
    summary="about k entries above a threshold from fitted distributions",
    paper="Abdelmoniem, Elzanaty, Alouini, Canini: An Efficient Statistical-based Gradient "
    "Compression Technique for Distributed Training Systems, MLSys 2021",
    example={"ratio": 0.01},
)
def sidco(
    ratio: float = 0.01,
    *,
    distribution: Literal["pareto", "exponential", "gamma"] = "pareto",
    stages: Literal["adaptive", "paper", "tracking"] | int = "adaptive",
    band: tuple[float, float] | None = (0.8, 1.25),
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send about ``ratio`` of the entries, above a threshold from a fitted distribution.

    ``stages="paper", band=None`` is the published method. The defaults keep the achieved count
    within the band, even where the published controller gets stuck: see `gradwire.sparsify.SID`.
    """
    return composition(
        SID(ratio, distribution=distribution, stages=stages, band=band),
        quantize,
        memory,
        indices,
        exchange,
    )


@preset(
    summary="the largest entries after momentum correction, found by sampling",
    paper="Lin, Han, Mao, Wang, Dally: Deep Gradient Compression: Reducing the Communication "
    "Bandwidth for Distributed Training, ICLR 2018",
    example={"ratio": 0.01},
)
def dgc(
    ratio: float = 0.01,
    *,
    momentum: float | None = None,
    nesterov: bool | None = None,
    masking: bool = True,
    clip: float | None = None,
    sample_ratio: float = 0.01,
    quantize: Quantizer = EXACT,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send the largest entries of the momentum-corrected gradient, found by sampling.

    The codec applies the momentum, by default that of the attached `torch.optim.SGD`, which then
    does not apply it again. Warm up the ratio with `gradwire.schedule.WarmUp`.

    ``clip`` applies to the norm of each tensor, while the paper clips the norm of the node's whole
    gradient.
    """
    return composition(
        SampledTopK(ratio, sample_ratio=sample_ratio),
        quantize,
        MomentumCorrection(momentum=momentum, nesterov=nesterov, masking=masking, clip=clip),
        indices,
        exchange,
    )


@preset(
    summary="signs of what changes most in each rank's momentum, for Muon",
    paper="Richtárik, Sokolov, Fatkhullin: EF21: A New, Simpler, Theoretically Better, and "
    "Practically Faster Error Feedback, NeurIPS 2021; Gruntkowska, Gaponov, Tovmasyan, Richtárik: "
    "Error Feedback for Muon and Friends, arXiv 2510.00643 (2025)",
    example={"ratio": 0.1},
)
def muon(
    ratio: float = 0.1,
    *,
    momentum: float | None = None,
    nesterov: bool | None = None,
    quantize: Quantizer = _SIGNS,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send signs of the entries that change most in each rank's momentum, with one magnitude.

    What all ranks then share is an estimate of their mean momentum, which an attached
    `torch.optim.Muon` makes orthogonal; momentum and Nesterov's are the optimizer's unless they are
    given. By default it sends 0.58 bits per entry. With ``ratio=1.0`` it sends every sign, 1 bit;
    with ``quantize=gradwire.quantize.TwoMeans()`` as well, two magnitudes a row. See
    `gradwire.memory.Estimate`.
    """
    largest = TopK(ratio=ratio)
    return composition(
        All() if ratio == 1.0 else largest,
        quantize,
        Estimate(momentum=momentum, nesterov=nesterov),
        indices,
        exchange,
    )


@preset(
    summary="the largest entry of each chunk, selected by one rank in turn for all",
    paper="Chen, Ni, Lu, Cui, Chen, Sun, Wang, Venkataramani, Srinivasan, Zhang, Gopalakrishnan: "
    "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient Distributed "
    "Training, NeurIPS 2020",
    example={"ratio": 0.02},
)
def scalecom(
    ratio: float | None = None,
    *,
    chunk: int | None = None,
    beta: float = 1.0,
    quantize: Quantizer = EXACT,
    indices: IndexCoding = "auto",
) -> Codec:
    """Send the largest entry of each chunk, selected by one rank in turn for all ranks.

    The number of bytes sent and received does not grow with the number of ranks. The paper trains
    the first epochs without compression; see `gradwire.schedule.DenseWarmUp`.

    Parameters
    ----------
    ratio : float, optional
        Fraction of entries to send, 0.01 by default: a chunk has ``round(1 / ratio)`` entries.
    chunk : int, optional
        Entries per chunk. Give either ``ratio`` or ``chunk``.
    beta : float
        Filter coefficient of the residual, see `gradwire.memory.LowPass`; 1 is plain error
        feedback. The paper uses 0.1 for very large batches, where high learning rates make the
        residuals of the ranks drift apart. With ordinary batch sizes, values below 1 cost accuracy,
        because most of what is not sent is lost.
    quantize : gradwire.quantize.Quantizer
        How values are coded. They are summed as coded, so this must be a float type.
    """
    ratio = _ratio(ratio, chunk)
    _validate.either("scalecom", ratio=ratio, chunk=chunk)
    if ratio is not None:
        chunk = round(1 / _validate.ratio("ratio", ratio))
    assert chunk is not None
    return composition(ChunkTopK(chunk), quantize, LowPass(beta), indices, LeaderIndices())


@preset(
    summary="all entries above a fixed threshold, the rest kept for later",
    paper="Strom: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, "
    "Interspeech 2015",
    example={"threshold": 0.01},
)
def threshold(
    threshold: float,
    *,
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send every entry whose magnitude, residual included, is above a fixed threshold.

    The paper sends plus or minus the threshold (see `strom`); this preset sends the values.
    """
    return composition(Threshold(threshold), quantize, memory, indices, exchange)


@preset(
    summary="entries drawn at random from a seed that all ranks share",
    paper="Konečný, McMahan, Yu, Richtárik, Suresh, Bacon: Federated Learning: Strategies for "
    "Improving Communication Efficiency, arXiv 1610.05492 (2016); "
    "Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018",
    example={"ratio": 0.1, "memory": Residual(decay=0.9)},
)
def randomk(
    ratio: float | None = None,
    *,
    k: int | None = None,
    block: bool = False,
    seed: int = 0,
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
    indices: IndexCoding = "auto",
    exchange: Exchange = _REDUCE,
) -> Codec:
    """Send randomly drawn entries, at the same positions on all ranks; keep the rest for later.

    Pass either ``ratio``, 0.01 by default, or ``k``.

    For the unbiased form without a memory, compose
    ``Codec(sparsify=RandomK(ratio=..., scaled=True), memory=NoMemory())``. Values are summed in an
    all-reduce by default; quantizers whose codes cannot be summed need
    `gradwire.exchange.AllGather`.
    """
    return composition(
        RandomK(ratio=_ratio(ratio, k), k=k, block=block, seed=seed),
        quantize,
        memory,
        indices,
        exchange,
    )


@preset(
    summary="about k entries, above a threshold from a normal distribution, corrected twice",
    paper="Shi, Chu, Cheung, See: Understanding Top-k Sparsification in Distributed Deep Learning, "
    "arXiv 1911.08772 (2019)",
    example={"ratio": 0.01},
)
def gaussiank(
    ratio: float = 0.01,
    *,
    rounds: int = 2,
    band: tuple[float, float] | None = None,
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send about ``ratio`` of the entries, above a threshold from a normal distribution.

    The corrections of the threshold follow the authors' code (hclhkbu/GaussianK-SGD), not the
    paper's text: see `gradwire.sparsify.Gaussian`.
    """
    return composition(
        Gaussian(ratio, rounds=rounds, band=band), quantize, memory, indices, exchange
    )


@preset(
    summary="k to 2k entries above a threshold between mean and maximum, or exactly k",
    paper="Fang, Fu, Yang, Hsieh: RedSync: Reducing Synchronization Bandwidth for Distributed Deep "
    "Learning Training System, JPDC 2019",
    example={"ratio": 0.01},
)
def redsync(
    ratio: float = 0.01,
    *,
    method: Literal["trim", "search"] = "search",
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send k to 2 k entries above a searched threshold, or exactly the k largest.

    The search usually ends without a suitable threshold and then sends exactly what `topk` sends.
    The paper trims small layers and searches in large ones.
    """
    return composition(Trimmed(ratio, method=method), quantize, memory, indices, exchange)
