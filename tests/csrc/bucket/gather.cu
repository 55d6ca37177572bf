// Entry point for test_gather.py.
#include "bucket/commit.cuh"

using namespace gradwire;

static __global__ void tabulate_outcomes(const Selection* selections, unsigned count, std::int64_t* table) {
    tabulate(selections, count, table);
}

extern "C" int gradwire_test_gather(const Piece* pieces, const Selection* selections, std::uint64_t count, std::uint64_t most,
                                    std::uint8_t* out, std::int64_t* table) {
    GRADWIRE_TRY(launch(tabulate_outcomes, {1}, team_threads, nullptr, selections, unsigned(count), table));
    return launch_gather(pieces, unsigned(count), most, out, table, nullptr);
}
