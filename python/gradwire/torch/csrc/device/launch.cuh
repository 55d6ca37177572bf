// How kernels are started, and how a block's shared memory is declared.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

// A block's shared memory: `GRADWIRE_SHARED(Type, name);` makes `name` one object per block. It is not
// initialised, and `Type` is plain data. Declare it at the top of a kernel, or of a device function
// that all threads of the block call.
#ifndef GRADWIRE_SHARED
#define GRADWIRE_SHARED(type, name) __shared__ type name
#endif

// A function that stays one: copies of it everywhere would take minutes to compile, and registers.
#ifdef __CUDACC__
#define GRADWIRE_APART __noinline__
#else
#define GRADWIRE_APART
#endif

namespace gradwire {

// An address of the device's memory: not of shared or local memory, as the compiler cannot know otherwise
// of one that it has loaded.
template <class T>
__device__ inline T* global(T* at) {
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(at));
#endif
    return at;
}

// Whether the blocks of a launch are all resident at once, so that any may wait for any other: an error if they
// are more than the device holds.
enum class Blocks { apart, together };

constexpr std::uint64_t most_blocks = 0x7fffffff;

// Starts `kernel(arguments...)` on the stream; of no blocks, nothing. Arguments are converted to the kernel's
// parameters.
template <Blocks resident = Blocks::apart, class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), std::uint64_t blocks, unsigned threads, cudaStream_t stream,
                   Arguments&&... arguments) {
    if (blocks == 0) return cudaSuccess;
    if (blocks > most_blocks) return cudaErrorInvalidConfiguration;
    cudaLaunchAttribute together{};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(threads);
    config.stream = stream;
    config.attrs = &together;
    config.numAttrs = resident == Blocks::together;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...);
}

// How many blocks of a kernel the device holds at once, beside the kernels of a collective: those hold
// their multiprocessors until the other ranks are as far, which may wait for this launch.
template <class... Parameters>
cudaError_t count_together(void (*kernel)(Parameters...), unsigned threads, int device, unsigned& blocks) {
    int multiprocessors = 0, each = 0;
    cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, static_cast<int>(threads), 0);
    blocks = static_cast<unsigned>(multiprocessors - multiprocessors / 4) * static_cast<unsigned>(each);
    return error;
}

// How many pieces of `size` it takes to hold `count`.
__host__ __device__ constexpr std::uint64_t pieces(std::uint64_t count, std::uint64_t size) {
    return count / size + (count % size != 0);
}

}  // namespace gradwire

// In a host function that returns cudaError_t: returns the error, if there is one.
#define GRADWIRE_TRY(call)                                      \
    do {                                                        \
        const cudaError_t gradwire_error = (call);              \
        if (gradwire_error != cudaSuccess) return gradwire_error; \
    } while (0)
