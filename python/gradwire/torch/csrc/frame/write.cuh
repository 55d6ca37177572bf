// Writes the frames of a bucket: seven launches at most, whatever the number of tensors.
//
// | launch | a block | what it does |
// |---|---|---|
// | measure | a tile of entries | what the choice of a coding depends on |
// | plan | a frame | chooses the coding; length of the frame |
// | clear | a tile | zeros, where bits of a word come from several threads |
// | fit | a chunk of a group | sums over groups of scales that no tile holds |
// | scales | a frame | the scales of those groups |
// | code | a tile | positions, scales of the groups that it holds, codes, header |
// | seal | a part of the bytes | the checksum |
//
// Launches that no frame of the bucket needs are left out.
#pragma once

#include "frame/code.cuh"
#include "frame/fit.cuh"

namespace gradwire {

// Writes the frames of a bucket whose entries are selected, and sets the lengths in its selections. A
// frame that is longer than its limit is not written, and its selection says so.
//
// `pieces`, `selections`, `table` and `scratch` are in device memory.
template <class Policy>
cudaError_t launch_write(const WritePlan& plan, const Piece* pieces, Selection* selections, const void* table,
                         void* scratch, cudaStream_t stream) {
    const Writing writing = writing_in(plan, pieces, selections, table, scratch);
    GRADWIRE_TRY(launch_plan(plan, writing, stream));
    if (plan.fits.back() > 0) {
        GRADWIRE_TRY(launch(fit_chunks<Policy>, {plan.fits.back()}, fit_threads, stream, writing));
        GRADWIRE_TRY(launch_scales(plan, writing, stream));
    }
    GRADWIRE_TRY(launch(code_tiles<Policy>, {plan.tiles.back()}, write_threads, stream, writing));
    return launch_seal(plan, writing, stream);
}

}  // namespace gradwire
