// Stands where CUDA's own header stands: gives the words that kernels use a meaning on the host.
//
// "Device memory" is host memory, a stream does at once what it is asked to do. What a word below
// does not do as a device would, and what no host can show, is listed in tests/csrc/README.md.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>

#include "atomics.h"
#include "control.h"
#include "machine.h"
#include "together.h"
#include "words.h"

// One object per block for each declaration, as a `__shared__` variable is.
#define GRADWIRE_SHARED(type, name)                        \
    static char name##_declaration;                        \
    static_assert(std::is_trivially_copyable_v<type>);     \
    type& name = *static_cast<type*>(::emulated::shared(&name##_declaration, sizeof(type)))

using cudaStream_t = void*;

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9, cudaErrorInvalidDeviceFunction = 98, cudaErrorLaunchFailure = 719 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
struct cudaFuncAttributes {};

enum cudaLaunchAttributeID { cudaLaunchAttributeCooperative = 2 };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int cooperative;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    std::size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    cudaLaunchAttribute* attrs = nullptr;
    unsigned numAttrs = 0;
};

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
    const auto& [grid, block, dynamic, stream, attributes, count] = *config;
    const unsigned long long threads = (unsigned long long)block.x * block.y * block.z;
    if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 || grid.x > 0x7fffffff)
        return cudaErrorInvalidConfiguration;
    bool together = false;
    for (unsigned i = 0; i < count; ++i) together |= attributes[i].id == cudaLaunchAttributeCooperative && attributes[i].val.cooperative;
    const std::function<void()> body = [&] { kernel(static_cast<Parameters>(arguments)...); };
    return emulated::run({grid, block, &body, together}) ? cudaSuccess : cudaErrorLaunchFailure;
}

inline cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t = nullptr) {
    if (bytes) std::memset(at, value, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t = nullptr) {
    if (bytes) std::memcpy(to, from, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
    *value = int(emulated::control().processors);
    return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
    emulated::Control& control = emulated::control();
    return ++control.loaded == control.refused ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, std::size_t) {
    *blocks = 2;
    return cudaSuccess;
}
// Of a launch that failed it says why, once; launches then work again.
inline const char* cudaGetErrorString(cudaError_t error) {
    static thread_local std::string why;
    if (error == cudaSuccess) return "no error";
    why = emulated::take_error();
    if (error == cudaErrorInvalidDeviceFunction) return "invalid device function";
    return why.empty() ? "the launch failed" : why.c_str();
}
