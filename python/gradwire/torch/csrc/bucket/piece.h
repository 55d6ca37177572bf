// What a bucket is made of: plain structs, the same in device and in host memory.
//
// A piece is one tensor of a bucket: where its gradient, its state and its frame are, and how it is
// encoded. Sparsifiers, quantizers and memories have the names and numbers of the core.
#pragma once

#include <cstdint>

namespace gradwire {

enum class Dtype : std::uint32_t { f32 = 0, f64 = 1, f16 = 2, bf16 = 3 };

// The ids of frames; those that are missing here have no kernels. Of sid, Pareto distributions with adaptive
// stages have.
enum class Sparsifier : std::uint32_t {
    all = 0,
    threshold = 1,
    topk = 2,
    sid = 3,
    sampled_topk = 4,
    chunk_topk = 5,
    random_k = 8,
    custom = 11,
};

// How a codec may code positions: `automatic` is the smallest of the others for each frame.
enum class IndexCoding : std::uint32_t { automatic, elias_fano, rice, bitmap };

// What a writer knows of its positions beforehand: nothing; as a rule `k` of them in each chunk of
// `size`; or that they were drawn from a key.
enum class PatternKind : std::uint32_t { any, chunks, subset, run };

struct Pattern {
    PatternKind kind = PatternKind::any;
    std::uint32_t size = 0, k = 0;  // of chunks
};

// The ids that the header of a frame has. The next one is that of affine, which has no kernels.
enum class Quantizer : std::uint8_t {
    float32,
    bfloat16,
    float16,
    float16_scaled,
    float8_e5m2,
    float8_e4m3,
    uniform,
    sign_scale,
    two_means,
    ternary,
    codebook,
    exponent,
};

// Which magnitude goes with the signs of `sign_scale`: the mean, the root of the mean square, or what
// the sparsifier tells.
enum class Magnitude : std::uint8_t { mean, root_mean_square, told };

// What a block of `uniform` reaches up to.
enum class Norm : std::uint8_t { l2, largest };

struct Quantize {
    Quantizer kind = Quantizer::float32;
    std::uint8_t bits = 0;  // of a code: uniform 2 to 8, codebook 1 to 4
    Magnitude magnitude = Magnitude::mean;
    Norm norm = Norm::l2;
    bool stochastic = false;  // float8
    // Entries that share a scale: of uniform; and of float8, where 0 says that there are no scales.
    // Positions in a column of two_means, where 0 says that all are in one.
    std::uint32_t block = 0;
    float clip = 0;  // of ternary, in standard deviations; 0 is none
    std::uint64_t seed = 0;
};

// How entries are selected. Fields that a sparsifier does not have are zero, so that two are equal if
// their bytes are.
struct Sparsify {
    Sparsifier kind;
    std::uint32_t counted;      // amount is k, not a ratio
    double ratio;
    std::uint64_t k;            // entries; of each chunk for chunk_topk
    float threshold;            // threshold
    std::uint32_t banded;       // sid
    double band_low, band_high;
    std::uint32_t chunk;        // chunk_topk: elements of a chunk
    std::uint32_t tile_rows, tile_columns, width;  // of a matrix; 0 where chunks are runs
    double first_ratio;         // sid
    std::uint32_t start_stages, most_stages;  // of a new controller: see set_stages
    double sample_ratio, upper, lower;        // sampled_topk
    std::uint32_t strided, resample;
    std::uint64_t seed;
    std::uint32_t run, scaled;  // random_k
};

enum class MemoryKind : std::uint32_t { none = 0, residual = 1, low_pass = 2, momentum = 3, adam = 4 };

// What happens to entries that are not sent.
struct Memory {
    MemoryKind kind;
    float decay;      // residual
    float beta;       // low_pass
    float momentum;   // momentum
    std::uint32_t nesterov, masking, clips;
    float clip;
    double beta2, eps;  // adam
    std::uint32_t narrow;  // whether the residual is kept in bfloat16, rounded by chance
    std::uint64_t seed;
};

// A number that may not be there.
struct Maybe {
    float value;
    std::uint32_t there;
};

// Sufficient statistics of a set of magnitudes, or of exceedances over a location.
struct Moments {
    std::uint64_t count;  // magnitudes that were summed; zeros are not among them
    double sum, sum_sq;
};

// What SIDCo's controller learns: see fit/controller.cuh.
struct Controller {
    std::uint32_t stages, seen, misses, rest, rests, unused;
    double last, sum, aim;
};

// What a sparsifier remembers of a tensor from one encode to the next.
struct Tracker {
    Maybe bound, threshold, location;
    Controller controller;
};

// The same, and for which sparsifier.
struct Tracked {
    Sparsify sparsify;
    Tracker tracker;
};

// All that changes of a tensor from step to step, but for its buffers.
struct State {
    std::uint64_t step, tensor, stream;
    std::uint64_t moment_steps;
    double rate;
    std::uint32_t current;   // which of two buffers holds the values
    std::uint32_t undoable;  // whether the other one holds those before the last encode
    Tracked tracked, previous;
    std::uint64_t previous_moment_steps;
};

// One tensor of a bucket.
struct Piece {
    const void* gradient;
    std::uint64_t numel;
    void* residual[2];  // null without a memory
    float* moment[2];   // null where nothing is kept beside the residual
    State* state;
    std::uint8_t* frame;
    std::uint64_t limit;  // bytes of its frame at most
    Dtype dtype;
    std::uint32_t indices;  // which index coding, as pack numbers them
    Memory memory;
    Sparsify sparsify;
    Quantize quantize;
    Pattern pattern;  // what is known of the positions beforehand
    // Positions that were selected elsewhere, if they were: ascending, below `numel`. With `may_trim` the
    // smallest entries are left out of a frame that is too long.
    std::uint32_t given, may_trim;
    const std::uint32_t* support;
    std::uint64_t support_count;
    // The sparsifier that the header names, if it is another one than what selects, and one more; else 0.
    std::uint32_t named;
};

enum class Status : std::uint32_t {
    ok = 0,
    non_finite = 1,   // `bad_count` elements, from position `bad_first` on
    limit = 2,        // the frame needs `nbytes`
    unsupported = 3,  // parts that no kernel encodes yet
    skipped = 4,      // a piece before it failed
    positions = 5,    // those given do not ascend, or are beyond the tensor
};

// One for each class of error that `gradwire.decode` raises. The words of the error are those of the
// CPU's reader: a frame that is refused here is read there once more.
enum class Verdict : std::uint32_t {
    good,
    corrupt,
    truncated,
    unsupported,
    too_large,  // more elements than there is room for
    numel,      // fewer
    outside,    // a section that only the host reads, such as one of another package
    seeded,     // drawn positions, and the caller has given no room for them
    absent,     // not one of a caller's: there is no frame, which is good
};

// What was selected of a piece, and what came of its encode.
struct Selection {
    Status status;
    std::uint32_t zero;  // whether every element of the input was
    std::uint64_t count, target, trimmed, nbytes;
    std::uint64_t bad_count, bad_first;
    std::uint32_t has_target;
    float threshold;
    float magnitude;     // that of all entries, where the sparsifier tells one; NaN elsewhere
    std::uint32_t peak;  // bits of the largest magnitude of `values`
    float divisor;       // what entries were divided by first; not 1: the frame is one of float32
    float scale;         // what they were multiplied by, so that their norm is clipped
    std::uint64_t rounding_key, selection_key;
    const std::uint32_t* positions;  // ascending; null for every position
    const float* values;             // gradient and memory together, at these positions
    Tracker tracker;                 // what the state takes over
};

// A row of the table that tells what came of each piece, all of int64.
enum OutcomeColumn : unsigned {
    outcome_status,
    outcome_nbytes,
    outcome_count,
    outcome_target,     // -1: none
    outcome_trimmed,
    outcome_zero,
    outcome_threshold,  // bits of a float
    outcome_start,      // where its frame begins
    outcome_bad_count,  // entries that are not finite, where that is the status
    outcome_bad_first,  // and the position of the first of them
    outcome_columns,
};

}  // namespace gradwire
