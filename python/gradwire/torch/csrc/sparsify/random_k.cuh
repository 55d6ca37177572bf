// Random-k: positions drawn with a key, the same on all ranks, whatever the entries are.
#pragma once

#include "pack/draw.cuh"
#include "sparsify/amount.cuh"
#include "sparsify/marks.cuh"

namespace gradwire {

// Marks the first `count` distinct positions. Never draws more at once than are missing, so that none
// is one too many.
__device__ inline void mark_subset(Team& team, Desk& desk, std::uint64_t key, std::uint64_t numel, std::uint64_t count) {
    std::uint32_t at = 0;
    for (std::uint64_t missing = count; missing > 0;) {
        const std::uint64_t fresh = mark_drawn(desk.mask, key, static_cast<std::uint32_t>(numel), at,
                                               team.first(missing) + threadIdx.x, team_threads, team.last(missing));
        at += static_cast<std::uint32_t>(missing);
        missing -= team.total(block_reduce<team_threads>(fresh, Sum{}));
    }
    team.sync();
}

// Marks every other position instead.
__device__ inline void invert_marks(Team& team, Desk& desk, std::uint64_t numel) {
    const std::uint64_t words = pieces(numel, 32);
    for (std::uint64_t i = team.first(words) + threadIdx.x; i < team.last(words); i += team_threads) {
        const std::uint64_t beyond = (i + 1) * 32 > numel ? (i + 1) * 32 - numel : 0;
        desk.mask[i] = ~desk.mask[i] & (0xffffffffu >> beyond);
    }
    team.sync();
}

// Draws `k` positions, in place of what the survivors were.
__device__ GRADWIRE_APART inline void draw(ScannedTensor& scanned, std::uint64_t k) {
    const Sparsify& options = scanned.options;
    Team& team = scanned.team;
    Desk& desk = scanned.desk;
    const std::uint64_t numel = scanned.numel;
    clear_marks(team, desk, numel);
    if (k > 0 && options.run) {
        const std::uint32_t start = first_drawn(scanned.key, static_cast<std::uint32_t>(numel));
        for (std::uint64_t j = team.first(k) + threadIdx.x; j < team.last(k); j += team_threads)
            mark(desk, start + j < numel ? start + j : start + j - numel);
    } else if (2 * k > numel) {
        mark_subset(team, desk, scanned.key, numel, numel - k);
        invert_marks(team, desk, numel);
    } else {
        mark_subset(team, desk, scanned.key, numel, k);
    }
    take_marks(scanned);
    if (!options.scaled || k == 0) return;
    const float factor = static_cast<float>(static_cast<double>(numel) / static_cast<double>(k));
    constexpr float most = 3.40282347e+38f;
    const List list = scanned.survivors.list();
    for (std::uint64_t i = team.first(k) + threadIdx.x; i < team.last(k); i += team_threads) {
        const float value = list.values[i];
        // What is not finite is reported; what is must stay so.
        if (magnitude(value) >= not_finite) continue;
        const float scaled = value * factor;
        list.values[i] = scaled < -most ? -most : scaled > most ? most : scaled;
    }
    team.sync();
}

__device__ inline Selected select_drawn(ScannedTensor& scanned) {
    const std::uint64_t k = target_of(scanned.options, scanned.numel);
    draw(scanned, k);
    return {k, true, 0.0f, 0.0f};
}

}  // namespace gradwire
