// The value section of a frame that comes from outside: its parameters, scales and codes.
#pragma once

#include "pack/bits.cuh"
#include "quantize/each.cuh"
#include "quantize/groups.cuh"

namespace gradwire {

struct Section {
    Coder coder;
    Groups groups;
    unsigned bits;  // of a code
    Bytes scales, codes;
};

// Whether the header may have this exponent.
__device__ inline bool is_exponent(Quantizer kind, int exponent) {
    return kind == Quantizer::float16_scaled ? exponent >= -112 && exponent <= 164 : exponent == 0;
}

namespace reading {

// The parameters that the section begins with; how many bytes they are, or -1 where they cannot be.
__device__ inline int read_prologue(Section& out, const Bytes& section, std::uint32_t numel) {
    Quantize& quantize = out.coder.quantize;
    switch (quantize.kind) {
        case Quantizer::float8_e5m2:
        case Quantizer::float8_e4m3:
        case Quantizer::two_means:
        case Quantizer::exponent: {
            const std::uint32_t size = section.word(0);
            quantize.block = size;
            out.groups = groups_of(quantize, numel);
            if (size == 0) return section.len >= 4 && out.groups.by == Grouping::none ? 4 : -1;
            out.groups.size = size;
            return section.len >= 4 ? 4 : -1;
        }
        case Quantizer::uniform:
        case Quantizer::codebook: {
            const std::uint32_t least = quantize.kind == Quantizer::uniform ? 2 : 1;
            const std::uint32_t most = quantize.kind == Quantizer::codebook ? 4 : 8;
            const std::uint32_t bits = section.byte(0), size = section.word(4);
            const bool possible = bits >= least && bits <= most;
            if (section.len < 8 || !possible || section.word(0) != bits || size == 0) return -1;
            quantize.bits = static_cast<std::uint8_t>(bits);
            quantize.block = size;
            out.groups = groups_of(quantize, numel);
            out.groups.size = size;
            return 8;
        }
        default:
            out.groups = groups_of(quantize, numel);
            return 0;
    }
}

}  // namespace reading

// Reads the parameters; whether they can be, and the section is as long as they say.
__device__ inline bool read_section(Section& out, Quantizer kind, int exponent, const Bytes& section, std::uint32_t numel,
                                    std::uint32_t count) {
    out = {};
    out.coder.quantize.kind = kind;
    out.coder.exponent = exponent;
    if (count == 0) return section.len == 0;
    const int prologue = reading::read_prologue(out, section, numel);
    if (prologue < 0) return false;
    out.bits = code_bits(out.coder.quantize);
    const std::uint64_t scales = 4 * out.groups.each * number_of(out.groups, numel, count);
    const std::uint64_t codes = pieces(static_cast<std::uint64_t>(count) * out.bits, 8);
    if (section.len != static_cast<std::uint64_t>(prologue) + scales + codes) return false;
    out.scales = section.from(static_cast<std::uint64_t>(prologue)).first(scales);
    out.codes = section.from(static_cast<std::uint64_t>(prologue) + scales);
    return true;
}

// Whether a scale may be in a frame.
__device__ inline bool takes_scale(Quantizer kind, std::uint32_t bits) {
    const std::uint32_t field = bits >> 23;
    const bool finite = (field & 0xff) != 0xff, magnitude = finite && bits >> 31 == 0;
    // Zero, or a power of two: a normal one, or a subnormal one, which is a single bit.
    const bool normal = magnitude && field << 23 == bits && field > 0;
    const bool power = bits == 0 || normal || (field == 0 && (bits & (bits - 1)) == 0);
    switch (kind) {
        case Quantizer::float8_e5m2: return power && bits <= (127u + 112) << 23;
        case Quantizer::float8_e4m3: return power && bits <= (127u + 119) << 23;
        case Quantizer::exponent: return bits == 0 || normal;
        case Quantizer::two_means: return finite;
        default: return magnitude;
    }
}

// Whether a code may be in a frame.
__device__ inline bool takes_code(Quantizer kind, std::uint32_t code) {
    switch (kind) {
        case Quantizer::float32: return (code & 0x7f800000) != 0x7f800000;
        case Quantizer::bfloat16: return (code & 0x7f80) != 0x7f80;
        case Quantizer::float16:
        case Quantizer::float16_scaled: return (code & 0x7c00) != 0x7c00;
        case Quantizer::float8_e5m2: return (code & 0x7f) <= E5M2::largest;
        case Quantizer::float8_e4m3: return (code & 0x7f) <= E4M3::largest;
        case Quantizer::ternary: return code != 3;
        default: return true;
    }
}

// Checks a part of the scales and codes: those whose number is `first` modulo `step`.
__device__ inline bool are_valid(const Section& section, std::uint32_t count, std::uint64_t first, std::uint64_t step) {
    const Quantizer kind = section.coder.quantize.kind;
    bool good = true;
    for (std::uint64_t i = first; i < section.scales.len / 4; i += step)
        good &= takes_scale(kind, section.scales.word(4 * i));
    for (std::uint64_t i = first; i < count; i += step) good &= takes_code(kind, section.codes.field(i, section.bits));
    // No bit is one after the last code.
    const std::uint64_t used = static_cast<std::uint64_t>(count) * section.bits;
    if (first == 0 && used % 8 != 0) good &= section.codes.byte(section.codes.len - 1) >> (used % 8) == 0;
    return good;
}

// The value of the entry of this rank, at this position.
__device__ inline float value_of(const Section& section, std::uint32_t rank, std::uint32_t position) {
    constexpr unsigned most = 8;
    float scales[most] = {};
    const Groups& groups = section.groups;
    if (groups.by != Grouping::none) {
        const std::uint64_t group = groups.by == Grouping::ranks       ? rank / groups.size
                                    : groups.by == Grouping::positions ? position / groups.size
                                                                       : 0;
        for (unsigned i = 0; i < most; ++i)
            if (i < groups.each) scales[i] = __uint_as_float(section.scales.word(4 * (group * groups.each + i)));
    }
    const std::uint32_t code = section.codes.field(rank, section.bits);
    float value = 0.0f;
    // Every thread takes the same branch: one copy of the loops around this serves all quantizers.
    with_quantizer(section.coder.quantize.kind, [&](auto kind) { value = kind.value(section.coder, scales, code); });
    return value;
}

}  // namespace gradwire
