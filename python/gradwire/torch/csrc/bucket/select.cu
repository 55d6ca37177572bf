// What the first read is to gather, and all that follows of it; the read itself is in read.cu.
#include "bucket/trim.cuh"
#include "device/probe.h"

namespace gradwire {

namespace {

// A frame is at least a header; a dense one is as long as any.
__device__ std::uint64_t least_frame(const Piece& piece) {
    return is_dense(piece) ? longest_frame(piece, piece.numel) : header_len;
}

// The entries of a gradient as they are.
struct GradientEntry {
    Tensor tensor;
    __device__ float operator()(std::uint64_t i) const {
        float value[1];
        read(One{i, i + 1}, value);
        return value[0];
    }

    template <class Batch>
    __device__ void read(Batch batch, float (&values)[Batch::count]) const {
        bool nonzero = false;
        read_entries(tensor, batch, values, nonzero);
    }
};

// What a gradient is multiplied by so that its norm is at most what the memory allows.
__device__ float clip_scale(Team& team, Desk& desk, const Piece& piece, const Tensor& tensor) {
    const GradientEntry entry{tensor};
    const std::uint64_t chunks = pieces(tensor.numel, chunk_entries);
    for (std::uint64_t chunk = team.first(chunks); chunk < team.last(chunks); ++chunk) {
        const Chunk asked(tensor.numel, chunk, {0, 0.0f, 0, 1, 0.0f});
        if (read_chunk(desk, asked, entry).peak >= not_finite) count_bad(desk, asked, entry);
    }
    team.sync();
    const double norm = sqrt(total_of_parts(team, desk, chunks).sum_sq), clip = piece.memory.clip;
    return norm > clip ? static_cast<float>(clip / norm) : 1.0f;
}

__global__ void __launch_bounds__(team_threads, 2) prepare(Selecting bucket) {
    for_each_piece(bucket, [&](unsigned, const Piece& piece, Desk& desk, Team& team) {
        if (team.rank == 0 && threadIdx.x == 0) {
            desk.peak = desk.any = desk.bad = desk.finished = 0;
            desk.total = {};
            desk.bad_count = 0;
            desk.bad_first = ~0ull;
            desk.scale = 1.0f;
            desk.request = {};
            desk.reads = 0;
        }
        if (!is_supported(piece)) return;
        Tensor tensor = tensor_of(piece, bucket.divisor, 1.0f);
        float scale = 1.0f;
        if (piece.memory.clips) {
            team.sync();
            scale = clip_scale(team, desk, piece, tensor);
            tensor.momentum.scale = scale;
        }
        const Tracker tracker = tracker_of(piece);
        const Request request = piece.given ? Request{} : wanted(team, desk, piece.sparsify, piece.numel, selection_key(piece), tracker,
                                       UnwrittenEntry{tensor});
        if (team.rank == 0 && threadIdx.x == 0) {
            desk.scale = scale;
            desk.request = request;
            const bool unseen = piece.sparsify.kind == Sparsifier::random_k && !piece.given &&
                                piece.memory.kind == MemoryKind::none;
            desk.reads = !unseen;
        }
    });
}

// What is known of a selection before it is made.
__device__ Selection begun(const Selecting& bucket, const Piece& piece, const Desk& desk) {
    const State& state = *piece.state;
    Selection selection{};
    selection.zero = desk.any == 0;
    selection.magnitude = float_of(0x7fc00000);
    selection.divisor = bucket.divisor;
    selection.scale = desk.scale;
    selection.rounding_key = make_key(piece.quantize.seed, state.tensor, state.step, ~state.stream);
    selection.selection_key = selection_key(piece);
    selection.peak = desk.peak;
    if (!is_supported(piece)) {
        selection.status = Status::unsupported;
    } else if (piece.limit < least_frame(piece)) {
        selection.status = Status::limit;
        selection.nbytes = least_frame(piece);
    } else if (is_dense(piece)) {
        selection.count = piece.numel;
        selection.bad_first = ~0ull;
    }
    return selection;
}

__global__ void __launch_bounds__(team_threads, 2) select(Selecting bucket) {
    for_each_piece(bucket, [&](unsigned index, const Piece& piece, Desk& desk, Team& team) {
        const bool leads = team.rank == 0 && threadIdx.x == 0;
        Selection& selection = bucket.selections[index];
        if (leads) selection = begun(bucket, piece, desk);
        Tracker tracker = tracker_of(piece);
        if (is_supported(piece) && piece.limit >= least_frame(piece) && !is_dense(piece) && desk.bad == 0) {
            ScannedTensor scanned = scanned_of(team, desk, piece, bucket.divisor, selection_key(piece));
            scanned.begin();
            Selected selected{piece.support_count, true, 0.0f, 0.0f};
            bool taken = true;
            if (!piece.given)
                selected = select_entries(scanned, tracker);
            else
                taken = take_given(scanned, piece);
            if (!desk.reads) check_survivors(team, scanned);
            if (leads) {
                const List list = scanned.survivors.list();
                if (!taken) selection.status = Status::positions;
                selection.count = scanned.survivors.count;
                selection.target = selected.target;
                selection.has_target = selected.has_target;
                selection.threshold = selected.threshold;
                if (piece.sparsify.kind == Sparsifier::threshold && !piece.given) selection.magnitude = selected.magnitude;
                selection.positions = list.positions;
                selection.values = list.values;
            }
        }
        if (leads) {
            selection.tracker = tracker;
            if (selection.status == Status::ok && desk.bad != 0) {
                selection.status = Status::non_finite;
                selection.bad_count = desk.bad_count;
                selection.bad_first = desk.bad_first;
            }
        }
        if (!bucket.trims) return;
        team.sync();
        if (team.rank == 0) trim(piece, desk, selection);
    });
}

__global__ void roll_back(const Piece* pieces, unsigned count) {
    const unsigned i = blockIdx.x * team_threads + threadIdx.x;
    if (i >= count) return;
    State& state = *pieces[i].state;
    if (!state.undoable) return;
    state.tracked = state.previous;
    state.moment_steps = state.previous_moment_steps;
    state.current = pieces[i].memory.kind == MemoryKind::none ? 0 : 1 - state.current;
    state.step -= 1;
    state.undoable = 0;
}

const Kernels kernels{prepare, select, roll_back};

}  // namespace

cudaError_t select_blocks(int device, unsigned& blocks) {
    unsigned of_prepare = 0, of_select = 0;
    GRADWIRE_TRY(count_together(prepare, team_threads, device, of_prepare));
    GRADWIRE_TRY(count_together(select, team_threads, device, of_select));
    blocks = of_prepare < of_select ? of_prepare : of_select;
    return cudaSuccess;
}

cudaError_t launch_select(const SelectPlan& plan, const Selecting& bucket, cudaStream_t stream) {
    if (plan.pieces == 0) return cudaSuccess;
    GRADWIRE_TRY(launch<Blocks::together>(prepare, plan.blocks, team_threads, stream, bucket));
    GRADWIRE_TRY(launch_read(plan, bucket, stream));
    return launch<Blocks::together>(select, plan.blocks, team_threads, stream, bucket);
}

cudaError_t launch_rollback(const Piece* all, unsigned count, cudaStream_t stream) {
    return launch(roll_back, pieces(count, team_threads), team_threads, stream, all, count);
}

}  // namespace gradwire
