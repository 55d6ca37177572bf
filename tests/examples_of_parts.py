"""A few of every part with different options, for the tests that try all of them.

A new part has lines here; `test_parts` names those that have none.
"""

from gradwire import exchange, memory, presets, quantize, schedule, sparsify
from gradwire._part import Part

EXAMPLES: tuple[Part, ...] = (
    # Sparsifiers
    sparsify.All(),
    sparsify.Threshold(0.5),
    sparsify.TopK(ratio=0.01),
    sparsify.TopK(k=7),
    sparsify.SID(0.01),
    sparsify.SID(0.01, distribution="exponential", stages="paper", band=None),
    sparsify.SID(0.05, distribution="gamma", stages=2, band=(0.9, 1.1)),
    sparsify.SampledTopK(0.01),
    sparsify.SampledTopK(
        0.02, sample_ratio=0.05, strided=False, resample=False, upper=2, lower=0.5, seed=3
    ),
    sparsify.ChunkTopK(100),
    sparsify.ChunkTopK(64, 5),
    sparsify.BinMax(),
    sparsify.BinMax(50, soft=1.5),
    sparsify.TwoSided(32),
    sparsify.TwoSided(4.5, sample=None),
    sparsify.RandomK(ratio=0.01, seed=3),
    sparsify.RandomK(k=9, block=True),
    sparsify.Gaussian(0.01),
    sparsify.Gaussian(0.05, rounds=0, band=(0.9, 1.1)),
    sparsify.Trimmed(0.01),
    sparsify.Trimmed(0.05, method="search", step=0.1),
    # Quantizers
    quantize.Float32(),
    quantize.BFloat16(),
    quantize.Float16(),
    quantize.Float16(scaled=False),
    quantize.Float8(),
    quantize.Float8("e5m2", block=7),
    quantize.Float8("e5m2", rounding="stochastic", block=None, seed=3),
    quantize.Uniform(),
    quantize.Uniform(8, 32, norm="max", seed=5),
    quantize.SignScale(),
    quantize.SignScale("rms"),
    quantize.TwoMeans(),
    quantize.TwoMeans(50),
    quantize.Ternary(),
    quantize.Ternary(clip=None, seed=3),
    quantize.Codebook(),
    quantize.Codebook(4),
    quantize.Exponent(),
    quantize.Exponent(seed=2),
    # Memories
    memory.NoMemory(),
    memory.Residual(),
    memory.Residual(decay=0.9),
    memory.Residual(decay=0.9, low_memory=True),
    memory.Residual(dtype="bfloat16"),
    memory.Residual(decay=0.9, low_memory=True, dtype="bfloat16", seed=7),
    memory.LowPass(0.3),
    memory.LowPass(1),
    memory.LowPass(0.3, dtype="bfloat16"),
    memory.MomentumCorrection(),
    memory.MomentumCorrection(nesterov=True, masking=False),
    memory.MomentumCorrection(momentum=0.5, clip=2.0),
    memory.AdamCorrection(),
    memory.AdamCorrection(beta2=0.9, eps=1e-3),
    memory.AdamCorrection(beta2=0.95, low_memory=True),
    # Exchanges
    exchange.ByRanks(),
    exchange.AllGather(),
    exchange.AllGather(mean="senders"),
    exchange.AllReduce(),
    exchange.LeaderIndices(),
    exchange.ReduceScatter(),
    exchange.QuantizedAllReduce(),
    exchange.LowRank(),
    exchange.LowRank(4, warm_start=False),
    # Schedules
    schedule.Constant(),
    schedule.WarmUp(),
    schedule.WarmUp((0.5, 0.1)),
    schedule.DenseWarmUp(3),
    schedule.Accordion(0.1, 0.01),
    schedule.Accordion(presets.topk(0.5), presets.topk(0.001), eta=0.25, interval=5),
    schedule.BySteps(schedule.WarmUp(), 100),
    schedule.BySteps(schedule.DenseWarmUp(1), 500),
)
