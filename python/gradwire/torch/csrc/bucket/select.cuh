// What the launches of a selection share, on the device.
#pragma once

#include "bucket/select.h"
#include "sparsify/select.cuh"

namespace gradwire {

// A bucket that is being worked on.
struct Selecting {
    const Piece* pieces;
    Selection* selections;
    Desk* desks;
    const std::uint64_t* first_chunk;
    const std::uint32_t* first_piece;
    unsigned count;
    float divisor;
    bool trims;  // a frame may be too long
};

// The bucket of a plan whose table lies there.
Selecting selecting_in(const SelectPlan& plan, const Piece* pieces, Selection* selections, void* table, float divisor,
                       bool trims);

// Adds gradients and memories of all pieces up, writes what memories become where nothing is sent, and
// selects, in three launches. All that the bucket has is on the device.
cudaError_t launch_select(const SelectPlan& plan, const Selecting& bucket, cudaStream_t stream);

// The second of them: reads every tensor once, and gathers what its desk asks for.
cudaError_t launch_read(const SelectPlan& plan, const Selecting& bucket, cudaStream_t stream);

// Calls `work(index, piece, desk, team)` for each piece that this block has a share of, in their order.
template <class Work>
__device__ void for_each_piece(const Selecting& bucket, Work work) {
    for (unsigned i = bucket.first_piece[blockIdx.x]; i < bucket.count; ++i) {
        Desk& desk = bucket.desks[i];
        if (desk.first_block > blockIdx.x) break;
        const unsigned rank = blockIdx.x - desk.first_block;
        if (rank >= desk.blocks) continue;
        Team team{rank, desk.blocks, desk.arrivals, desk.slots, desk.bins, 0, 0, false};
        work(i, bucket.pieces[i], desk, team);
        team.end();
    }
}

// A piece as the selection sees it, whose first read is done. All threads of a block call.
__device__ inline ScannedTensor scanned_of(Team& team, Desk& desk, const Piece& piece, float divisor, std::uint64_t key) {
    ScannedTensor scanned{team, desk, piece.sparsify, {tensor_of_block(piece, divisor, desk.scale)}};
    scanned.numel = piece.numel;
    scanned.key = key;
    return scanned;
}

// What an encode begins from: what the last one left, or for another sparsifier something new.
__device__ inline Tracker tracker_of(const Piece& piece) {
    const State& state = *piece.state;
    const auto* const now = reinterpret_cast<const unsigned char*>(&piece.sparsify);
    const auto* const then = reinterpret_cast<const unsigned char*>(&state.tracked.sparsify);
    bool same = true;
    for (unsigned i = 0; i < sizeof(Sparsify); ++i) same &= now[i] == then[i];
    if (same) return state.tracked.tracker;
    Tracker fresh{};
    if (piece.sparsify.kind == Sparsifier::sid) fresh.controller = new_controller(piece.sparsify);
    return fresh;
}

// Whether kernels encode so.
__device__ inline bool is_supported(const Piece& piece) {
    return piece.sparsify.kind != (piece.given ? Sparsifier::all : Sparsifier::custom);
}

__device__ inline std::uint64_t selection_key(const Piece& piece) {
    const State& state = *piece.state;
    return make_key(piece.sparsify.seed, state.tensor, state.step, 0);
}

// Tells the desk of entries that are not finite. All threads of a block call.
__device__ inline void report_bad(Desk& desk, NotFinite bad) {
    bad.gather<team_threads>();
    bad.report(desk.bad_count, desk.bad_first);
    if (bad.count > 0) atomicOr(&desk.bad, 1u);
}

// Looks for what is not finite among entries that no read has seen, or that were made larger.
__device__ inline void check_survivors(Team& team, const ScannedTensor& scanned) {
    const List list = scanned.survivors.list();
    const std::uint64_t count = scanned.survivors.count;
    NotFinite bad;
    for (std::uint64_t i = team.first(count) + threadIdx.x; i < team.last(count); i += team_threads)
        bad.add(magnitude(list.values[i]), list.positions[i]);
    report_bad(scanned.desk, bad);
    team.sync();
}

// Looks for what is not finite in a chunk that was read.
template <class Entry>
__device__ void count_bad(Desk& desk, const Chunk& chunk, Entry entry) {
    NotFinite bad;
    for (std::uint64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += team_threads) bad.add(magnitude(entry(i)), i);
    report_bad(desk, bad);
}

// Takes positions that were selected elsewhere; whether they may be.
__device__ inline bool take_given(ScannedTensor& scanned, const Piece& piece) {
    Team& team = scanned.team;
    const List list = scanned.desk.lists[0];
    const std::uint64_t count = piece.support_count;
    std::uint64_t wrong = count > scanned.desk.room;
    if (wrong == 0)
        for (std::uint64_t i = team.first(count) + threadIdx.x; i < team.last(count); i += team_threads) {
            const std::uint32_t position = piece.support[i];
            const bool right = position < scanned.numel && (i == 0 || piece.support[i - 1] < position);
            wrong += !right;
            list.positions[i] = position;
            list.values[i] = right ? scanned.entry(position) : 0.0f;
        }
    wrong = team.total(block_reduce<team_threads>(wrong, Sum{}));
    scanned.survivors = {&scanned.desk, count, 0};
    team.sync();
    return wrong == 0;
}

}  // namespace gradwire
