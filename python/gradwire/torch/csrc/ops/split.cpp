// gradwire::split_bucket: frames cut by the owners of their ranges.
#include <algorithm>

#include "bucket/gather.h"
#include "bucket/split.h"
#include "ops/pieces.h"
#include "ops/reading.h"

namespace gradwire::ops {

namespace {

// Divides memory of the device, of which writing takes `scratch`; how many bytes it has.
std::uint64_t divide(void* memory, std::size_t parts, std::int64_t entries, std::uint64_t longest, const WritePlan& plan,
                     SplitCall& order, void*& scratch) {
    Arena arena{memory};
    order.selections = arena.take<Selection>(parts);
    order.parts = arena.take<FramePart>(parts);
    order.positions = arena.take<std::uint32_t>(static_cast<std::uint64_t>(entries));
    order.slots = arena.take<std::uint8_t>(longest);
    scratch = arena.take<std::uint8_t>(plan.scratch_bytes());
    return arena.used;
}

// Cuts the frames of `data`, of `lens` bytes each one after another, which have so many entries in `counts`
// and are made by the codecs of `pieces`. Range i is that of the entries from `ends[2 i]` to `ends[2 i + 1]`
// of frame `frames[i]`.
//
// Returns the parts of all ranges, one after another, in more bytes than they have; a table of int64 with two
// rows for each range, as of an encode, which has no bytes of what is no part; and the verdicts of
// `decode_bucket`, which say if a frame is not valid: then there are no parts. Waits for nothing.
std::tuple<Tensor, Tensor, Tensor> split_bucket(Tensor pieces, Tensor data, std::vector<std::int64_t> lens,
                                                std::vector<std::int64_t> counts, std::vector<std::int64_t> frames,
                                                std::vector<std::int64_t> ends, bool seeded) {
    const int device = static_cast<int>(data.get_device_index());
    const DeviceGuard guard(device);
    check_bytes(data, "data", device);
    const std::vector<Piece> codecs = pieces_in(pieces);
    const std::size_t number = codecs.size(), count = frames.size();
    STD_TORCH_CHECK(lens.size() == number && counts.size() == number && ends.size() == 2 * count,
                    "lens and counts must be of ", number, " frames, and ends of ", count, " ranges");
    std::vector<Target> targets;
    std::vector<std::int64_t> starts, firsts;
    std::vector<std::uint64_t> of_frame(number);
    std::int64_t entries = 0, start = 0;
    for (std::size_t i = 0; i < number; ++i) {
        const Piece& codec = codecs[i];
        STD_TORCH_CHECK(0 <= counts[i] && counts[i] <= static_cast<std::int64_t>(codec.numel), "counts must be of entries");
        targets.push_back({nullptr, codec.numel, Dtype::f32});
        starts.push_back(start);
        firsts.push_back(entries);
        start += lens[i];
        if (codec.sparsify.kind != Sparsifier::all) entries += counts[i];
    }
    std::vector<FrameRange> ranges(count);
    std::vector<Piece> all;
    std::vector<std::uint64_t> most;
    for (std::size_t i = 0; i < count; ++i) {
        STD_TORCH_CHECK(0 <= frames[i] && frames[i] < static_cast<std::int64_t>(number), "there is no frame ", frames[i]);
        const auto frame = static_cast<std::size_t>(frames[i]);
        const std::int64_t begin = ends[2 * i], end = ends[2 * i + 1];
        STD_TORCH_CHECK(0 <= begin && begin <= end && end <= static_cast<std::int64_t>(codecs[frame].numel),
                        "ends must be ranges of the tensors");
        ranges[i] = {static_cast<std::uint32_t>(frame), 0, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end)};
        ++of_frame[frame];
        const Piece part = part_of(codecs[frame], static_cast<std::uint64_t>(end - begin));
        for (int side = 0; side < 2; ++side) {
            all.push_back(part);
            most.push_back(std::min(part.numel, static_cast<std::uint64_t>(counts[frame])));
        }
    }
    std::uint64_t longest = 0;
    for (std::size_t i = 0; i < number; ++i)
        longest += longest_parts(codecs[i].quantize, codecs[i].numel, static_cast<std::uint64_t>(counts[i]), of_frame[i]);
    const WritePlan plan = plan_write(all.data(), most.data(), static_cast<unsigned>(all.size()));
    const Tensor host = pinned_bytes(plan.table_bytes());
    plan.fill_table(host.mutable_data_ptr());
    const Tensor own = uploaded(all, data), where = uploaded(ranges, data), from = uploaded(firsts, data);
    const Tensor tables = torch::stable::to(host, data.device(), true), out = device_bytes(longest, data);
    Tensor table = torch::stable::new_empty(data, {static_cast<std::int64_t>(all.size()), outcome_columns}, ScalarType::Long);
    Reading reading = reading_of(targets, data, starts, lens, 1, seeded);
    const cudaStream_t stream = stream_of(device);
    SplitCall order;
    void* scratch;
    const Tensor memory = device_bytes(divide(nullptr, all.size(), entries, longest, plan, order, scratch), data);
    divide(memory.mutable_data_ptr(), all.size(), entries, longest, plan, order, scratch);
    order.ranges = data_of<const FrameRange>(where);
    order.count = static_cast<std::uint32_t>(count);
    order.pieces = data_of<Piece>(own);
    order.firsts = data_of<const std::uint64_t>(from);
    order.table = data_of<std::int64_t>(table);
    check(split(reading.call, order, plan, tables.mutable_data_ptr(), scratch, stream));
    check(launch_gather(order.pieces, static_cast<unsigned>(all.size()), longest, data_of<std::uint8_t>(out), order.table, stream));
    return {out, table, reading.result};
}

GRADWIRE_OPERATOR(GRADWIRE_KERNELS, split_bucket,
                  "(Tensor pieces, Tensor data, int[] lens, int[] counts, int[] frames, int[] ends, bool seeded) "
                  "-> (Tensor, Tensor, Tensor)")

}  // namespace

}  // namespace gradwire::ops
