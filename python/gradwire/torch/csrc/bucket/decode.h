// Decodes all frames of all ranks of a bucket, in a number of launches that does not depend on how many
// frames there are. Plain C++.
//
// Nothing is written to the tensors unless every frame of the call is valid.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "bucket/piece.h"

namespace gradwire {

struct FrameAt {
    const std::uint8_t* bytes;
    std::uint64_t len;  // `no_frame` for none, as if it had no entries
};

constexpr std::uint64_t no_frame = ~std::uint64_t{0};

struct Target {
    void* out;
    std::uint64_t numel;
    Dtype dtype;
};

enum class Into : std::uint32_t {
    place,    // values at their positions, zeros elsewhere
    add,      // out += value * scale, to float32 alone, frame after frame
    ranks,    // the mean over the ranks, times scale
    senders,  // at each position the mean over the ranks that have an entry there, times scale
};

// Of each tensor the frames of ranks 0, 1, …, then those of the next tensor. Pointers are to device
// memory.
struct Decode {
    const FrameAt* frames = nullptr;
    const Target* targets = nullptr;
    std::uint32_t tensors = 0, ranks = 0;
    // Tiles before each frame and each tensor, one more than there are, and all of them: see plan_decode.
    const std::uint32_t* frame_tiles = nullptr;
    const std::uint32_t* target_tiles = nullptr;
    std::uint32_t all_frame_tiles = 0, all_target_tiles = 0;
    Into into = Into::place;
    double scale = 1.0;
    std::uint32_t over = 0;          // ranks that the means are over, if frames are sums; 0: those of the frames
    bool seeded = false;             // there is room for drawn positions
    Verdict* verdicts = nullptr;     // of each frame
    std::uint32_t* failed = nullptr; // 0, or how many frames there are less the first that is not good
    void* workspace = nullptr;
};

// Fills the tables of tiles, in host memory, from what the host knows; returns the bytes of the workspace.
//
// A frame takes 64 bytes of workspace in 1000 of its own, at least 2.5 KiB. With `seeded` it takes twice
// its own bytes more, at least an eighth of a byte an element.
std::uint64_t plan_decode(const std::uint64_t* frame_lens, const std::uint64_t* numels, std::uint32_t tensors,
                          std::uint32_t ranks, bool seeded, std::uint32_t* frame_tiles, std::uint32_t* target_tiles);

cudaError_t decode(const Decode& call, cudaStream_t stream);

struct Absorb {
    const Piece* pieces = nullptr;         // each with its state, after an encode
    const std::uint64_t* starts = nullptr; // of each the first of the entries that were added up
    // Of each how many entries would not be finite, and the first of them among those that were added up.
    unsigned long long* outcomes = nullptr;
};

// Adds to residuals what is left of sums, float32 at `out` of the targets, of which there is one frame each.
cudaError_t absorb(const Decode& call, const Absorb& absorb, cudaStream_t stream);

}  // namespace gradwire
