//! A training loop in its steady state allocates nothing.

// A counting allocator has to implement an unsafe trait; it only forwards.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gradwire_core::Input;
use gradwire_core::codec::{Codec, Workspace};
use gradwire_core::fit::{Distribution, Mode};
use gradwire_core::frame::{Frame, Scratch};
use gradwire_core::memory::{Memory, Residual, Storage};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::Quantizer;
use gradwire_core::simd::Kernels;
use gradwire_core::sparsify::{
    Amount, BinMax, ChunkTopK, Gaussian, RandomK, SampledTopK, Sid, Sparsifier, Threshold, Tile,
    TopK, TrimMethod, Trimmed, TwoSided,
};

mod tensors;
use tensors::bell;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is the system allocator's; counting touches a thread-local cell that needs no
// memory of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

fn sparsifiers() -> Vec<Sparsifier> {
    let mut all = vec![Sparsifier::All, Sparsifier::Threshold(Threshold { threshold: 0.9 })];
    for (chunk, k, tile) in [(100, 1, None), (4096, 64, None), (4096, 64, Some(64))] {
        let tile = tile.map(|rows| Tile { rows, columns: rows, width: 400 });
        all.push(Sparsifier::ChunkTopK(ChunkTopK { chunk, k, tile }));
    }
    for block in [false, true] {
        let random = RandomK { amount: Amount::Ratio(0.01), block, seed: 1, scaled: false };
        all.push(Sparsifier::RandomK(random));
    }
    for ratio in [0.001, 0.01, 0.1] {
        all.push(Sparsifier::TopK(TopK { amount: Amount::Ratio(ratio) }));
        for mode in [Mode::Adaptive, Mode::Tracking, Mode::Paper, Mode::Fixed(3)] {
            all.push(Sparsifier::Sid(Sid { mode, ..Sid::new(ratio) }));
        }
        let distribution = Distribution::Gamma;
        all.push(Sparsifier::Sid(Sid { distribution, ..Sid::new(ratio) }));
        all.push(Sparsifier::SampledTopK(SampledTopK::new(ratio)));
        all.push(Sparsifier::Gaussian(Gaussian::new(ratio)));
        let method = TrimMethod::Search;
        all.push(Sparsifier::Trimmed(Trimmed { method, ..Trimmed::new(ratio) }));
    }
    all.push(Sparsifier::TwoSided(TwoSided::new(32.0)));
    all.extend([50, 5000].map(|bin| Sparsifier::BinMax(BinMax { bin, soft: 2.0 })));
    let others = Sparsifier::examples_besides(&all);
    all.extend(others.into_iter().filter(|sparsifier| !sparsifier.is_given()));
    all
}

/// A residual in float32, one in bfloat16, and all other memories.
fn memories() -> Vec<Memory> {
    let residual = |storage| Memory::Residual(Residual { decay: 1.0, storage });
    let mut all = vec![residual(Storage::Float32), residual(Storage::BFloat16 { seed: 1 })];
    all.extend(Memory::examples_besides(&all));
    all
}

#[test]
fn steady_steps_allocate_nothing() {
    let len = 200_000;
    let steps: Vec<_> = (0..40).map(|step| bell(len, step)).collect();
    let residuals = &memories()[..2];
    let pairs = sparsifiers().into_iter().flat_map(|s| residuals.iter().map(move |&m| (s, m)));
    let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.01) });
    for (sparsifier, memory) in pairs.chain(memories().into_iter().map(|memory| (top, memory))) {
        let codec = Codec::new(sparsifier, Quantizer::BFloat16, memory, IndexCoding::Auto).unwrap();
        let mut state = codec.init_state(len).unwrap();
        let mut workspace = Workspace::with(Kernels::current(), 1);
        let mut frame = Vec::with_capacity(codec.max_encoded_len(len));
        let (mut total, mut scratch) = (vec![0.0; len], Scratch::default());
        let mut step = |x: &[f32]| {
            codec.encode_into(Input::F32(x), &mut state, None, &mut workspace, &mut frame).unwrap();
            let parsed = Frame::parse(&frame, Some(len as u64)).unwrap();
            parsed.decode_add(&mut total, 0.5, &mut scratch).unwrap();
        };
        // Scratch memory grows with what the first steps select, and by doubling.
        steps[..30].iter().for_each(|x| step(x));
        let counted = allocations(|| steps[30..].iter().for_each(|x| step(x)));
        assert_eq!(counted, 0, "{codec:?}");
    }
}
