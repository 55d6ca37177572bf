// In the place of csrc/ops/device.h: tensors of the CPU are those of the device, and the operators are
// in a library of their own, so that they do not take those of torch.ops.gradwire.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

#define GRADWIRE_SCHEMAS(m) STABLE_TORCH_LIBRARY_FRAGMENT(gradwire_emulated, m)
#define GRADWIRE_KERNELS(m) STABLE_TORCH_LIBRARY_IMPL(gradwire_emulated, CPU, m)
#define GRADWIRE_HOST_FUNCTIONS(m) STABLE_TORCH_LIBRARY_IMPL(gradwire_emulated, CompositeExplicitAutograd, m)

namespace gradwire::ops {

struct DeviceGuard {
    explicit DeviceGuard(int) {}
};

inline bool is_there(const torch::stable::Tensor& tensor, int device) {
    return tensor.is_cpu() && tensor.get_device_index() == device;
}

inline cudaStream_t stream_of(int) { return nullptr; }

inline torch::stable::Tensor pinned_bytes(std::uint64_t count) {
    using torch::headeronly::DeviceType;
    return torch::stable::empty({static_cast<std::int64_t>(count)}, torch::headeronly::ScalarType::Byte, std::nullopt,
                                torch::stable::Device(DeviceType::CPU));
}

}  // namespace gradwire::ops
