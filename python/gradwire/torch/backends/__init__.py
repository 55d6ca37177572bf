"""Backends encode tensors on their own devices: one module each, with the same functions.

============  ==================================================================================
``dispatch``  chooses the backend for a tensor; `Backend` is the interface
``staging``   copies between a device and the host, and devices that are lost
``cpu``       tensors on the CPU, in place; its `Bucket` is the base class of the others
``host``      tensors on any device, through copies on the host
``cuda``      tensors on a GPU, in place, with the kernels of the extension
============  ==================================================================================

Nothing above the backends depends on the device of a tensor; nothing in a backend knows of ranks,
steps, parameters or collectives. All backends produce the same frames, byte for byte, the same
states and the same errors.

**A bucket is the unit of work.** Its life has three parts, each in a thread of its own:

1. The *caller's* thread makes it, in the middle of a backward pass. The device may be far behind:
   the bucket remembers what its gradients wait for, as an event, and nobody waits here. Memory may
   be allocated, but nothing is read.
2. The *sending* thread reads: it waits for that event, encodes all compressed parameters with one
   call into the memory of a slot, and concatenates the uncompressed ones. The host gets a table of
   a few words per parameter: sizes, counts, and whether a gradient was zero. Headers go to the
   start of a slot by `Bucket.write_header`. An error there occurs before any state has changed. If
   the device does all that by itself, by `Bucket.fill`, this thread does not wait:
   `cuda.slots.FilledSlot.average` later reads the outcome and the frames of all ranks at once.
3. The *receiving* thread reads the headers of all slots by `Bucket.read_headers`, decodes the
   frames of all ranks with one call, in the order of ranks, or writes summed entries.
   `Bucket.resolve` hands the result over, ordered before any later work of the caller's stream.

Frames are byte tensors on the device `Bucket.frames_on`, from which collectives read them: on the
device if its collectives can, else on the host. A collective of the device takes its place in the
order of the current stream, when it is started and when it is waited for. So the two threads work
in the blocks `Bucket.sending` and `Bucket.receiving`, each of which has a stream of its own, and
`Bucket.used` and `Bucket.follow` order the use of one tensor by both.

A state is created by `Backend.init_state`, with the attributes and methods of `gradwire.State`; its
arrays may lie on the device until someone asks for them.
"""

from gradwire.torch.backends.cpu import (
    Bucket,
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
