// The registry of sparsifiers: what each wants of the first read, and how it selects after it.
#pragma once

#include "sparsify/chunk_topk.cuh"
#include "sparsify/random_k.cuh"
#include "sparsify/sampled_topk.cuh"
#include "sparsify/sid.cuh"

namespace gradwire {

// What the first read gathers; thresholds that are decided on before are left on the desk.
template <class Entry>
__device__ Request wanted(Team& team, Desk& desk, const Sparsify& options, std::uint64_t numel, std::uint64_t key,
                          const Tracker& tracker, Entry entry) {
    switch (options.kind) {
        case Sparsifier::threshold: return {1, options.threshold, ~std::uint64_t(0), 0, 0.0f};
        case Sparsifier::topk:
            return largest_request(team, desk, numel, target_of(options, numel), tracker.bound, entry);
        case Sparsifier::sid: return sid_request(team, desk, options, numel, tracker, entry);
        case Sparsifier::sampled_topk: return sampled_request(team, desk, options, numel, key, tracker.bound, entry);
        default: return {};
    }
}

// Narrows the survivors down to the entries that go.
__device__ inline Selected select_entries(ScannedTensor& scanned, Tracker& tracker) {
    const Sparsify& options = scanned.options;
    switch (options.kind) {
        case Sparsifier::threshold: return {0, false, options.threshold, options.threshold};
        case Sparsifier::topk: return select_topk(scanned, target_of(options, scanned.numel), tracker);
        case Sparsifier::sid: return select_sid(scanned, tracker);
        case Sparsifier::sampled_topk: return select_sampled(scanned, scanned.desk.sampled, tracker);
        case Sparsifier::chunk_topk: return select_chunks(scanned);
        case Sparsifier::random_k: return select_drawn(scanned);
        default: return {};
    }
}

}  // namespace gradwire
