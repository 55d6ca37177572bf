// A tensor that was read once, and what came of it.
#pragma once

#include "sparsify/radix.cuh"

namespace gradwire {

// Sums that were written as float32.
struct WrittenSums {
    const float* sums;
    __device__ float operator()(std::uint64_t i) const { return global(sums)[i]; }

    template <class Batch>
    __device__ void read(Batch batch, float (&values)[Batch::count]) const {
        batch.read(sums, values);
    }
};

// The entries as the selection reads them: once written, from where it takes the fewest reads.
struct WrittenEntry {
    const Tensor& tensor;
    __device__ float operator()(std::uint64_t i) const { return written_at(tensor, i); }

    template <class Batch>
    __device__ void read(Batch batch, float (&values)[Batch::count]) const {
        if (tensor.are_written()) {
            batch.read(tensor.next, values);
            return;
        }
        bool nonzero = false;
        const Added<Batch> added(tensor, batch, nonzero);
#pragma unroll
        for (unsigned i = 0; i < Batch::count; ++i) values[i] = added.sums[i];
    }

    __device__ ChunkFound read_chunk(const Desk& desk, const Chunk& chunk) const {
        if (!tensor.are_written() || !chunk.is_whole() || !is_aligned(tensor.next, sizeof(float)))
            return gradwire::read_chunk(desk, chunk, *this);
        return read_by(desk, chunk, WrittenSums{static_cast<const float*>(tensor.next)}, whole_quads_of_lane);
    }
};

// Where the state is before the sums are written.
struct UnwrittenEntry {
    Tensor tensor;
    __device__ float operator()(std::uint64_t i) const { return sum_at(tensor, i); }
};

// What a sparsifier has come to.
struct Selected {
    std::uint64_t target;
    bool has_target;
    float threshold, magnitude;
};

// All that a selection works with; the same in every thread of the team.
struct ScannedTensor {
    Team& team;
    Desk& desk;
    const Sparsify& options;
    WrittenEntry entry;
    std::uint64_t numel = 0;
    std::uint64_t key = 0;  // of this step's selection
    Request request{};
    Moments moments{};
    std::uint32_t peak = 0;
    bool complete = false;  // whether all entries that were asked for are survivors
    Survivors survivors{};

    // Takes over what the first read left.
    __device__ void begin() {
        request = desk.request;
        peak = desk.peak;
        moments = desk.total;
        survivors = {&desk, 0, 0};
        complete = false;
        if (request.above) take_candidates();
    }

    // Whether the survivors are all entries above `bound`, and possibly more.
    __device__ bool covers(float bound) const {
        return complete && request.above && request.bound <= bound;
    }

    __device__ std::uint64_t count_above(float bound) { return survivors.count_above(team, bound); }

    // Reads the tensor once more for the entries above `bound`; whether all could be kept.
    __device__ GRADWIRE_APART bool compact(float bound, std::uint64_t cap) {
        request = {1, bound, cap, 0, 0.0f};
        read_again(team, desk, numel, request, entry);
        take_candidates();
        return complete;
    }

    // The sums of the exceedances over a location, in a read of their own.
    __device__ Moments read_moments(float location) {
        const Request asked{0, 0.0f, 0, 1, location};
        team.sync();
        read_moments_of(asked);
        return total_of_parts(team, desk, pieces(numel, chunk_entries));
    }

    // Makes survivors of the candidates, unless those are more than the cap.
    __device__ GRADWIRE_APART void take_candidates() {
        const BlockSums marked = count_marked(team, desk, numel);
        complete = marked.total <= request.cap;
        survivors.count = complete ? marked.total : 0;
        survivors.side = 0;
        if (complete)
            list_candidates(team, desk, numel, survivors.list(), request.bound, marked.before, entry);
        else
            team.sync();  // the next read counts anew, and some blocks may still add these counts up
    }

  private:
    __device__ GRADWIRE_APART void read_moments_of(const Request& asked) {
        const std::uint64_t chunks = pieces(numel, chunk_entries);
        for (std::uint64_t chunk = team.first(chunks); chunk < team.last(chunks); ++chunk)
            entry.read_chunk(desk, Chunk(numel, chunk, asked));
        team.sync();
    }
};

// The number just below a positive one, and the one below zero.
__device__ inline float next_down(float value) {
    const std::uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffff) == 0) return float_of(0x80000001);
    return float_of(bits >> 31 ? bits + 1 : bits - 1);
}

}  // namespace gradwire
