// The entries that are still in the running, in the order of their positions.
#pragma once

#include "device/segments.cuh"
#include "scan/scan.cuh"

namespace gradwire {

// Which entries of a list stay: all that are `above`, and the first so many that `tie`.
struct Standing {
    bool above, tie;
};

struct Survivors {
    Desk* desk;
    std::uint64_t count;
    unsigned side;  // which list they are in

    __device__ List list() const { return desk->lists[side]; }

    // How many of them a condition holds for.
    template <class Condition>
    __device__ std::uint64_t count_if(Team& team, Condition condition) const {
        const float* const values = list().values;
        std::uint64_t mine = 0;
        for (std::uint64_t i = team.first(count) + threadIdx.x; i < team.last(count); i += team_threads)
            mine += condition(values[i]);
        return team.total(block_reduce<team_threads>(mine, Sum{}));
    }

    __device__ GRADWIRE_APART std::uint64_t count_above(Team& team, float bound) const {
        return count_if(team, [bound](float value) { return fabsf(value) > bound; });
    }

    // Moves those that stay to the other list; a block on its own, which reads what it overwrites
    // before, to the front of the same.
    template <class Judge>
    __device__ void keep(Team& team, std::uint64_t ties, Judge judge) {
        const List from = list();
        if (team.size > 1) side = 1 - side;
        const List to = list();
        const std::uint64_t first = team.first(count), last = team.last(count);
        std::uint64_t own = 0, own_ties = 0;
        for (std::uint64_t i = first + threadIdx.x; i < last; i += team_threads) {
            const Standing standing = judge(from.values[i]);
            own += standing.above;
            own_ties += standing.tie;
        }
        // Both at once: positions, and so numbers of entries, have 32 bits.
        const BlockSums found = team.sums(block_reduce<team_threads>(own | own_ties << 32, Sum{}));
        std::uint64_t before = found.before & 0xffffffff, before_ties = found.before >> 32;
        for (std::uint64_t at = first; at < last; at += team_threads) {
            const std::uint64_t i = at + threadIdx.x;
            const std::uint32_t position = i < last ? from.positions[i] : 0;
            const float value = i < last ? from.values[i] : 0.0f;
            const Standing standing = i < last ? judge(value) : Standing{};
            // Both at once: neither is more than the threads.
            const auto here =
                block_scan<team_threads>(std::uint32_t(standing.above) | std::uint32_t(standing.tie) << 16);
            const std::uint64_t tie_rank = before_ties + (here.before >> 16);
            if (standing.above || (standing.tie && tie_rank < ties)) {
                const std::uint64_t place = before + (here.before & 0xffff) + (tie_rank < ties ? tie_rank : ties);
                to.positions[place] = position;
                to.values[place] = value;
            }
            before += here.total & 0xffff;
            before_ties += here.total >> 16;
        }
        const std::uint64_t tied = found.total >> 32;
        count = (found.total & 0xffffffff) + (tied < ties ? tied : ties);
        team.sync();
    }

    // Keeps those whose magnitude is above a bound.
    __device__ GRADWIRE_APART void keep_above(Team& team, float bound) {
        keep(team, 0, [bound](float value) { return Standing{fabsf(value) > bound, false}; });
    }

    // Keeps those whose magnitude has more than these bits, and the first `ties` that have them.
    __device__ GRADWIRE_APART void keep_from(Team& team, std::uint32_t bits, std::uint64_t ties) {
        keep(team, ties, [bits](float value) {
            return Standing{magnitude(value) > bits, magnitude(value) == bits};
        });
    }

    // The sums of the exceedances over a location that a read gives, to the last bit, if these are
    // all entries that exceed it.
    __device__ GRADWIRE_APART Moments tail_of(Team& team, float location, std::uint64_t numel) const {
        const List from = list();
        const std::uint64_t chunks = pieces(numel, chunk_entries);
        team.sync();
        // A warp for each chunk, a thread for each lane of sums.
        const std::uint64_t warps = static_cast<std::uint64_t>(team.size) * team_warps;
        for (std::uint64_t chunk = static_cast<std::uint64_t>(team.rank) * team_warps + warp(); chunk < chunks;
             chunk += warps) {
            const std::uint64_t begin = first_from(from.positions, count, chunk * chunk_entries);
            const std::uint64_t end = first_from(from.positions, count, (chunk + 1) * chunk_entries);
            ExceedanceLane sums;
            for (std::uint64_t at = begin; at < end; at += warp_threads) {
                const std::uint64_t i = at + lane();
                const bool there = i < end;
                const std::uint32_t position = there ? from.positions[i] : 0;
                const float value = there ? from.values[i] : 0.0f;
                // Which of these entries go to the lane of sums that this thread is.
                unsigned mine = __ballot_sync(all_lanes, there);
                for (unsigned bit = 1; bit < lanes_of_sums; bit *= 2) {
                    const unsigned set = __ballot_sync(all_lanes, position & bit);
                    mine &= lane() & bit ? set : ~set;
                }
                while (__any_sync(all_lanes, mine != 0)) {
                    const int next = mine != 0 ? __ffs(static_cast<int>(mine)) - 1 : 0;
                    const float given = __shfl_sync(all_lanes, value, next);
                    if (mine != 0) sums.add(given, location);
                    mine &= mine - 1;
                }
            }
            sums.finish(desk->parts[chunk]);
        }
        team.sync();
        return total_of_parts(team, *desk, chunks);
    }
};

}  // namespace gradwire
