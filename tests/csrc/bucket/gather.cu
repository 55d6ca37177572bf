// Entry point for test_gather.py.
#include "bucket/gather.h"

using namespace gradwire;

extern "C" int gradwire_test_gather(const Piece* pieces, const Selection* selections, std::uint64_t count, std::uint64_t most,
                                    std::uint8_t* out, std::int64_t* table) {
    return launch_gather(pieces, selections, unsigned(count), most, out, table, nullptr);
}
