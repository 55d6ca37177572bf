// Entry points for test_encoding.py: the encode of a bucket, its parts in memory that the test owns.
#include "bucket/encode.h"

#include "fit/controller.cuh"

using namespace gradwire;

extern "C" int gradwire_test_encode_layout(const Piece* pieces, std::uint64_t count, std::uint64_t blocks,
                                           std::uint64_t* sizes) {
    const EncodePlan plan = plan_encode(pieces, unsigned(count), unsigned(blocks));
    sizes[0] = plan.select.table_bytes();
    sizes[1] = plan.select.scratch_bytes();
    sizes[2] = plan.write.table_bytes();
    sizes[3] = plan.write.scratch_bytes();
    sizes[4] = plan.select.kept_bytes();
    return 0;
}

// How many blocks a selection has.
extern "C" int gradwire_test_encode_blocks(const Piece* pieces, std::uint64_t count, std::uint64_t blocks,
                                           std::uint64_t* most) {
    *most = plan_select(pieces, unsigned(count), unsigned(blocks)).blocks;
    return 0;
}

extern "C" int gradwire_test_encode_tables(const Piece* pieces, std::uint64_t count, std::uint64_t blocks,
                                           void* select_table, void* kept, void* select_scratch, void* write_table) {
    const EncodePlan plan = plan_encode(pieces, unsigned(count), unsigned(blocks));
    plan.select.fill_table(select_table, kept, select_scratch);
    plan.write.fill_table(write_table);
    return 0;
}

extern "C" int gradwire_test_encode(const Piece* pieces, std::uint64_t count, std::uint64_t blocks, Selection* selections,
                                    void* select_table, void* write_table, void* write_scratch, float divisor,
                                    std::int64_t* table) {
    const EncodePlan plan = plan_encode(pieces, unsigned(count), unsigned(blocks));
    return launch_encode(plan, pieces, selections, {select_table, write_table, write_scratch}, divisor,
                         plan.may_exceed(pieces), table, nullptr);
}

extern "C" int gradwire_test_rollback(const Piece* pieces, std::uint64_t count) {
    return launch_rollback(pieces, unsigned(count), nullptr);
}

// What a new state's controller begins with.
extern "C" int gradwire_test_stages(Sparsify* options, double delta, std::uint64_t fixed) {
    set_stages(*options, delta, unsigned(fixed));
    return 0;
}

extern "C" int gradwire_test_sizes(std::uint64_t* sizes) {
    sizes[0] = sizeof(Piece);
    sizes[1] = sizeof(Selection);
    sizes[2] = sizeof(State);
    sizes[3] = sizeof(Sparsify);
    sizes[4] = sizeof(Memory);
    sizes[5] = sizeof(Quantize);
    return 0;
}
