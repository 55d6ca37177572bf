// The options that follow from others and from the length of a tensor.
#pragma once

#include "bucket/piece.h"

namespace gradwire {

// Fills in how many stages a new controller has. What the sparsifier's options say of them, if it is a
// number, is in `start_stages` before.
void complete(Piece& piece);

}  // namespace gradwire
