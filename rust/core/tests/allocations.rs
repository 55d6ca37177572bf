//! A training loop in its steady state allocates nothing.

// A counting allocator has to implement an unsafe trait; it only forwards.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gradwire_core::Input;
use gradwire_core::codec::{Codec, Workspace};
use gradwire_core::frame::{Frame, Scratch};
use gradwire_core::memory::{Memory, Residual, Storage};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::Quantizer;
use gradwire_core::simd::Kernels;
use gradwire_core::sparsify::{Amount, Sparsifier, TopK};

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

/// Every sparsifier that selects by itself.
fn sparsifiers() -> Vec<Sparsifier> {
    let all = Sparsifier::examples().into_iter();
    // Scaled values take no memory.
    let scaled = |&s: &Sparsifier| matches!(s, Sparsifier::RandomK(random) if random.scaled);
    all.filter(|sparsifier| !sparsifier.is_given() && !scaled(sparsifier)).collect()
}

#[test]
fn steady_steps_allocate_nothing() {
    let len = 200_000;
    let steps: Vec<_> = (0..40).map(|step| bell(len, step)).collect();
    let residuals = [Storage::Float32, Storage::BFloat16 { seed: 1 }]
        .map(|storage| Memory::Residual(Residual { decay: 1.0, storage }));
    let pairs = sparsifiers().into_iter().flat_map(|s| residuals.map(|memory| (s, memory)));
    let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.01) });
    let memories = Memory::examples().into_iter().map(|memory| (top, memory));
    for (sparsifier, memory) in pairs.chain(memories) {
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
