// Writes the frames of a bucket: six launches at most, whatever the number of tensors.
//
// | launch | a block | what it does |
// |---|---|---|
// | measure | a tile of entries | what the choice of a coding depends on |
// | plan | a frame | chooses the coding; length of the frame |
// | prepare | a chunk of a group, a tile | scales of groups that no tile holds; zeros |
// | place | a chunk of a group | grids of affine, of groups that no tile holds |
// | code | a tile | positions, scales of the groups that it holds, codes, header |
// | seal | a part of the bytes | the checksum |
//
// Launches that no frame of the bucket needs are left out.
#pragma once

#include "frame/code.cuh"
#include "frame/place.cuh"

namespace gradwire {

// Writes the frames of a bucket whose entries are selected, and sets the lengths in its selections. A
// frame that is longer than its limit is not written, and its selection says so.
//
// `pieces`, `selections`, `table` and `scratch` are in device memory. For `Entries` and `bucket` see
// `code_tiles`.
template <class Entries>
cudaError_t launch_write(const WritePlan& plan, const Piece* pieces, Selection* selections, const void* table,
                         void* scratch, const typename Entries::Bucket& bucket, cudaStream_t stream) {
    const Writing writing = writing_in(plan, pieces, selections, table, scratch);
    GRADWIRE_TRY(launch_plan(plan, writing, stream));
    const std::uint64_t fits = plan.fits.back(), clears = plan.sparse ? plan.tiles.back() : 0;
    GRADWIRE_TRY(launch(prepare_frames<Entries>, {fits + clears}, fit_threads, stream, writing, bucket, fits));
    if (plan.places) GRADWIRE_TRY(launch(place_grids<Entries>, {fits}, fit_threads, stream, writing, bucket));
    GRADWIRE_TRY(launch(code_tiles<Entries>, {plan.tiles.back()}, write_threads, stream, writing, bucket));
    return launch_seal(plan, writing, stream);
}

}  // namespace gradwire
