// How the frames of a bucket are written: the shape of the work, which depends on the sizes of its
// tensors alone, and what the launches share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "bucket/piece.h"

namespace gradwire {

// The work on one frame.
struct FrameShape {
    std::uint32_t tile;    // entries of a tile
    std::uint32_t tiles;   // of the most entries that there may be, at least one
    std::uint32_t chunks;  // of what is summed up before tiles, at most; 0 where nothing is
    bool held;             // whether tiles hold all groups
    std::uint64_t scales;  // where its scales begin, of groups that no tile holds
};

// How many blocks each launch has, and the memory that they work in.
struct WritePlan {
    std::vector<FrameShape> shapes;
    // Where the blocks of each frame begin: of tiles, of fits and of checksums; one number more than frames.
    std::vector<std::uint64_t> tiles, fits, parts;
    std::vector<std::uint64_t> longest;  // bytes that each frame can have at most, without its limit
    std::uint64_t scales = 0;
    bool measures = false, sparse = false;

    unsigned frames() const { return static_cast<unsigned>(shapes.size()); }
    // Bytes of the table that lies on the device as long as the plan is used, and what it holds before the
    // first call: each leaves it like that.
    std::uint64_t table_bytes() const;
    void fill_table(void* table) const;
    // Bytes to work in; nothing in them has to last from one call to the next.
    std::uint64_t scratch_bytes() const;
};

// `most_entries` has for each piece the longest list that it may have.
WritePlan plan_write(const Piece* pieces, const std::uint64_t* most_entries, unsigned count);

// Writes the frames of a bucket whose entries are selected, sets the lengths in its selections, has states go on, and
// tells in a table what came of each piece: see `OutcomeColumn`. A frame that is longer than its limit is not
// written. All is in memory of the device.
cudaError_t launch_write(const WritePlan& plan, const Piece* pieces, Selection* selections, void* table, void* scratch,
                         std::int64_t* outcomes, cudaStream_t stream);

}  // namespace gradwire
