// Writes the frames of a bucket: three launches, whatever the number of tensors.
//
// | launch | a block | what it does |
// |---|---|---|
// | prepare | a tile of entries | what the choice of a coding depends on; the last of a frame plans it |
// | | a chunk of a group, a tile | scales of groups that no tile holds; zeros |
// | code | a tile | positions, scales of the groups that it holds, codes, header |
// | seal | a part of the bytes | the checksum; the last block of all ends the bucket |
#pragma once

#include "frame/code.cuh"
#include "frame/prepare.cuh"
#include "frame/seal.cuh"

namespace gradwire {

// Writes the frames of a bucket whose entries are selected, and sets the lengths in its selections. A
// frame that is longer than its limit is not written.
//
// `pieces`, `selections`, `table` and `scratch` are in device memory. For `Entries` and `bucket` see
// `code_tiles`.
template <class Entries>
cudaError_t launch_write(const WritePlan& plan, const Piece* pieces, Selection* selections, void* table, void* scratch,
                         const typename Entries::Bucket& bucket, cudaStream_t stream) {
    const Writing writing = writing_in(plan, pieces, selections, table, scratch);
    const std::uint64_t tiles = plan.tiles.back(), fits = plan.fits.back(), parts = plan.parts.back();
    const Shares shares{plan.measures ? tiles : plan.frames(), fits, plan.sparse ? tiles : 0};
    GRADWIRE_TRY(launch(prepare_frames<Entries>, {shares.all()}, fit_threads, stream, writing, bucket, shares));
    GRADWIRE_TRY(launch(code_tiles<Entries>, {tiles}, write_threads, stream, writing, bucket));
    return launch(seal_parts<Entries>, {parts > 0 ? parts : 1}, checksum::threads, stream, writing, bucket);
}

}  // namespace gradwire
