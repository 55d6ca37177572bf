// What there is to encode: a gradient, and what a memory adds to it.
#pragma once

#include "device/block.cuh"
#include "memory/rules.cuh"

namespace gradwire {

__device__ inline float float_of(std::uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

__device__ inline std::uint32_t float_bits(float value) {
    std::uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// The bits of the magnitude: they order as magnitudes do, what is not finite above all others.
__device__ inline std::uint32_t magnitude(float value) { return float_bits(value) & 0x7fffffff; }

// The least bits that are not finite.
constexpr std::uint32_t not_finite = 0x7f800000;

// Entries that are not finite: how many, and the position of the first.
struct NotFinite {
    unsigned long long count = 0, first = ~0ull;

    __device__ void add(std::uint32_t magnitude, std::uint64_t at) {
        if (magnitude < not_finite) return;
        ++count;
        first = min(first, static_cast<unsigned long long>(at));
    }
    // Has thread 0 know of those of a whole block.
    template <unsigned Threads>
    __device__ void gather() {
        count = block_reduce<Threads>(count, Sum{});
        first = block_reduce<Threads>(first, Least{});
        if (threadIdx.x != 0) count = 0;
    }
    __device__ void report(unsigned long long& counts, unsigned long long& firsts) const {
        if (count == 0) return;
        atomicAdd(&counts, count);
        atomicMin(&firsts, first);
    }
};

// float16 to float32, exact.
__device__ inline float widen_f16(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
    const std::uint32_t rest = static_cast<std::uint32_t>(half & 0x7fff) << 13;
    // Subnormals too: the product is exact.
    const float scaled = float_of(rest) * float_of((127 + 112) << 23);
    return float_of(sign | (rest >= 0x0f800000 ? rest | 0x7f800000 : float_bits(scaled)));
}

// bfloat16 to float32, exact.
__device__ inline float widen_bf16(std::uint16_t upper) { return float_of(static_cast<std::uint32_t>(upper) << 16); }

// The sums of a gradient and what is kept of those before, and where they are written.
struct Tensor {
    const void* gradient;
    std::uint64_t numel;
    Dtype dtype;
    MemoryKind kind;
    bool masks, narrow;
    float divisor;
    float decay, beta;
    const void* residual;
    const float* moment;
    void* next;
    float* next_moment;
    std::uint64_t key;  // of what rounds to bfloat16
    MomentumRule momentum;
    AdamRule adam;

    // What was kept.
    __device__ float kept(std::uint64_t i) const {
        return narrow ? widen_bf16(static_cast<const std::uint16_t*>(residual)[i]) : static_cast<const float*>(residual)[i];
    }

    // Writes what is kept from now on.
    __device__ void put(std::uint64_t i, float value) const {
        if (narrow)
            put_narrow(i, value);
        else
            static_cast<float*>(next)[i] = value;
    }

    __device__ void put_narrow(std::uint64_t i, float value) const {
        static_cast<std::uint16_t*>(next)[i] = dithered(value, key, static_cast<std::uint32_t>(i));
    }

    // Whether the sums themselves are in the memory once it is written.
    __device__ bool are_written() const { return becomes_sums(kind) && !narrow; }

    // Writes what the memory becomes of an entry that is sent, and that its receiver decodes as `decoded`.
    // Once for each, after what it becomes of those that are not.
    __device__ void settle(std::uint64_t i, float value, float decoded) const {
        if (kind == MemoryKind::none) return;
        const float left = normal_or_zero(value - decoded);
        put(i, kind == MemoryKind::low_pass ? filtered(beta, kept(i), left) : left);
        // The momentum of what is sent becomes zero.
        if (masks) next_moment[i] = 0.0f;
    }
};

// `scale` is what clipping a norm multiplies the gradient by.
__device__ inline Tensor tensor_of(const Piece& piece, float divisor, float scale) {
    Tensor tensor{};
    tensor.gradient = piece.gradient;
    tensor.numel = piece.numel;
    tensor.dtype = piece.dtype;
    tensor.kind = piece.memory.kind;
    tensor.masks = piece.memory.masking;
    tensor.narrow = piece.memory.narrow;
    tensor.divisor = divisor;
    tensor.decay = tensor.kind == MemoryKind::residual ? piece.memory.decay : 1.0f;
    tensor.beta = piece.memory.beta;
    const std::uint32_t current = piece.state->current;
    tensor.residual = piece.residual[current];
    tensor.moment = piece.moment[current];
    tensor.next = piece.residual[1 - current];
    tensor.next_moment = piece.moment[1 - current];
    tensor.momentum = {piece.memory.momentum, scale, piece.memory.nesterov};
    if (tensor.narrow) tensor.key = memory_key(piece.memory, *piece.state);
    if (tensor.kind == MemoryKind::adam) tensor.adam = adam_rule(piece.memory, *piece.state);
    return tensor;
}

// The same, one for a block: what is the same in all threads takes the registers of none. All of them call.
__device__ inline const Tensor& tensor_of_block(const Piece& piece, float divisor, float scale) {
    GRADWIRE_SHARED(Tensor, tensor);
    __syncthreads();
    if (threadIdx.x == 0) tensor = tensor_of(piece, divisor, scale);
    __syncthreads();
    return tensor;
}

}  // namespace gradwire
