// Puts the entries of valid frames into the tensors: a block has a part of a tensor, and takes the
// frames of one rank after another.
#pragma once

#include "bucket/examine.cuh"

namespace gradwire {

constexpr unsigned apply_threads = 256;

// What is done with values, and with their sums.
struct Finish {
    float factor;        // of every value
    float ranks, scale;  // of sums, where `scaled`: divided, then multiplied
    bool scaled;
};

struct Sums {
    float total[tile_elements];
    std::uint16_t senders[tile_elements];
};

// The nearest binary16, ties to even; infinite above the largest, and a NaN stays one.
__device__ inline std::uint16_t to_half(float x) {
    const std::uint32_t bits = __float_as_uint(x), magnitude = bits & magnitude_bits, sign = bits >> 16 & 0x8000;
    if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);  // 65520 rounds up
    return static_cast<std::uint16_t>(half::narrow(x));
}

// The nearest bfloat16, ties to even; a NaN stays one.
__device__ inline std::uint16_t to_bfloat16(float x) {
    const std::uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

__device__ inline void store(const Target& target, std::uint64_t at, float value) {
    switch (target.dtype) {
        case Dtype::f32: static_cast<float*>(target.out)[at] = value; break;
        case Dtype::f64: static_cast<double*>(target.out)[at] = value; break;
        case Dtype::f16: static_cast<std::uint16_t*>(target.out)[at] = to_half(value); break;
        case Dtype::bf16: static_cast<std::uint16_t*>(target.out)[at] = to_bfloat16(value); break;
    }
}

__device__ inline void add(float& sum, float value, float factor) { sum = __fadd_rn(sum, __fmul_rn(value, factor)); }

// Calls `visit(position, value)` with the entries of a part of a tensor, frame after frame. All threads of
// the block call.
template <class Visit>
__device__ void visit_frames(const Decode& call, const Work& work, unsigned tensor, std::uint64_t begin,
                             std::uint64_t end, const Visit& visit) {
    for (std::uint64_t rank = 0; rank < call.ranks; ++rank) {
        const std::uint64_t at = static_cast<std::uint64_t>(tensor) * call.ranks + rank;
        const Frame& frame = work.frames[at];
        const Upper upper = has_upper(frame) ? upper_of(frame, work.marks_of(call, at)) : Upper{};
        const Directory directory = work.directory_of(call, at);
        visit_entries<apply_threads>(frame, upper, directory, begin, end, [&](std::uint32_t entry, std::uint32_t position) {
            visit(position, value_of(frame.values, entry, position));
        });
        // Positions of one frame differ, so that only frames have to wait for each other.
        __syncthreads();
    }
}

__global__ void __launch_bounds__(apply_threads) apply(Decode call, Work work, Finish finish) {
    GRADWIRE_SHARED(Sums, sums);
    if (*call.failed != 0) return;
    const TargetTile tile(call);
    const std::uint64_t begin = tile.begin, end = tile.end;
    const Target& target = call.targets[tile.tensor];
    const bool in_place = call.into == Into::add;
    if (!in_place)
        for (std::uint64_t i = threadIdx.x; i < tile_elements; i += apply_threads) sums.total[i] = 0.0f, sums.senders[i] = 0;
    __syncthreads();
    visit_frames(call, work, tile.tensor, begin, end, [&](std::uint32_t position, float value) {
        if (in_place) {
            add(static_cast<float*>(target.out)[position], value, finish.factor);
        } else if (call.into == Into::place) {
            sums.total[position - begin] = value;
        } else {
            add(sums.total[position - begin], value, finish.factor);
            ++sums.senders[position - begin];
        }
    });
    if (in_place) return;
    for (std::uint64_t i = threadIdx.x; begin + i < end; i += apply_threads) {
        float value = sums.total[i];
        // Two steps, each rounded: the average first, as without a scale.
        if (finish.scaled) value = __fmul_rn(__fdiv_rn(value, finish.ranks), finish.scale);
        if (call.into == Into::senders && sums.senders[i] > 1)
            value = __fdiv_rn(value, static_cast<float>(sums.senders[i]));
        store(target, begin + i, value);
    }
}

}  // namespace gradwire
