// What operators ask of a CUDA device and of its place in torch. The tests, which have no device, put
// tests/csrc/emulated/ops/device.h in the place of this file.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

#define GRADWIRE_SCHEMAS(m) STABLE_TORCH_LIBRARY_FRAGMENT(gradwire, m)
#define GRADWIRE_KERNELS(m) STABLE_TORCH_LIBRARY_IMPL(gradwire, CUDA, m)
#define GRADWIRE_HOST_FUNCTIONS(m) STABLE_TORCH_LIBRARY_IMPL(gradwire, CompositeExplicitAutograd, m)

namespace gradwire::ops {

using torch::stable::accelerator::DeviceGuard;

inline bool is_there(const torch::stable::Tensor& tensor, int device) {
    return tensor.is_cuda() && tensor.get_device_index() == device;
}

// The stream that torch uses now on this device.
inline cudaStream_t stream_of(int device) {
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
    return static_cast<cudaStream_t>(stream);
}

// Uninitialised bytes on the device.
inline torch::stable::Tensor device_bytes(std::uint64_t count, const torch::stable::Tensor& like) {
    return torch::stable::new_empty(like, {static_cast<std::int64_t>(count)}, torch::headeronly::ScalarType::Byte);
}

// Uninitialised bytes of the host that copies of the device may read while the host goes on.
inline torch::stable::Tensor pinned_bytes(std::uint64_t count) {
    using torch::headeronly::DeviceType;
    return torch::stable::empty({static_cast<std::int64_t>(count)}, torch::headeronly::ScalarType::Byte, std::nullopt,
                                torch::stable::Device(DeviceType::CPU), true);
}

}  // namespace gradwire::ops
