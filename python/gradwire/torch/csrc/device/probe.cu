#include "device/probe.h"

#include "device/launch.cuh"

namespace gradwire {

namespace {

__global__ void nothing() {}

}  // namespace

cudaError_t launch_probe(cudaStream_t stream) {
    // Together, which is more than other launches ask for.
    const cudaError_t error = launch_together(nothing, 1, 32, stream);
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

}  // namespace gradwire
