// What the launches that read frames share.
#pragma once

#include "bucket/decode.h"
#include "device/segments.cuh"
#include "frame/checksum.cuh"
#include "frame/entries.cuh"

namespace gradwire {

constexpr unsigned frame_threads = 64, examine_threads = checksum::threads;
constexpr std::uint64_t marks_of_tile = examine_threads * run_words;
// Of a frame, one block: its runs, one a thread, hold all bits of so many bytes.
constexpr std::uint64_t tile_bytes = 4 * marks_of_tile;

constexpr std::uint64_t tile_elements = 4096;  // of a tensor, one block

// Draws by the whole grid; what is still missing is left to one block a frame.
constexpr unsigned wide_passes = 2;

struct Examined {
    std::uint32_t sum;     // of the parts of the checksum
    std::uint32_t faults;
    unsigned long long end; // one more than the last one of an upper vector
    std::uint32_t drawn[wide_passes];
};

struct Work {
    Examined* states;
    unsigned* ticket;
    unsigned long long *counts, *lows;
    std::uint32_t* marks;
    Frame* frames;
    Directory directory;

    // The part of the directory, and of the marks, of a frame.
    __device__ Directory directory_of(const Decode& call, std::uint64_t frame) const {
        const std::uint64_t at = static_cast<std::uint64_t>(call.frame_tiles[frame]) * examine_threads;
        return {directory.ranks + at, directory.starts + at};
    }
    __device__ std::uint32_t* marks_of(const Decode& call, std::uint64_t frame) const {
        return marks + call.frame_tiles[frame] * marks_of_tile;
    }
};

// The tensor that a block has a part of, and that part.
struct TargetTile {
    unsigned tensor;
    std::uint64_t begin, end;

    __device__ explicit TargetTile(const Decode& call)
        : tensor(segment_of(call.target_tiles, call.tensors, static_cast<std::uint32_t>(blockIdx.x))),
          begin((blockIdx.x - call.target_tiles[tensor]) * tile_elements),
          end(min(begin + tile_elements, call.targets[tensor].numel)) {}
};

__device__ inline std::uint32_t frames_of(const Decode& call) { return call.tensors * call.ranks; }

// Reads and judges all frames: all but what becomes of their entries. Fills in `work`.
cudaError_t read_frames(const Decode& call, cudaStream_t stream, Work& work);

}  // namespace gradwire
