// Writes the positions of a tile of a frame's entries.
#pragma once

#include "pack/fields.cuh"
#include "pack/length.cuh"

namespace gradwire {

// Entries that a thread has in a row, and a tile at most.
constexpr unsigned write_threads = 256, entries_each = 16, most_tile = write_threads * entries_each;
constexpr unsigned most_tile_scales = 2048;  // of the groups of a tile

// The section that positions are written to, with zeros in it.
struct IndexSection {
    std::uint8_t* frame;  // aligned
    std::uint64_t at;     // where the section begins there, in bytes: a multiple of four
    Coded coded;
    Pattern pattern;
    std::uint64_t key;    // of drawn positions
    std::uint64_t numel, count;
    const Edges& edges;
};

// What a section begins with, and all of it where nothing is said of single positions. By one thread.
__device__ inline void write_index_prologue(const IndexSection& section) {
    auto* const words = reinterpret_cast<std::uint32_t*>(section.frame + section.at);
    if (section.coded.coding == Coding::chunk_local) {
        words[0] = section.pattern.size;
        words[1] = section.pattern.k;
    } else if (section.coded.coding == Coding::seeded) {
        const auto low = static_cast<std::uint32_t>(section.key), high = static_cast<std::uint32_t>(section.key >> 32);
        words[0] = (section.pattern.kind == PatternKind::run) | low << 8;
        words[1] = low >> 24 | high << 8;
        // The values share the last word.
        or_bits(section.frame + section.at + 8, high >> 24, section.edges);
    }
}

// Writes positions `begin` to `begin + n`; `begin` is a multiple of eight. Of Rice, `zeros_before` are
// those in the upper vector before it. All threads of a block call; `fields` is theirs to use.
__device__ inline void write_positions(const IndexSection& section, const std::uint32_t* positions,
                                       std::uint64_t begin, unsigned n, std::uint64_t zeros_before,
                                       Fields<most_tile>& fields) {
    const Coding coding = section.coded.coding;
    if (coding == Coding::none || coding == Coding::seeded) return;
    const unsigned from = min(threadIdx.x * entries_each, n), to = min(from + entries_each, n);
    const std::uint64_t stream = section.at * 8;
    if (coding == Coding::bitmap) {
        Ones ones{section.frame, section.edges};
        for (unsigned i = from; i < to; ++i) ones.set(stream + positions[begin + i]);
        return ones.flush();
    }
    unsigned width = section.coded.low_bits;
    if (coding == Coding::chunk_local) {
        width = chunk_width(section.pattern.size);
        const std::uint32_t k = section.pattern.k, size = section.pattern.size;
        for (unsigned i = threadIdx.x; i < n; i += write_threads)
            fields[i] = positions[begin + i] - static_cast<std::uint32_t>((begin + i) / k) * size;
        __syncthreads();
        write_fields<write_threads>(section.frame, stream + chunk_prologue * 8 + begin * width, n, width,
                                    section.edges, [&](unsigned i) { return fields[i]; });
        __syncthreads();
        return;
    }
    const bool gaps = coding == Coding::rice;
    const std::uint32_t mask = (1u << width) - 1;
    for (unsigned i = threadIdx.x; i < n; i += write_threads)
        fields[i] = gaps ? gap_at(positions, begin + i) : positions[begin + i];
    __syncthreads();
    write_fields<write_threads>(section.frame, stream + begin * width, n, width, section.edges,
                                [&](unsigned i) { return fields[i] & mask; });
    // The upper vector has a one for each entry, after as many ones as entries and all zeros before.
    std::uint64_t zeros = 0;
    if (gaps) {
        std::uint32_t own = 0;
        for (unsigned i = from; i < to; ++i) own += fields[i] >> width;
        zeros = zeros_before + block_scan<write_threads>(own).before;
    }
    const std::uint64_t upper = stream + section.count * width;
    Ones ones{section.frame, section.edges};
    for (unsigned i = from; i < to; ++i) {
        zeros = gaps ? zeros + (fields[i] >> width) : fields[i] >> width;
        ones.set(upper + zeros + begin + i);
    }
    ones.flush();
    __syncthreads();
}

}  // namespace gradwire
