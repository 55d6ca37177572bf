// What the operators use of torch: the stable ABI, so that one library serves many releases.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include "bucket/piece.h"

namespace gradwire::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline void check(cudaError_t error) {
    STD_TORCH_CHECK(error == cudaSuccess, "gradwire: CUDA says: ", cudaGetErrorString(error));
}

inline void check_cuda(const Tensor& tensor, const char* name, int device) {
    STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == device, name, " must be on the same CUDA device");
    STD_TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous");
}

inline void check_bytes(const Tensor& tensor, const char* name, int device) {
    check_cuda(tensor, name, device);
    STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Byte, name, " must have dtype torch.uint8");
}

// The stream that torch uses now on this device.
inline cudaStream_t stream_of(int device) {
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
    return static_cast<cudaStream_t>(stream);
}

inline Dtype dtype_of(const Tensor& tensor, const char* name) {
    switch (tensor.scalar_type()) {
        case ScalarType::Float: return Dtype::f32;
        case ScalarType::Double: return Dtype::f64;
        case ScalarType::Half: return Dtype::f16;
        case ScalarType::BFloat16: return Dtype::bf16;
        default: STD_TORCH_CHECK(false, name, " must have dtype torch.float32, float64, float16 or bfloat16");
    }
    return Dtype::f32;
}

// Uninitialised bytes on the device, or in pinned memory of the host.
inline Tensor device_bytes(std::uint64_t count, const Tensor& like) {
    return torch::stable::new_empty(like, {static_cast<std::int64_t>(count)}, ScalarType::Byte);
}
inline Tensor pinned_bytes(std::uint64_t count) {
    using torch::headeronly::DeviceType;
    return torch::stable::empty({static_cast<std::int64_t>(count)}, ScalarType::Byte, std::nullopt,
                                torch::stable::Device(DeviceType::CPU), true);
}

}  // namespace gradwire::ops
