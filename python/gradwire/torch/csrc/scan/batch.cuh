// Several entries of a tensor at a time.
//
// All that is read of them is asked for before any of it is used, and before anything is written: nothing
// says that a store is to other memory than the loads behind it, so that one between them would have
// them wait for each other. And what kind of tensor it is is asked once for all of them.
#pragma once

#include "device/warp.cuh"
#include "scan/tensor.cuh"

namespace gradwire {

// Entries of one thread: runs of `Run` from `first` on, `Step` apart, those that are less than `end`.
template <unsigned Count, unsigned Step, unsigned Run = 1>
struct Batch {
    static constexpr unsigned count = Count;
    std::uint64_t first, end;

    __device__ std::uint64_t at(unsigned i) const { return first + i / Run * Step + i % Run; }
    __device__ bool has(unsigned i) const { return at(i) < end; }

    // Calls `work(i, position)` for each entry that is there.
    template <class Work>
    __device__ void each(Work work) const {
#pragma unroll
        for (unsigned i = 0; i < Count; ++i)
            if (has(i)) work(i, at(i));
    }

    // Reads numbers of one type, zero where there is none.
    template <class T>
    __device__ void read(const void* from, T (&into)[Count]) const {
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) into[i] = has(i) ? global(static_cast<const T*>(from))[at(i)] : T(0);
    }

    // Writes numbers.
    __device__ void write(const float (&from)[Count], float* into) const {
        each([&](unsigned i, std::uint64_t place) { global(into)[place] = from[i]; });
    }
};

// Four entries in a row of each 128 that a warp has.
constexpr unsigned quad = 4, quads_of_warp = quad * warp_threads;
template <unsigned Count>
using Quads = Batch<Count, quads_of_warp, quad>;

// The same where all are there, in global memory that is aligned for four at a time.
template <unsigned Count>
struct WholeQuads {
    static constexpr unsigned count = Count;
    std::uint64_t first;

    __device__ std::uint64_t at(unsigned i) const { return first + i / quad * quads_of_warp + i % quad; }
    __device__ static constexpr bool has(unsigned) { return true; }

    template <class Work>
    __device__ void each(Work work) const {
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) work(i, at(i));
    }

    template <class T>
    __device__ void read(const void* from, T (&into)[Count]) const {
        const auto* const quads = reinterpret_cast<const Quad<T>*>(global(static_cast<const T*>(from)) + first);
#pragma unroll
        for (unsigned i = 0; i < Count; i += quad) {
            const Quad<T> loaded = quads[i / quad * warp_threads];
#pragma unroll
            for (unsigned j = 0; j < quad; ++j) into[i + j] = loaded.number[j];
        }
    }

    __device__ void write(const float (&from)[Count], float* into) const {
        auto* const quads = reinterpret_cast<Quad<float>*>(global(into) + first);
#pragma unroll
        for (unsigned i = 0; i < Count; i += quad)
            quads[i / quad * warp_threads] = {{from[i], from[i + 1], from[i + 2], from[i + 3]}};
    }

  private:
    template <class T>
    struct alignas(sizeof(T) < 4 ? quad * sizeof(T) : 16) Quad {
        T number[quad];
    };
};

// Whether memory is aligned for that, of numbers of this size.
__device__ inline bool is_aligned(const void* at, unsigned size) {
    return reinterpret_cast<std::uintptr_t>(at) % (size < 4 ? quad * size : 16) == 0;
}

// Numbers of one type made float32 by `widen`.
template <class T, class Batch, class Widen>
__device__ void read_wide(Batch batch, const void* from, float (&into)[Batch::count], Widen widen) {
    T raw[Batch::count];
    batch.read(from, raw);
#pragma unroll
    for (unsigned i = 0; i < Batch::count; ++i) into[i] = widen(raw[i]);
}

// Entries of a gradient as float32, divided by a number first if that is not 1. `nonzero` becomes true if one was
// not zero before.
template <class Batch>
__device__ void read_entries(const Tensor& tensor, Batch batch, float (&entries)[Batch::count], bool& nonzero) {
    switch (tensor.dtype) {
        case Dtype::f32:
            batch.read(tensor.gradient, entries);
            break;
        case Dtype::f64:
            read_wide<double>(batch, tensor.gradient, entries, [&nonzero](double wide) {
                nonzero |= wide != 0.0;
                return static_cast<float>(wide);
            });
            break;
        case Dtype::f16:
            read_wide<std::uint16_t>(batch, tensor.gradient, entries, widen_f16);
            break;
        case Dtype::bf16:
            read_wide<std::uint16_t>(batch, tensor.gradient, entries, widen_bf16);
            break;
    }
    std::uint32_t bits = 0;
#pragma unroll
    for (unsigned i = 0; i < Batch::count; ++i) bits |= float_bits(entries[i]);
    nonzero |= bits << 1 != 0;
    if (tensor.divisor == 1.0f) return;
#pragma unroll
    for (unsigned i = 0; i < Batch::count; ++i) entries[i] /= tensor.divisor;
}

// Sums of a gradient and what is kept, and what becomes of the memory where nothing is sent.
template <class Batch>
struct Added {
    static constexpr unsigned count = Batch::count;
    float sums[count], kept[count], moments[count];

    __device__ Added(const Tensor& tensor, Batch batch, bool& nonzero) {
        const bool remembers = tensor.kind != MemoryKind::none;
        // What needs no work once it is there comes first.
        if (has_moment(tensor.kind)) batch.read(tensor.moment, moments);
        if (remembers && !tensor.narrow) batch.read(tensor.residual, kept);
        if (remembers && tensor.narrow) read_wide<std::uint16_t>(batch, tensor.residual, kept, widen_bf16);
        read_entries(tensor, batch, sums, nonzero);
        if (!remembers) return;
        if (tensor.kind == MemoryKind::momentum)
            step([&](float entry, float moment) { return momentum_terms(tensor.momentum, entry, moment); });
        if (tensor.kind == MemoryKind::adam)
            step([&](float entry, float moment) { return adam_terms(tensor.adam, entry, moment); });
        const bool filters = tensor.kind == MemoryKind::low_pass;
#pragma unroll
        for (unsigned i = 0; i < count; ++i) {
            const float fresh = sums[i], before = kept[i];
            // A step of nothing need not be zero.
            sums[i] = batch.has(i) ? normal_or_zero(fresh + tensor.decay * before) : 0.0f;
            kept[i] = filters ? normal_or_zero(before + tensor.beta * fresh) : sums[i];
        }
    }

    // Writes what the memory becomes of entries that are not sent.
    __device__ void keep(const Tensor& tensor, Batch batch) const {
        if (tensor.kind == MemoryKind::none) return;
        if (tensor.narrow)
            batch.each([&](unsigned i, std::uint64_t at) { tensor.put_narrow(at, kept[i]); });
        else
            batch.write(kept, static_cast<float*>(tensor.next));
        if (has_moment(tensor.kind)) batch.write(moments, tensor.next_moment);
    }

  private:
    template <class Rule>
    __device__ void step(Rule rule) {
#pragma unroll
        for (unsigned i = 0; i < count; ++i) {
            const Terms made = rule(sums[i], moments[i]);
            sums[i] = made.fresh;
            moments[i] = made.moment;
        }
    }
};

using One = Batch<1, 1>;

// The sum at a position, before anything is written.
__device__ inline float sum_at(const Tensor& tensor, std::uint64_t i) {
    bool nonzero = false;
    return Added(tensor, One{i, i + 1}, nonzero).sums[0];
}

// The same once the memory is written, from where it takes the fewest reads.
__device__ inline float written_at(const Tensor& tensor, std::uint64_t i) {
    return tensor.are_written() ? static_cast<const float*>(tensor.next)[i] : sum_at(tensor, i);
}

}  // namespace gradwire
