// A frame that comes from outside: what its header says, once it is known to be possible.
//
// One thread reads a header. Nothing is believed before it is checked against the length of the
// bytes: whatever they hold, no section reaches beyond them, and no rank or position that follows
// leaves its section or the tensor.
#pragma once

#include "frame/header.cuh"
#include "bucket/piece.h"
#include "pack/bits.cuh"
#include "quantize/section.cuh"

namespace gradwire {

// A frame as its header and the parameters of its sections say. Of one that is not good so far, no
// more than the verdicts is set.
struct Frame {
    Bytes bytes;
    Verdict before;       // of what is checked before the checksum
    Verdict after;        // of what is checked behind it
    std::uint32_t stored; // checksum
    std::uint32_t numel, count;
    Coding coding;
    std::uint8_t width;   // of low parts, or of fields in a chunk
    bool run;             // of drawn positions: a run, not a subset
    std::uint32_t size, k; // of chunks; of a run, `size` is its start
    std::uint64_t key;     // of drawn positions
    Bytes indices;
    Section values;

    __device__ bool is_readable() const { return before == Verdict::good && after == Verdict::good; }
    __device__ bool is_dense() const { return coding == Coding::none; }
};

namespace reading {

constexpr std::uint8_t outside_id = 255, affine_id = 12;  // of which the host reads the values

__device__ inline std::uint64_t number(const Bytes& bytes, std::uint64_t at) {
    return bytes.word(at) | static_cast<std::uint64_t>(bytes.word(at + 4)) << 32;
}

// Whether values of another package begin with a name.
__device__ inline bool has_name(const Bytes& section) {
    constexpr unsigned longest = 63;
    const std::uint32_t len = section.byte(0);
    if (len == 0 || len > longest || 1 + len > section.len) return false;
    for (unsigned i = 1; i <= len; ++i) {
        const std::uint32_t c = section.byte(i);
        const bool letter = c >= 'a' && c <= 'z', other = (c >= '0' && c <= '9') || c == '_';
        if (!letter && (i == 1 || !other)) return false;
    }
    return true;
}

// What is checked before the checksum, in the order that the format says.
__device__ inline Verdict check_length(const Bytes& bytes) {
    constexpr std::uint32_t magic = 0x465747, version = 1;
    for (unsigned i = 0; i < 3 && i < bytes.len; ++i)
        if (bytes.byte(i) != (magic >> (8 * i) & 0xff)) return Verdict::corrupt;
    if (bytes.len > 3 && bytes.byte(3) != version) return Verdict::unsupported;
    if (bytes.len < header_len) return Verdict::truncated;
    if (bytes.byte(4) != 0) return Verdict::unsupported;
    const std::uint64_t index_len = number(bytes, 32), value_len = number(bytes, 40);
    const std::uint64_t sections = index_len + value_len, need = sections + header_len;
    if (sections < index_len || need < sections) return Verdict::corrupt;
    return bytes.len < need ? Verdict::truncated : bytes.len > need ? Verdict::corrupt : Verdict::good;
}

// The coding of positions, and the parameters that its section begins with.
__device__ inline Verdict read_coding(Frame& frame, std::uint32_t id, std::uint32_t parameter) {
    const Bytes& section = frame.indices;
    const bool has_parameter = id == static_cast<std::uint32_t>(Coding::elias_fano) ||
                               id == static_cast<std::uint32_t>(Coding::rice);
    if (id > static_cast<std::uint32_t>(Coding::seeded)) return Verdict::unsupported;
    if (id == static_cast<std::uint32_t>(Coding::chunk_local)) {
        frame.size = section.word(0);
        frame.k = section.word(4);
        const bool possible = section.len >= chunk_prologue && frame.size <= 1u << 31 && frame.k >= 1 && frame.k < frame.size;
        if (!possible) return Verdict::corrupt;
        frame.width = static_cast<std::uint8_t>(chunk_width(frame.size));
    } else if (id == static_cast<std::uint32_t>(Coding::seeded)) {
        if (section.len != seeded_len || section.byte(0) > 1) return Verdict::corrupt;
        frame.run = section.byte(0) == 1;
        frame.key = number(section, 1);
    }
    if (!has_parameter && parameter != 0) return Verdict::corrupt;
    if (has_parameter) frame.width = static_cast<std::uint8_t>(parameter);
    frame.coding = static_cast<Coding>(id);
    return Verdict::good;
}

// Whether the index section can be `count` positions out of `numel`.
__device__ inline bool has_index_len(const Frame& frame, std::uint64_t numel, std::uint64_t count) {
    const std::uint64_t len = frame.indices.len, width = frame.width;
    if (count > numel) return false;
    if (frame.coding == Coding::none && count != numel) return false;
    if (frame.coding == Coding::chunk_local && count != chunk_count({PatternKind::chunks, frame.size, frame.k}, numel))
        return false;
    const bool has_low_bits = frame.coding == Coding::elias_fano || frame.coding == Coding::rice;
    if (has_low_bits && width > most_low_bits) return false;
    if (count == 0) return len == 0;
    const std::uint64_t least = count * (width + 1);
    switch (frame.coding) {
        case Coding::none: return len == 0;
        case Coding::elias_fano: return len == pieces(least + ((numel - 1) >> width), 8);
        case Coding::rice: return len >= pieces(least, 8) && len <= pieces(least + ((numel - count) >> width), 8);
        case Coding::bitmap: return len == pieces(numel, 8);
        case Coding::chunk_local: return len == chunk_prologue + pieces(count * width, 8);
        case Coding::seeded: return len == seeded_len;
    }
    return false;
}

// What is checked behind the checksum. `room` is how many elements the tensor has.
__device__ inline Verdict read_rest(Frame& frame, std::uint64_t room) {
    const Bytes& bytes = frame.bytes;
    constexpr std::uint32_t dtypes = 4;
    const std::uint32_t quantizer = bytes.byte(7);
    const bool outside = quantizer == outside_id;
    if (bytes.byte(5) >= dtypes || (quantizer > affine_id && !outside))
        return Verdict::unsupported;
    if (quantizer == affine_id) return Verdict::outside;
    const Verdict coding = read_coding(frame, bytes.byte(8), bytes.byte(9));
    if (coding != Verdict::good) return coding;
    const std::uint64_t numel = number(bytes, 16), count = number(bytes, 24);
    constexpr std::uint64_t most = 0xffffffff;
    if (numel > (room < most ? room : most)) return Verdict::too_large;
    const int exponent = static_cast<std::int16_t>(bytes.word(10) & 0xffff);
    if (!is_exponent(outside ? Quantizer::float32 : static_cast<Quantizer>(quantizer), exponent)) return Verdict::corrupt;
    if (!has_index_len(frame, numel, count)) return Verdict::corrupt;
    frame.numel = static_cast<std::uint32_t>(numel);
    frame.count = static_cast<std::uint32_t>(count);
    const Bytes section = bytes.from(header_len + frame.indices.len);
    if (outside) {
        const bool named = has_name(section) && section.len * 8 >= count;
        if (count == 0 ? section.len != 0 : !named) return Verdict::corrupt;
    } else if (!read_section(frame.values, static_cast<Quantizer>(quantizer), exponent, section, frame.numel, frame.count)) {
        return Verdict::corrupt;
    }
    if (numel != room) return Verdict::numel;
    return outside && count > 0 ? Verdict::outside : Verdict::good;
}

}  // namespace reading

// Reads a header; `room` is how many elements the tensor has that it is for.
__device__ inline Frame read_frame(const std::uint8_t* at, std::uint64_t len, std::uint64_t room) {
    Frame frame{};
    frame.bytes = {at, len};
    frame.before = reading::check_length(frame.bytes);
    if (frame.before != Verdict::good) return frame;
    frame.stored = frame.bytes.word(12);
    frame.indices = frame.bytes.from(header_len).first(reading::number(frame.bytes, 32));
    frame.after = reading::read_rest(frame, room);
    return frame;
}

}  // namespace gradwire
