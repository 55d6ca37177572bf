// Fits a few magnitudes to those of a block, by clustering.
//
// Lloyd, "Least Squares Quantization in PCM", IEEE Trans. Inf. Theory 1982: each value is assigned to
// its nearest magnitude, and each magnitude is the mean of its values. In one dimension clusters are
// intervals: sums over them are differences of running sums over cells of magnitudes.
#pragma once

#include "device/block.cuh"
#include "device/segments.cuh"
#include "quantize/power.cuh"

namespace gradwire::codebook {

constexpr unsigned fine = 5;        // bits of a mantissa that tell cells apart
constexpr unsigned cells = 17u << fine;  // of 16 powers of two below the largest magnitude; below is one
constexpr unsigned rounds = 16;     // of Lloyd's iteration, where there are more than two magnitudes
constexpr unsigned most = 8;        // magnitudes

// Where a cluster is cut in two, and what that takes off the squared error.
struct Cut {
    double gain;
    unsigned at;
};

// Magnitudes counted in cells; then running sums over those that are not empty, ascending.
struct Room {
    unsigned counts[cells];
    unsigned long long sums[cells];  // of mantissas: of one power of two each, but for the first
    unsigned lowest;                 // the number of the first cell
    double rest;                     // the sum of the first
    double count[cells + 1], sum[cells + 1];
    unsigned len;
    unsigned ends[most];
    Cut cuts[most];
    unsigned clusters, widest;
    bool done;
};

__device__ inline unsigned cell_of(float magnitude) {
    // As a float64 every float32 is normal: subnormals have cells like all others.
    return static_cast<unsigned>(__double_as_longlong(magnitude) >> (52 - fine));
}

__device__ inline double share(const Room& room, unsigned from, unsigned to) {
    const double sum = __dsub_rn(room.sum[to], room.sum[from]), count = __dsub_rn(room.count[to], room.count[from]);
    return __ddiv_rn(__dmul_rn(sum, sum), count);
}

// The greater gain, and the first of two equal ones.
struct Better {
    __device__ Cut operator()(Cut a, Cut b) const {
        return b.gain > a.gain || (b.gain == a.gain && b.at < a.at) ? b : a;
    }
};

// The best cut of these cells in two; a gain of zero if there is none. By all threads of a warp.
__device__ inline Cut best_cut(const Room& room, unsigned start, unsigned end) {
    constexpr unsigned never = 0xffffffff;
    Cut best{0.0, never};
    const double whole = share(room, start, end);
    for (unsigned at = start + 1 + lane(); at < end; at += warp_threads) {
        const double gain = __dsub_rn(__dadd_rn(share(room, start, at), share(room, at, end)), whole);
        if (gain > best.gain) best = {gain, at};
    }
    for (unsigned half = warp_threads / 2; half > 0; half /= 2) {
        const Cut other{__shfl_xor_sync(all_lanes, best.gain, half), __shfl_xor_sync(all_lanes, best.at, half)};
        best = Better{}(best, other);
    }
    return best.at == never ? Cut{0.0, 0} : best;
}

// The mean of each cluster; of an empty one that of the cluster below it.
__device__ inline void means(const Room& room, unsigned magnitudes, float* out) {
    unsigned start = 0;
    float last = 0.0f;
    for (unsigned i = 0; i < magnitudes; ++i) {
        const unsigned end = room.ends[i];
        const double count = __dsub_rn(room.count[end], room.count[start]);
        if (count > 0.0) last = __double2float_rn(__ddiv_rn(__dsub_rn(room.sum[end], room.sum[start]), count));
        out[i] = last;
        start = end;
    }
}

// Counts `n` values in cells. `value(i)` is in shared memory. By all threads of a block.
template <unsigned Threads, class Value>
__device__ void count_cells(Room& room, unsigned n, Value value) {
    std::uint32_t peak = 0;
    for (unsigned i = threadIdx.x; i < n; i += Threads) peak = max(peak, __float_as_uint(value(i)) & magnitude_bits);
    peak = block_reduce<Threads>(peak, Greatest{});
    const unsigned above = cell_of(__uint_as_float(peak)) + 1, lowest = above > cells ? above - cells : 0;
    const auto cell = [&](float magnitude) {
        const unsigned at = cell_of(magnitude);
        return min(at > lowest ? at - lowest : 0, cells - 1);
    };
    if (threadIdx.x == 0) room.lowest = lowest;
    for (unsigned i = threadIdx.x; i < cells; i += Threads) room.counts[i] = 0, room.sums[i] = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += Threads) {
        const float magnitude = magnitude_of(value(i));
        const unsigned at = cell(magnitude);
        atomicAdd(&room.counts[at], 1u);
        const auto bits = static_cast<unsigned long long>(__double_as_longlong(magnitude));
        if (at > 0) atomicAdd(&room.sums[at], (bits & ((1ull << 52) - 1)) >> 29 | 1ull << 23);
    }
    // A float64 holds the sums of the others exactly, whatever the order. The first cell has magnitudes
    // of many powers of two: one warp adds them up one by one.
    if (warp() == 0) {
        double sum = 0.0;
        for (unsigned base = 0; base < n; base += warp_threads) {
            const unsigned i = base + lane();
            const float magnitude = i < n ? magnitude_of(value(i)) : 0.0f;
            for (unsigned here = __ballot_sync(all_lanes, i < n && cell(magnitude) == 0); here; here &= here - 1)
                sum = __dadd_rn(sum, __shfl_sync(all_lanes, magnitude, __ffs(static_cast<int>(here)) - 1));
        }
        if (lane() == 0) room.rest = sum;
    }
    __syncthreads();
}

// The sum of the magnitudes of a cell.
__device__ inline double sum_of(const Room& room, unsigned at) {
    if (at == 0) return room.rest;
    const int exponent = static_cast<int>((room.lowest + at) >> fine) - 1023;
    return __dmul_rn(static_cast<double>(room.sums[at]), power::wide(exponent - 23));
}

// `magnitudes` magnitudes for the values, ascending, into `out`, which may be shared memory. Where
// there are fewer different ones, some are equal. By all threads of a block.
template <unsigned Threads, class Value>
__device__ void fit(Room& room, unsigned n, unsigned magnitudes, Value value, float* out) {
    count_cells<Threads>(room, n, value);
    if (threadIdx.x == 0) {
        room.len = 0;
        room.count[0] = room.sum[0] = 0.0;
        for (unsigned i = 0; i < cells; ++i) {
            if (room.counts[i] == 0) continue;
            room.count[room.len + 1] = __dadd_rn(room.count[room.len], static_cast<double>(room.counts[i]));
            room.sum[room.len + 1] = __dadd_rn(room.sum[room.len], sum_of(room, i));
            ++room.len;
        }
        for (unsigned i = 0; i < most; ++i) room.ends[i] = room.len, room.cuts[i] = {0.0, 0};
    }
    __syncthreads();
    if (warp() == 0) {
        // One cluster after the other is cut where that takes most off the squared error.
        Cut first = best_cut(room, 0, room.len);
        if (lane() == 0) room.cuts[0] = first;
        __syncwarp();
        for (unsigned clusters = 1; clusters < magnitudes; ++clusters) {
            unsigned widest = 0;
            for (unsigned i = 1; i < clusters; ++i)
                if (room.cuts[i].gain > room.cuts[widest].gain) widest = i;
            const Cut cut = room.cuts[widest];
            if (cut.gain <= 0.0) break;
            const unsigned start = widest == 0 ? 0 : room.ends[widest - 1], end = room.ends[widest];
            const Cut left = best_cut(room, start, cut.at), right = best_cut(room, cut.at, end);
            __syncwarp();
            if (lane() == 0) {
                for (unsigned i = clusters; i > widest; --i) {
                    room.ends[i] = room.ends[i - 1];
                    room.cuts[i] = room.cuts[i - 1];
                }
                room.ends[widest] = cut.at;
                room.cuts[widest] = left;
                room.cuts[widest + 1] = right;
            }
            __syncwarp();
        }
        for (unsigned round = 0; round < (magnitudes > 2 ? rounds : 0); ++round) {
            // Where clusters meet moves to the middle between their means.
            float mean[most];
            means(room, magnitudes, mean);
            __syncwarp();
            if (lane() + 1 < magnitudes) {
                float below = 0.0f, above = 0.0f;
                for (unsigned i = 0; i + 1 < most; ++i)
                    if (i == lane()) below = mean[i], above = mean[i + 1];
                const double middle =
                    __dmul_rn(__dadd_rn(static_cast<double>(below), static_cast<double>(above)), 0.5);
                room.ends[lane()] = partition_point(0u, room.len, [&](unsigned at) {
                    const double sum = __dsub_rn(room.sum[at + 1], room.sum[at]);
                    const double count = __dsub_rn(room.count[at + 1], room.count[at]);
                    return sum <= __dmul_rn(middle, count);
                });
            }
            __syncwarp();
        }
        if (lane() == 0) means(room, magnitudes, out);
    }
    __syncthreads();
}

}  // namespace gradwire::codebook
