// What the operators use of torch: the stable ABI, so that one library serves many releases.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <type_traits>
#include <vector>

#include "bucket/piece.h"
#include "ops/device.h"

// Makes a function an operator of torch, of its name. `dispatch` is GRADWIRE_KERNELS or GRADWIRE_HOST_FUNCTIONS.
#define GRADWIRE_OPERATOR(dispatch, name, schema)            \
    GRADWIRE_SCHEMAS(library) { library.def(#name schema); } \
    dispatch(library) { library.impl(#name, TORCH_BOX(&name)); }

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

// Where the numbers of a tensor are.
template <class T>
T* data_of(const Tensor& tensor) {
    if constexpr (std::is_const_v<T>) return static_cast<T*>(tensor.const_data_ptr());
    else return static_cast<T*>(tensor.mutable_data_ptr());
}

// The ranges `ends[2 i]` to `ends[2 i + 1]` of so many entries.
inline void check_ranges(const std::vector<std::int64_t>& ends, const char* name, std::int64_t entries) {
    STD_TORCH_CHECK(ends.size() % 2 == 0, name, " must be pairs");
    for (std::size_t i = 0; i < ends.size(); i += 2)
        STD_TORCH_CHECK(0 <= ends[i] && ends[i] <= ends[i + 1] && ends[i + 1] <= entries, name, " must be ranges of ",
                        entries, " entries, got ", ends[i], " to ", ends[i + 1]);
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
