// The registry of quantizers: calls a function object with the one of an id.
#pragma once

#include "quantize/codebook.cuh"
#include "quantize/exponent.cuh"
#include "quantize/float8.cuh"
#include "quantize/floats.cuh"
#include "quantize/grid.cuh"
#include "quantize/signs.cuh"

namespace gradwire {

// `visit(Quantizer{})` with the struct of `kind`, once for a whole block of threads.
template <class Visit>
__device__ void with_quantizer(Quantizer kind, Visit&& visit) {
    switch (kind) {
        case Quantizer::float32: return visit(Float32{});
        case Quantizer::bfloat16: return visit(BFloat16{});
        case Quantizer::float16:
        case Quantizer::float16_scaled: return visit(Float16{});
        case Quantizer::float8_e5m2: return visit(Float8<E5M2>{});
        case Quantizer::float8_e4m3: return visit(Float8<E4M3>{});
        case Quantizer::uniform: return visit(Uniform{});
        case Quantizer::sign_scale: return visit(SignScale{});
        case Quantizer::two_means: return visit(TwoMeans{});
        case Quantizer::ternary: return visit(Ternary{});
        case Quantizer::codebook: return visit(Codebook{});
        case Quantizer::exponent: return visit(Exponent{});
    }
}

}  // namespace gradwire
