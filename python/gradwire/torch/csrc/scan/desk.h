// Where a tensor of a bucket is worked on: its part of the scratch memory, and what reads found there.
#pragma once

#include <cstdint>

#include "bucket/piece.h"

namespace gradwire {

// What to gather while a tensor is read. The largest magnitude always is.
struct Request {
    std::uint32_t above;    // candidates: the entries whose magnitude is above `bound`
    float bound;
    std::uint64_t cap;      // and take them for survivors unless they are more
    std::uint32_t located;  // sums of the exceedances over `location`
    float location;
};

// Entries in the order of their positions.
struct List {
    std::uint32_t* positions;
    float* values;
};

// One entry.
struct alignas(8) Candidate {
    std::uint32_t position;
    float value;
};

// Memory to work on one piece in. The host fills in the pointers; all else is the kernels'.
struct Desk {
    std::uint32_t* mask;    // a bit for each element
    std::uint32_t* marked;  // bits set, or candidates, of each chunk
    Candidate* candidates;  // of the last read: room for `row_room` in each row of entries
    std::uint32_t* found;   // how many each row has, also where they do not fit
    std::uint32_t row_room; // 0 where none are looked for
    Moments* parts;         // sums of each chunk
    Moments total;          // and of all, in their order
    unsigned finished;      // chunks that the first read has summed up
    List lists[2];
    std::uint64_t room;     // entries that a list holds
    unsigned* arrivals;
    std::uint64_t* slots;
    std::uint32_t* bins;
    std::uint32_t first_block, blocks;  // the team

    Request request;
    std::uint32_t reads;  // whether the first read gathers anything: 0 where positions are drawn unseen
    float scale;
    float sampled;        // a threshold, decided before the first read
    std::uint32_t peak;
    std::uint32_t any;  // whether an element of the input is not zero
    std::uint32_t bad;  // whether something is not finite: then
    unsigned long long bad_count, bad_first;
};

}  // namespace gradwire
