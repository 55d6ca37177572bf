"""How tensors are encoded where they lie: one module a backend, with the same functions.

============  ==================================================================================
``dispatch``  which backend is used for a tensor, and why; `Backend` says what one does
``cpu``       tensors on the CPU, in place; its `Bucket` is the one that others derive theirs from
``host``      tensors on any device, by way of copies on the host
``cuda``      tensors on a GPU, in place, by the kernels of the extension
============  ==================================================================================

Nothing above the backends asks where a tensor lies; nothing in a backend knows of ranks, steps,
parameters or collectives. All backends give the same frames, byte for byte, the same states and the
same errors.

**A bucket is the unit of work.** Its life has three parts, each in a thread of its own:

1. The *caller's* thread makes it, in the middle of a backward pass. The device may be far behind:
   the bucket remembers what its gradients wait for, as an event, and nobody waits here. Memory may
   be taken, but nothing is read.
2. The *sending* thread reads: it waits for that event, encodes all compressed parameters with one
   call into the memory of a slot, and packs the others behind each other. What comes back to the
   host is a table of a few words per parameter: sizes, counts, and whether a gradient was zero.
   Headers go to the start of a slot by `Bucket.write_header`. What fails there fails before any
   state has changed. A device that does all that by itself, by `Bucket.fill`, is not waited for:
   how it ended, and the frames of all ranks, are read at once by `FilledSlot.average`.
3. The *receiving* thread reads the headers of all slots by `Bucket.read_headers`, decodes the
   frames of all ranks with one call, in the order of ranks, or puts sums in their places.
   `Bucket.resolve` hands the result over so that whatever the caller's stream does next comes after
   it.

Frames lie in tensors of bytes where `Bucket.frames_on` says, and collectives take them from there:
on the device if its collectives can, else on the host. A collective of the device takes its place
in the order of the current stream, when it is started and when it is waited for. So the two threads
work in the blocks `Bucket.sending` and `Bucket.receiving`, each of which has a stream of its own,
and `Bucket.used` and `Bucket.follow` order the use of one tensor by both.

A memory in one buffer cannot go back. So of such parameters the sending thread writes the frames
alone, by `Bucket.encode` with ``deferred``, which `Backend.rollback` undoes by forgetting it. Once
it is known that the step counts, the receiving thread writes the memories by `Bucket.commit`, from
the frames and the gradients, which must be in the bucket until then.

A state is what the backend's `Backend.init_state` made, with the attributes and methods of
`gradwire.State`; its arrays may lie on the device until someone asks for them.
"""

from gradwire.torch.backends.cpu import (
    Bucket,
    FilledSlot,
    LeaderEncoding,
    SlotAverages,
    SlotFacts,
    SlotOrder,
    SlotPlaces,
    Table,
)
from gradwire.torch.backends.dispatch import (
    Backend,
    BackendInUse,
    backend,
    backend_for,
    in_use,
    preload,
    use_host,
    warn_of_host,
)

__all__ = [
    "Backend",
    "BackendInUse",
    "Bucket",
    "FilledSlot",
    "LeaderEncoding",
    "SlotAverages",
    "SlotFacts",
    "SlotOrder",
    "SlotPlaces",
    "Table",
    "backend",
    "backend_for",
    "in_use",
    "preload",
    "use_host",
    "warn_of_host",
]
