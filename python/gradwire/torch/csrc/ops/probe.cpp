// gradwire::probe: whether the device of a tensor runs kernels of this library, and its host can call them.
#include "device/probe.h"

#include "ops/torch.h"

namespace gradwire::ops {

namespace {

// Throws if it does not. Waits for nothing.
void probe(Tensor like) {
    const int device = static_cast<int>(like.get_device_index());
    const DeviceGuard guard(device);
    pinned_bytes(1);  // what kernels are told goes by such memory, which some hosts do not have
    check(launch_probe(stream_of(device)));
}

GRADWIRE_OPERATOR(GRADWIRE_KERNELS, probe, "(Tensor like) -> ()")

}  // namespace

}  // namespace gradwire::ops
