// What the operators use of torch: the stable ABI, so that one library serves many releases.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include "bucket/piece.h"
#include "ops/device.h"

namespace gradwire::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline void check(cudaError_t error) {
    STD_TORCH_CHECK(error == cudaSuccess, "gradwire: CUDA says: ", cudaGetErrorString(error));
}

inline void check_there(const Tensor& tensor, const char* name, int device) {
    STD_TORCH_CHECK(is_there(tensor, device), name, " must be on the same CUDA device");
    STD_TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous");
}

inline void check_bytes(const Tensor& tensor, const char* name, int device) {
    check_there(tensor, name, device);
    STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Byte, name, " must have dtype torch.uint8");
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

}  // namespace gradwire::ops
