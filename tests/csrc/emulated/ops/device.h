// In the place of csrc/ops/device.h: tensors of the CPU are those of the device, and the operators are
// in a library of their own, so that they do not take those of torch.ops.gradwire.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <cstring>
#include <optional>

// A process may load both builds, with the race detector and without.
#ifdef EMULATED_RACES
#define GRADWIRE_SCHEMAS(m) STABLE_TORCH_LIBRARY_FRAGMENT(gradwire_watched, m)
#define GRADWIRE_KERNELS(m) STABLE_TORCH_LIBRARY_IMPL(gradwire_watched, CPU, m)
#define GRADWIRE_HOST_FUNCTIONS(m) STABLE_TORCH_LIBRARY_IMPL(gradwire_watched, CompositeExplicitAutograd, m)
#else
#define GRADWIRE_SCHEMAS(m) STABLE_TORCH_LIBRARY_FRAGMENT(gradwire_emulated, m)
#define GRADWIRE_KERNELS(m) STABLE_TORCH_LIBRARY_IMPL(gradwire_emulated, CPU, m)
#define GRADWIRE_HOST_FUNCTIONS(m) STABLE_TORCH_LIBRARY_IMPL(gradwire_emulated, CompositeExplicitAutograd, m)
#endif

namespace gradwire::ops {

struct DeviceGuard {
    explicit DeviceGuard(int) {}
};

inline bool is_there(const torch::stable::Tensor& tensor, int device) {
    return tensor.is_cpu() && tensor.get_device_index() == device;
}

inline cudaStream_t stream_of(int) { return nullptr; }

// Filled with a pattern, as shared memory is: what a kernel reads before it writes cannot be right.
inline torch::stable::Tensor patterned(torch::stable::Tensor bytes) {
    if (bytes.numel() > 0) std::memset(bytes.mutable_data_ptr(), 0xa5, static_cast<std::size_t>(bytes.numel()));
    return bytes;
}

inline torch::stable::Tensor device_bytes(std::uint64_t count, const torch::stable::Tensor& like) {
    return patterned(torch::stable::new_empty(like, {static_cast<std::int64_t>(count)}, torch::headeronly::ScalarType::Byte));
}

inline torch::stable::Tensor pinned_bytes(std::uint64_t count) {
    using torch::headeronly::DeviceType;
    return patterned(torch::stable::empty({static_cast<std::int64_t>(count)}, torch::headeronly::ScalarType::Byte,
                                          std::nullopt, torch::stable::Device(DeviceType::CPU)));
}

}  // namespace gradwire::ops
