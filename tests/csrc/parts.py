"""The examples of the parts that have kernels; codecs with any other are encoded on the host."""

from gradwire import memory, presets, quantize, sparsify
from gradwire.torch.backends.cuda import structs
from tests.presets.examples import made_for_kernels
from tests.support import examples

SPARSIFIERS = [
    part
    for part in examples(sparsify.SPARSIFIERS)
    if part.kind in structs.SPARSIFIERS
    and getattr(part, "distribution", "pareto") == "pareto"
    and getattr(part, "stages", "adaptive") == "adaptive"
]
MEMORIES = [
    part
    for part in examples(memory.MEMORIES)
    if part.kind in structs.MEMORIES
    # Second moments in bfloat16 are the host's.
    and not (part.updates and getattr(part, "low_memory", False))
]
QUANTIZERS = [
    part
    for part in examples(quantize.QUANTIZERS)
    if structs.coding_of(part) in structs.QUANTIZERS
    and not isinstance(part, quantize.Lossless)  # of that one, kernels send the floats
]
PRESETS = {
    name: preset
    for name, preset in presets.PRESETS.items()
    if structs.has_kernels(made_for_kernels(preset))
}
