"""Times what `attach(..., verify=N)` adds to the step that it compares a bucket in.

A bucket of 25 MiB with one parameter is encoded, and the frames of two ranks are averaged, as it is
and compared with the core's scalar level, in turns. Printed are the fastest times of all rounds, in
milliseconds, by one thread: a comparison is made of the same work and of copies of states.

    python -m benches.verify
"""

import time

import torch

import gradwire
from gradwire.torch import backends
from gradwire.torch.backends import Bucket
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.step import BucketTask, Comparison, Step
from gradwire.torch.exchange.verification import VerifiedBucket

NUMEL = 6_553_600
ROUNDS = 15
CODECS = (gradwire.topk(0.01), gradwire.adam(0.01), gradwire.float8())


def times(codec: gradwire.Codec, gradient: torch.Tensor) -> dict[bool, list[float]]:
    """Return the fastest encode and average in milliseconds, by whether they are compared."""
    slot = ParameterSlot("weight", torch.zeros(NUMEL))
    slot.codec, slot.state = codec, codec.init_state(NUMEL, name="weight")
    contents = BucketContents([slot], torch.float32)
    room = codec.max_encoded_len(NUMEL)
    frames = torch.zeros(2 * room, dtype=torch.uint8)
    ends, found = [0, NUMEL], {each: [float("inf")] * 2 for each in (False, True)}
    for _ in range(ROUNDS):
        for compared, best in found.items():
            bucket = backends.backend_for(gradient).bucket(gradient.clone())
            task = BucketTask(contents, bucket, Step(), True, lambda: 1.0, 0.0)
            task.compared = Comparison(0)
            coder: Bucket | VerifiedBucket = bucket
            if compared:
                coder = VerifiedBucket(task, 0, fallback=False)
            began = time.perf_counter()
            table, error = coder.encode([codec], [slot.state], ends, [room], [None], frames, 1.0)
            assert error is None
            size = int(table.ravel()[0])
            frames[size : 2 * size] = frames[:size].clone()
            encoded = time.perf_counter()
            coder.average(frames, [0, size], [[size], [size]], ends, [False], False, 1.0)
            took = encoded - began, time.perf_counter() - encoded
            found[compared] = [min(1e3 * new, old) for new, old in zip(took, best, strict=True)]
    return found


def main() -> None:
    """Print a table."""
    gradwire.set_num_threads(1)
    gradient = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))
    print(f"{NUMEL} entries, SIMD level {gradwire.simd_level()}, milliseconds")
    print(f"{'':<14} {'encode':>7} {'compared':>9} {'average':>8} {'compared':>9}")
    for codec in CODECS:
        (encode, average), (encode_too, average_too) = times(codec, gradient).values()
        kind = type(codec.memory if codec.memory.updates else codec.sparsify).__name__
        print(f"{kind:<14} {encode:7.0f} {encode_too:9.0f} {average:8.0f} {average_too:9.0f}")


if __name__ == "__main__":
    main()
