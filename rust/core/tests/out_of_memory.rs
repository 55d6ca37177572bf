//! Where memory ends in the middle of a call, that is an error, and the state is as it was.

// An allocator that fails on demand has to implement an unsafe trait; it only forwards.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

use gradwire_core::codec::{Codec, State, Workspace};
use gradwire_core::frame::{Frame, Scratch};
use gradwire_core::memory::{Memory, Residual};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::{Norm, Quantizer, TwoMeans, Uniform};
use gradwire_core::simd::Kernels;
use gradwire_core::sparsify::{Amount, ChunkTopK, Sparsifier, Threshold, Tile, TopK};
use gradwire_core::{Error, Input, Result};

mod tensors;
use tensors::bell;

/// Allocations below this size are not of the size of any data.
const LARGE: usize = 1024;

thread_local! {
    /// How many large allocations still succeed in this thread.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

struct Failing;

// SAFETY: every call is the system allocator's, or null, which an allocator may always return;
// counting touches a thread-local cell that needs no memory of its own.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            let left = LEFT.with(Cell::get);
            if left == 0 {
                return ptr::null_mut();
            }
            LEFT.with(|cell| cell.set(left - 1));
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Runs the work with memory for so many large allocations.
fn with_memory_for<T>(allocations: usize, work: impl FnOnce() -> T) -> T {
    LEFT.with(|left| left.set(allocations));
    let result = work();
    LEFT.with(|left| left.set(usize::MAX));
    result
}

/// Has each large allocation of the work fail once; the error is always the same, and `check` holds
/// after it.
fn every_allocation_fails(
    what: &str,
    mut work: impl FnMut() -> Result<()>,
    mut check: impl FnMut(),
) -> usize {
    for allocations in 0..200 {
        let error = match with_memory_for(allocations, &mut work) {
            Ok(()) => return allocations,
            Err(error) => error,
        };
        let large = |bytes| bytes >= LARGE as u64;
        assert!(matches!(error, Error::OutOfMemory { bytes } if large(bytes)), "{what}: {error}");
        check();
    }
    // There was memory for more allocations than any of these calls makes.
    usize::MAX
}

/// Every sparsifier that selects by itself, chunks that are searched as tensors, and tiles.
fn sparsifiers() -> Vec<Sparsifier> {
    let scaled = |&s: &Sparsifier| matches!(s, Sparsifier::RandomK(random) if random.scaled);
    let mut all = Sparsifier::examples();
    all.retain(|sparsifier| !sparsifier.is_given() && !scaled(sparsifier));
    let tile = Some(Tile { rows: 64, columns: 64, width: 500 });
    for (chunk, k, tile) in [(5000, 64, None), (70_000, 9, None), (1, 5, tile)] {
        all.push(Sparsifier::ChunkTopK(ChunkTopK { chunk, k, tile }));
    }
    all
}

fn memories() -> impl Iterator<Item = Memory> {
    Memory::examples().into_iter().filter(|&memory| memory != Memory::None)
}

type All = ([Vec<f32>; 2], Vec<(String, f64)>);

fn all_of(state: &State) -> All {
    let of = |values: Option<Input<'_>>| match values {
        Some(Input::F32(values)) => values.to_vec(),
        Some(Input::BF16(values)) => values.iter().map(|value| value.to_f32()).collect(),
        _ => Vec::new(),
    };
    let moment = state.momentum().map(Input::F32).or(state.stored_second_moment());
    ([of(state.stored_residual()), of(moment)], state.scalars())
}

const N: usize = 150_000;

#[test]
fn an_encode_fails_with_the_state_as_it_was() {
    let steps: Vec<_> = (0..3).map(|step| bell(N, step)).collect();
    let residual = Memory::Residual(Residual { decay: 0.9, ..Residual::PLAIN });
    let pairs = sparsifiers().into_iter().map(|sparsifier| (sparsifier, residual));
    let few = [Sparsifier::All, Sparsifier::TopK(TopK { amount: Amount::Ratio(0.1) })];
    let others = few.into_iter().flat_map(|s| memories().map(move |memory| (s, memory)));
    for (sparsifier, memory) in pairs.chain(others) {
        // Some do not go together.
        let made = Codec::new(sparsifier, Quantizer::BFloat16, memory, IndexCoding::Auto);
        let Ok(codec) = made else { continue };
        let what = format!("{codec:?}");
        let (mut state, mut expected) =
            (codec.init_state(N).unwrap(), codec.init_state(N).unwrap());
        for x in &steps {
            let (x, mut frame) = (Input::F32(x), Vec::new());
            let mut workspace = Workspace::with(Kernels::current(), 1);
            codec.encode_into(x, &mut expected, None, &mut workspace, &mut frame).unwrap();
            let before = all_of(&state);
            let mut out = Vec::new();
            let state = std::cell::RefCell::new(&mut state);
            let mut workspaces: Vec<_> =
                (0..200).map(|_| Workspace::with(Kernels::current(), 1)).collect();
            let failed = every_allocation_fails(
                &what,
                || {
                    let mut workspace = workspaces.pop().unwrap();
                    out = Vec::new();
                    let mut state = state.borrow_mut();
                    codec.encode_into(x, &mut state, None, &mut workspace, &mut out).map(|_| ())
                },
                || assert_eq!(all_of(&state.borrow()), before, "{what}"),
            );
            assert!((1..200).contains(&failed), "{what}: {failed}");
            assert_eq!(out, frame, "{what}");
            assert_eq!(all_of(&state.borrow()), all_of(&expected), "{what}");
        }
    }
}

#[test]
fn scales_of_long_groups_and_given_positions_fail_alike() {
    let x = bell(N, 7);
    let positions: Vec<u32> = (0..N as u32).step_by(7).collect();
    let quantizers = [
        Quantizer::TwoMeans(TwoMeans { column: Some(40_000) }),
        Quantizer::Uniform(Uniform { bits: 4, block: 20_000, norm: Norm::L2, seed: 3 }),
    ];
    for quantizer in quantizers {
        let memory = Memory::Residual(Residual::PLAIN);
        for sparsifier in [Sparsifier::All, Sparsifier::TopK(TopK { amount: Amount::Ratio(0.1) })] {
            let codec = Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto).unwrap();
            let mut state = codec.init_state(N).unwrap();
            let mut workspaces: Vec<_> =
                (0..200).map(|_| Workspace::with(Kernels::current(), 1)).collect();
            let before = all_of(&state);
            let state = std::cell::RefCell::new(&mut state);
            every_allocation_fails(
                "given",
                || {
                    let (mut out, mut workspace) = (Vec::new(), workspaces.pop().unwrap());
                    let (mut state, input) = (state.borrow_mut(), Input::F32(&x));
                    if sparsifier == Sparsifier::All {
                        codec
                            .encode_into(input, &mut state, None, &mut workspace, &mut out)
                            .map(|_| ())
                    } else {
                        let support = gradwire_core::codec::Support {
                            positions: &positions,
                            may_trim: false,
                        };
                        codec
                            .encode_at(input, &mut state, support, None, &mut workspace, &mut out)
                            .map(|_| ())
                    }
                },
                || assert_eq!(all_of(&state.borrow()), before),
            );
        }
    }
}

#[test]
fn a_state_is_made_and_flushed_or_not() {
    for memory in memories() {
        let sparsifier = Sparsifier::Threshold(Threshold { threshold: 1.0 });
        let codec = Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
        let failed = every_allocation_fails("init", || codec.init_state(N).map(|_| ()), || ());
        assert!(failed > 0);
        let mut state = codec.init_state(N).unwrap();
        state.set_residual(&bell(N, 1)).unwrap();
        // What there is is used again: without any memory at all.
        let before = all_of(&state);
        let state = std::cell::RefCell::new(state);
        if !matches!(memory, Memory::Estimate(_)) {
            every_allocation_fails(
                "flush",
                || codec.flush_into(&mut state.borrow_mut(), &mut Vec::new()).map(|_| ()),
                || assert_eq!(all_of(&state.borrow()), before),
            );
        }
        with_memory_for(0, || state.borrow_mut().reset());
        assert_eq!(all_of(&state.borrow()), all_of(&codec.init_state(N).unwrap()));
    }
}

#[test]
fn a_decode_fails_with_the_tensor_as_it_was() {
    let x = bell(N, 9);
    for indices in
        [IndexCoding::Auto, IndexCoding::EliasFano, IndexCoding::Rice, IndexCoding::Bitmap]
    {
        for sparsifier in sparsifiers() {
            let (quantizer, memory) =
                (Quantizer::TwoMeans(TwoMeans { column: Some(999) }), Memory::None);
            let codec = Codec::new(sparsifier, quantizer, memory, indices).unwrap();
            let mut state = codec.init_state(N).unwrap();
            let (mut frame, mut workspace) = (Vec::new(), Workspace::default());
            codec
                .encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut frame)
                .unwrap();
            let frame = Frame::parse(&frame, None).unwrap();
            let out = std::cell::RefCell::new(vec![1.0; N]);
            let untouched = || assert!(out.borrow().iter().all(|&value| value == 1.0));
            let decode = || frame.decode_into(&mut out.borrow_mut(), &mut Scratch::default());
            every_allocation_fails("decode", decode, untouched);
            out.borrow_mut().fill(1.0);
            let add = || frame.decode_add(&mut out.borrow_mut(), 0.5, &mut Scratch::default());
            every_allocation_fails("add", add, untouched);
            every_allocation_fails("indices", || frame.indices_into(&mut Vec::new()), || ());
            every_allocation_fails("values", || frame.values_into(&mut Vec::new()), || ());
        }
    }
}
