// Positions whose stream has a one for each: Elias-Fano, Rice, a bitmap, and marks of what was drawn.
//
// A *run* is 1024 bits of the stream. A first pass counts the ones of every run and checks them; the
// directory then tells where to begin reading for any part of the tensor.
#pragma once

#include "device/look_back.cuh"
#include "device/segments.cuh"
#include "frame/read.cuh"

namespace gradwire {

constexpr unsigned run_words = 32, run_bits = 32 * run_words;

// Of each run: entries before it; for Rice also a number that its positions are not below, and those
// before it are.
struct Directory {
    std::uint32_t* ranks;
    std::uint32_t* starts;
};

struct Upper {
    Bytes bytes;
    std::uint64_t from = 0;  // its first bit
    const std::uint32_t* marks = nullptr;
    std::uint32_t others = 0;  // all ones where marks stand for what is not there
    std::uint64_t bits = 0;    // to the end of its section

    __device__ std::uint64_t words() const { return pieces(bits, 32); }

    __device__ std::uint32_t word(std::uint64_t at) const {
        if (marks == nullptr) return bytes.bits(from + 32 * at);
        const std::uint64_t left = bits - 32 * at;
        return (marks[at] ^ others) & (left < 32 ? ~0u >> (32 - left) : ~0u);
    }
};

// The stream of a frame that has one.
__device__ inline Upper upper_of(const Frame& frame, const std::uint32_t* marks) {
    Upper upper;
    if (frame.coding == Coding::seeded) {
        upper.marks = marks;
        upper.others = 2 * static_cast<std::uint64_t>(frame.count) > frame.numel ? ~0u : 0;
        upper.bits = frame.numel;
        return upper;
    }
    const bool has_lows = frame.coding == Coding::elias_fano || frame.coding == Coding::rice;
    upper.bytes = frame.indices;
    upper.from = has_lows ? static_cast<std::uint64_t>(frame.count) * frame.width : 0;
    upper.bits = 8 * frame.indices.len - upper.from;
    return upper;
}

__device__ inline bool has_upper(const Frame& frame) {
    switch (frame.coding) {
        case Coding::elias_fano:
        case Coding::rice:
        case Coding::bitmap: return true;
        case Coding::seeded: return !frame.run;
        default: return false;
    }
}

// Calls `visit(rank, bit)` with each one of a word whose first has this rank.
template <class Visit>
__device__ void each_one(std::uint32_t word, std::uint64_t rank, std::uint64_t first_bit, const Visit& visit) {
    for (; word != 0; word &= word - 1, ++rank) visit(rank, first_bit + __ffs(static_cast<int>(word)) - 1);
}

// Sums of low parts stop here, above every position: what reaches it is refused.
constexpr std::uint64_t too_far = 1ull << 33;

struct UpperFound {
    bool good;          // as far as this thread's run tells
    std::uint64_t end;  // one more than the last one of this thread's run
};

// Reads the runs of a tile, one a thread, checks their positions and fills the directory. All threads of
// the block call. `tile` is that of the chain that begins at ticket `first`.
template <unsigned Threads>
__device__ UpperFound examine_runs(const Frame& frame, const Upper& upper, const Directory& directory, unsigned first,
                                   unsigned tile, unsigned tiles, unsigned long long* counts, unsigned long long* lows) {
    const std::uint64_t run = static_cast<std::uint64_t>(tile) * Threads + threadIdx.x, words = upper.words();
    const std::uint64_t begin = run * run_words < words ? run * run_words : words;
    const std::uint64_t stop = begin + run_words < words ? begin + run_words : words;
    unsigned ones = 0;
    UpperFound found{true, 0};
    for (std::uint64_t at = begin; at < stop; ++at) {
        const std::uint32_t word = upper.word(at);
        ones += static_cast<unsigned>(__popc(word));
        if (word != 0) found.end = 32 * at + 32 - static_cast<unsigned>(__clz(static_cast<int>(word)));
    }
    const Scanned<unsigned> scanned = block_scan<Threads>(ones);
    const std::uint64_t before = sum_before(counts, first, first + tile, scanned.total);
    const std::uint64_t rank = before + scanned.before;
    if (tile + 1 == tiles) found.good = before + scanned.total == frame.count;
    // A stream with too many ones is refused; its ranks need no more room than this.
    directory.ranks[run] = static_cast<std::uint32_t>(rank);

    const unsigned width = frame.width;
    if (frame.coding == Coding::rice) {
        std::uint64_t sum = 0;
        for (unsigned i = 0; i < ones; ++i) sum += frame.indices.field(rank + i, width);
        const Scanned<unsigned long long> low = block_scan<Threads, unsigned long long>(sum);
        const std::uint64_t chain = sum_before(lows, first, first + tile, low.total < too_far ? low.total : too_far);
        std::uint64_t total = chain + low.before, next = rank;
        const std::uint64_t zeros = run * run_bits - rank, start = (zeros << width) + total + rank;
        directory.starts[run] = static_cast<std::uint32_t>(start < 0xffffffff ? start : 0xffffffff);
        for (std::uint64_t at = begin; at < stop; ++at)
            each_one(upper.word(at), next, 32 * at, [&](std::uint64_t at_rank, std::uint64_t bit) {
                total += frame.indices.field(at_rank, width);
                found.good &= ((bit - at_rank) << width) + total + at_rank < frame.numel;
                ++next;
            });
    } else if (frame.coding == Coding::elias_fano) {
        std::uint64_t next = rank;
        std::uint32_t earlier = begin > 0 ? upper.word(begin - 1) : 0;
        for (std::uint64_t at = begin; at < stop; ++at) {
            const std::uint32_t word = upper.word(at), follows = __funnelshift_l(earlier, word, 1);
            each_one(word, next, 32 * at, [&](std::uint64_t at_rank, std::uint64_t bit) {
                const std::uint64_t low = frame.indices.field(at_rank, width);
                found.good &= ((bit - at_rank) << width | low) < frame.numel;
                // Without a zero between them, two have the same upper part: then the lower must ascend.
                if (follows >> (bit % 32) & 1) found.good &= frame.indices.field(at_rank - 1, width) < low;
                ++next;
            });
            earlier = word;
        }
    }
    return found;
}

// Whether a stream may end after its last one, at `end`.
__device__ inline bool may_end(const Frame& frame, std::uint64_t end) {
    const std::uint64_t count = frame.count, width = frame.width, numel = frame.numel;
    switch (frame.coding) {
        case Coding::elias_fano: return count == 0 || end <= count + ((numel - 1) >> width);
        case Coding::rice: return pieces(count * width + end, 8) == frame.indices.len;
        case Coding::bitmap: return end <= numel;
        default: return true;
    }
}

// The run to begin with for positions from `begin` on: none before it has one.
__device__ inline std::uint64_t first_run(const Frame& frame, const Upper& upper, const Directory& directory,
                                          std::uint64_t begin) {
    if (frame.coding == Coding::bitmap || frame.coding == Coding::seeded) return begin / run_bits;
    const auto is_early = [&](std::uint64_t run) {
        if (frame.coding == Coding::rice) return directory.starts[run] <= begin;
        return run * run_bits - directory.ranks[run] < begin >> frame.width;
    };
    return partition_point(std::uint64_t{1}, pieces(upper.words(), run_words), is_early) - 1;
}

// Calls `visit(rank, position)` with the entries at positions from `begin` to `end` of a frame that was
// found good. All threads of the block call; each visits some.
template <unsigned Threads, class Visit>
__device__ void visit_upper(const Frame& frame, const Upper& upper, const Directory& directory, std::uint64_t begin,
                            std::uint64_t end, const Visit& visit) {
    const std::uint64_t run = first_run(frame, upper, directory, begin), words = upper.words();
    const unsigned width = frame.width;
    const bool rice = frame.coding == Coding::rice, fields = rice || frame.coding == Coding::elias_fano;
    std::uint64_t rank = directory.ranks[run];
    std::uint64_t total = rice ? directory.starts[run] - ((run * run_bits - rank) << width) - rank : 0;
    for (std::uint64_t at = run * run_words; at < words; at += Threads) {
        // No position from here on is below this.
        const std::uint64_t zeros = 32 * at - rank;
        if ((fields ? (zeros << width) + (rice ? total + rank : 0) : 32 * at) >= end) break;
        const std::uint32_t word = at + threadIdx.x < words ? upper.word(at + threadIdx.x) : 0;
        const Scanned<unsigned> ones = block_scan<Threads>(static_cast<unsigned>(__popc(word)));
        const std::uint64_t own = rank + ones.before;
        std::uint64_t sum = 0;
        if (rice) {
            const auto count = static_cast<unsigned>(__popc(word));
            for (unsigned i = 0; i < count; ++i) sum += frame.indices.field(own + i, width);
            const Scanned<unsigned long long> low = block_scan<Threads, unsigned long long>(sum);
            sum = total + low.before;
            total += low.total;
        }
        each_one(word, own, 32 * (at + threadIdx.x), [&](std::uint64_t at_rank, std::uint64_t bit) {
            std::uint64_t position = bit;
            if (fields) {
                const std::uint64_t low = frame.indices.field(at_rank, width);
                sum += low;
                position = rice ? ((bit - at_rank) << width) + sum + at_rank : (bit - at_rank) << width | low;
            }
            if (begin <= position && position < end)
                visit(static_cast<std::uint32_t>(at_rank), static_cast<std::uint32_t>(position));
        });
        rank += ones.total;
    }
}

}  // namespace gradwire
