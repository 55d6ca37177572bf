// Frames that are too long get fewer entries.
#pragma once

#include "bucket/select.cuh"
#include "frame/header.cuh"

namespace gradwire {

// The most entries, fewer than `count`, whose frame is within the limit wherever they are.
__device__ inline std::uint64_t surely_fits(const Piece& piece, std::uint64_t count) {
    // The bound never falls as the count grows; of no entries it is a header.
    const auto fits = [&](std::uint64_t entries) { return longest_frame(piece, entries) <= piece.limit; };
    return partition_point(std::uint64_t{1}, count, fits) - 1;
}

// Leaves out the smallest survivors of a frame that is too long, or draws fewer. All threads of one block call,
// once their team has met; `selection` is what it has come to.
//
// Up to so many times the entries left are in proportion to the bytes that they may take. Where a part
// of the frame does not shrink with its entries that comes no nearer, and as many are kept as fit
// whatever they are.
constexpr unsigned trim_guesses = 8;

__device__ GRADWIRE_APART inline void trim(const Piece& piece, Desk& desk, Selection& kept) {
    Selection selection = kept;
    if (selection.status != Status::ok || is_dense(piece)) return;
    if (longest_frame(piece, selection.count) <= piece.limit) return;
    __syncthreads();  // one thread writes it again
    if (piece.given && !piece.may_trim) {
        const std::uint64_t nbytes = frame_len<team_threads>(piece, selection);
        if (threadIdx.x == 0 && nbytes > piece.limit) {
            kept.status = Status::limit;
            kept.nbytes = nbytes;
        }
        return;
    }
    Team team{0, 1, desk.arrivals, desk.slots, desk.bins, 0, 0, false};
    const unsigned side = selection.positions == desk.lists[1].positions;
    ScannedTensor scanned = scanned_of(team, desk, piece, selection.divisor, selection.selection_key);
    scanned.survivors = {&desk, selection.count, side};
    const std::uint64_t selected = selection.count;
    for (unsigned written = 1;; ++written) {
        const std::uint64_t nbytes = frame_len<team_threads>(piece, selection);
        if (nbytes <= piece.limit) break;
        std::uint64_t fewer = surely_fits(piece, selection.count);
        if (written <= trim_guesses && static_cast<IndexCoding>(piece.indices) != IndexCoding::bitmap) {
            const std::uint64_t fixed = fixed_len(piece);
            const double room = static_cast<double>(piece.limit > fixed ? piece.limit - fixed : 0) /
                                static_cast<double>(nbytes - fixed);
            std::uint64_t guess = static_cast<std::uint64_t>(static_cast<double>(selection.count) * room);
            if (guess > selection.count - 1) guess = selection.count - 1;
            fewer = guess > fewer ? guess : fewer;
        }
        if (piece.sparsify.kind == Sparsifier::random_k && !piece.given) {
            draw(scanned, fewer);
            check_survivors(team, scanned);
        } else {
            narrow(team, scanned.survivors, fewer);
        }
        const List list = scanned.survivors.list();
        selection.positions = list.positions;
        selection.values = list.values;
        selection.count = scanned.survivors.count;
    }
    selection.trimmed = selected - selection.count;
    if (desk.bad != 0) {
        selection.status = Status::non_finite;
        selection.bad_count = desk.bad_count;
        selection.bad_first = desk.bad_first;
    }
    if (threadIdx.x == 0) kept = selection;
}

}  // namespace gradwire
