// Whether a device runs this library's kernels at all.
#pragma once

#include <cuda_runtime.h>

namespace gradwire {

// Starts a kernel that does nothing. The error says what is in the way: a driver that is too old, or a
// device that the library has no code for. Later launches do not see it.
cudaError_t launch_probe(cudaStream_t stream);

}  // namespace gradwire
