// Several entries of a tensor at a time.
//
// All that is read of them is asked for before any of it is used, and before anything is written: nothing
// says that a store is to other memory than the loads behind it, so that one between them would have
// them wait for each other. And what kind of tensor it is is asked once for all of them.
#pragma once

#include "scan/tensor.cuh"

namespace gradwire {

// Entries of one thread: from `first` on, `Step` apart, those that are less than `end`.
template <unsigned Count, unsigned Step>
struct Batch {
    std::uint64_t first, end;

    __device__ bool has(unsigned i) const { return first + i * Step < end; }

    // Calls `work(i, position)` for each entry that is there.
    template <class Work>
    __device__ void each(Work work) const {
#pragma unroll
        for (unsigned i = 0; i < Count; ++i)
            if (has(i)) work(i, first + i * Step);
    }

    // Writes numbers.
    __device__ void write(const float (&from)[Count], float* into) const {
        each([&](unsigned i, std::uint64_t at) { into[at] = from[i]; });
    }

    // Reads numbers of one type, zero where there is none.
    template <class T>
    __device__ void read(const void* from, T (&into)[Count]) const {
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) into[i] = has(i) ? static_cast<const T*>(from)[first + i * Step] : T(0);
    }

    // The same, then made float32 by `widen`.
    template <class T, class Widen>
    __device__ void read(const void* from, float (&into)[Count], Widen widen) const {
        T raw[Count];
        read(from, raw);
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) into[i] = widen(raw[i]);
    }
};

// Entries of a gradient, as `Tensor::entry` gives each.
template <unsigned Count, unsigned Step>
__device__ void read_entries(const Tensor& tensor, Batch<Count, Step> batch, float (&entries)[Count], bool& nonzero) {
    switch (tensor.dtype) {
        case Dtype::f32:
            batch.read(tensor.gradient, entries);
            break;
        case Dtype::f64:
            batch.template read<double>(tensor.gradient, entries, [&nonzero](double wide) {
                nonzero |= wide != 0.0;
                return static_cast<float>(wide);
            });
            break;
        case Dtype::f16:
            batch.template read<std::uint16_t>(tensor.gradient, entries, widen_f16);
            break;
        case Dtype::bf16:
            batch.template read<std::uint16_t>(tensor.gradient, entries, widen_bf16);
            break;
    }
#pragma unroll
    for (unsigned i = 0; i < Count; ++i) nonzero |= entries[i] != 0.0f;
    if (tensor.divisor == 1.0f) return;
#pragma unroll
    for (unsigned i = 0; i < Count; ++i) entries[i] /= tensor.divisor;
}

// Sums of a gradient and what is kept, as `Tensor::at` gives each, and what becomes of the memory where
// nothing is sent.
template <unsigned Count, unsigned Step>
struct Added {
    float sums[Count], kept[Count], moments[Count];

    __device__ Added(const Tensor& tensor, Batch<Count, Step> batch, bool& nonzero) {
        const bool remembers = tensor.kind != MemoryKind::none;
        const bool has_moment = tensor.kind == MemoryKind::momentum || tensor.kind == MemoryKind::adam;
        // What needs no work once it is there comes first.
        if (has_moment) batch.read(tensor.moment, moments);
        if (remembers && !tensor.narrow) batch.read(tensor.residual, kept);
        if (remembers && tensor.narrow) batch.template read<std::uint16_t>(tensor.residual, kept, widen_bf16);
        read_entries(tensor, batch, sums, nonzero);
        if (!remembers) return;
        if (tensor.kind == MemoryKind::momentum)
            step([&](float entry, float moment) { return momentum_terms(tensor.momentum, entry, moment); });
        if (tensor.kind == MemoryKind::adam)
            step([&](float entry, float moment) { return adam_terms(tensor.adam, entry, moment); });
        const bool filters = tensor.kind == MemoryKind::low_pass;
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) {
            const float fresh = sums[i], before = kept[i];
            // A step of nothing need not be zero.
            sums[i] = batch.has(i) ? normal_or_zero(fresh + tensor.decay * before) : 0.0f;
            kept[i] = filters ? normal_or_zero(before + tensor.beta * fresh) : sums[i];
        }
    }

    // Writes what the memory becomes of entries that are not sent.
    __device__ void keep(const Tensor& tensor, Batch<Count, Step> batch) const {
        if (tensor.kind == MemoryKind::none) return;
        if (tensor.narrow)
            batch.each([&](unsigned i, std::uint64_t at) { tensor.put_narrow(at, kept[i]); });
        else
            batch.write(kept, static_cast<float*>(tensor.next));
        if (tensor.next_moment != nullptr) batch.write(moments, tensor.next_moment);
    }

  private:
    template <class Rule>
    __device__ void step(Rule rule) {
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) {
            const Terms made = rule(sums[i], moments[i]);
            sums[i] = made.fresh;
            moments[i] = made.moment;
        }
    }
};

}  // namespace gradwire
