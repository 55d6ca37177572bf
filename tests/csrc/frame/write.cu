// Entry point for test_write.py: frames of given positions and values.
#include "frame/write.cuh"

using namespace gradwire;

namespace {

// What there is to write of a piece, as test_write.py lays it out.
struct Given {
    std::uint64_t numel, count, most, dtype, sparsifier, indices, pattern, size, k;
    std::uint64_t quantizer, bits, magnitude, norm, stochastic, block;
    std::uint64_t rounding_key, selection_key, limit, entries, frame;
    float clip, told, divisor;
};


// Values are where the selection says, and what readers make of them goes into the residual.
struct ListedEntries {
    struct Bucket {};

    float* decoded;
    const float* values;

    ListedEntries(const Bucket&, unsigned, const Piece& piece, const Selection& selection)
        : decoded(static_cast<float*>(piece.residual[0])), values(selection.values) {}
    template <unsigned Count, unsigned Step>
    void read(Batch<Count, Step> batch, float (&into)[Count]) const { batch.read(values, into); }
    void settle(std::uint32_t position, float, float sent) const { decoded[position] = sent; }
    void finish() const {}
    static void end(const Bucket&) {}
};

}  // namespace

extern "C" int gradwire_test_write_frames(const Given* given, std::uint64_t count, const std::uint32_t* positions,
                                   const float* values, std::uint8_t* out, float* decoded, std::uint64_t* nbytes, std::uint32_t* peaks,
                                   std::uint8_t* scratch, std::uint64_t scratch_bytes) {
    std::vector<Piece> pieces(count);
    std::vector<Selection> selections(count);
    std::vector<std::uint64_t> most(count);
    std::uint64_t elements = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        const Given& from = given[i];
        Piece& piece = pieces[i];
        piece.numel = from.numel;
        piece.residual[0] = decoded + elements;
        elements += from.numel;
        piece.frame = out + from.frame;
        piece.limit = from.limit;
        piece.dtype = static_cast<Dtype>(from.dtype);
        piece.indices = static_cast<std::uint32_t>(from.indices);
        piece.sparsify.kind = static_cast<Sparsifier>(from.sparsifier);
        piece.pattern = {static_cast<PatternKind>(from.pattern), static_cast<std::uint32_t>(from.size),
                         static_cast<std::uint32_t>(from.k)};
        piece.quantize.kind = static_cast<Quantizer>(from.quantizer);
        piece.quantize.bits = static_cast<std::uint8_t>(from.bits);
        piece.quantize.magnitude = static_cast<Magnitude>(from.magnitude);
        piece.quantize.norm = static_cast<Norm>(from.norm);
        piece.quantize.stochastic = from.stochastic != 0;
        piece.quantize.block = static_cast<std::uint32_t>(from.block);
        piece.quantize.clip = from.clip;
        Selection& selection = selections[i];
        selection.status = Status::ok;
        selection.divisor = from.divisor;
        selection.count = from.count;
        selection.magnitude = from.told;
        selection.rounding_key = from.rounding_key;
        selection.selection_key = from.selection_key;
        selection.positions = is_dense(piece) ? nullptr : positions + from.entries;
        selection.values = values + from.entries;
        most[i] = from.most;
    }
    const WritePlan plan = plan_write(pieces.data(), most.data(), static_cast<unsigned>(count));
    if (plan.scratch_bytes() > scratch_bytes) return 1000;
    std::vector<std::uint64_t> table((plan.table_bytes() + 7) / 8);
    plan.fill_table(table.data());
    GRADWIRE_TRY(launch_write<ListedEntries>(plan, pieces.data(), selections.data(), table.data(), scratch, {}, nullptr));
    for (std::uint64_t i = 0; i < count; ++i) {
        nbytes[i] = selections[i].nbytes <= pieces[i].limit ? selections[i].nbytes : 0;
        peaks[i] = selections[i].peak;
    }
    return 0;
}
