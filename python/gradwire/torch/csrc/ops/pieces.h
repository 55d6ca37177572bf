// The parameters of a bucket as structs, and where in its state the buffers of each are.
//
// A state is one tensor of bytes: the struct `State` in the first `state_room` of them, then the
// buffers of its memory: see `point`.
#pragma once

#include <cstring>
#include <vector>

#include "ops/torch.h"

namespace gradwire::ops {

constexpr std::uint64_t state_room = 1024, buffer_align = 256;
static_assert(sizeof(State) <= state_room);

constexpr std::uint64_t aligned(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

// The structs in bytes of the host; their pointers mean nothing.
inline std::vector<Piece> pieces_in(const Tensor& bytes) {
    STD_TORCH_CHECK(bytes.is_cpu() && bytes.is_contiguous() && bytes.scalar_type() == ScalarType::Byte,
                    "pieces must be bytes of the host");
    const auto size = static_cast<std::size_t>(bytes.numel());
    STD_TORCH_CHECK(size % sizeof(Piece) == 0, "pieces must have ", sizeof(Piece), " bytes each: this library is of another version");
    std::vector<Piece> pieces(size / sizeof(Piece));
    if (size > 0) std::memcpy(pieces.data(), bytes.const_data_ptr(), size);
    return pieces;
}

// Points a piece to its state at `base`: to the residual and then to the moment, as far as the memory has
// them, each in two buffers. How many bytes that is.
inline std::uint64_t point(Piece& piece, std::uintptr_t base) {
    const Memory& memory = piece.memory;
    const bool remembers = memory.kind != MemoryKind::none;
    const bool has_moment = memory.kind == MemoryKind::momentum || memory.kind == MemoryKind::adam;
    std::uint64_t at = state_room;
    const auto place = [&](std::uint64_t bytes, bool there) {
        const std::uintptr_t address = there ? base + at : 0;
        if (there) at += aligned(bytes, buffer_align);
        return address;
    };
    piece.state = reinterpret_cast<State*>(base);
    for (unsigned side = 0; side < 2; ++side)
        piece.residual[side] = reinterpret_cast<void*>(place((memory.narrow ? 2 : 4) * piece.numel, remembers));
    for (unsigned side = 0; side < 2; ++side)
        piece.moment[side] = reinterpret_cast<float*>(place(4 * piece.numel, has_moment));
    return at;
}

inline void attach(Piece& piece, const Tensor& state, int device) {
    check_bytes(state, "states", device);
    const std::uint64_t expected = point(piece, reinterpret_cast<std::uintptr_t>(state.mutable_data_ptr()));
    STD_TORCH_CHECK(static_cast<std::uint64_t>(state.numel()) == expected, "a state must have ", expected, " bytes, got ",
                    state.numel());
}

template <class T>
Tensor uploaded(const std::vector<T>& items, const Tensor& like) {
    const Tensor host = pinned_bytes(items.size() * sizeof(T));
    if (!items.empty()) std::memcpy(host.mutable_data_ptr(), items.data(), items.size() * sizeof(T));
    return torch::stable::to(host, like.device(), true);
}

}  // namespace gradwire::ops
