#include "device/probe.h"

#include "device/launch.cuh"

namespace gradwire {

namespace {

__global__ void nothing() {}

const Kernels kernels{nothing};

}  // namespace

cudaError_t Kernels::load_all() {
    for (const Kernels* source = first_; source != nullptr; source = source->others_)
        for (const void* function : source->functions_) {
            cudaFuncAttributes attributes;  // to know them, CUDA has to load the kernel
            GRADWIRE_TRY(cudaFuncGetAttributes(&attributes, function));
        }
    return cudaSuccess;
}

cudaError_t launch_probe(cudaStream_t stream) {
    cudaError_t error = Kernels::load_all();
    // Together, which is more than other launches ask for.
    if (error == cudaSuccess) error = launch<Blocks::together>(nothing, 1, 32, stream);
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

}  // namespace gradwire
