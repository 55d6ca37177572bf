#include "bucket/complete.h"

#include "fit/controller.cuh"
#include "sparsify/amount.cuh"

namespace gradwire {

void complete(Piece& piece) {
    Sparsify& options = piece.sparsify;
    if (options.kind != Sparsifier::sid) return;
    const double numel = static_cast<double>(piece.numel > 0 ? piece.numel : 1);
    const double delta = static_cast<double>(target_of(options, piece.numel)) / numel;
    set_stages(options, delta);
}

}  // namespace gradwire
