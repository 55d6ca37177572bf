//! Whole encodes on numbers of threads that share a tensor unevenly: the same frame and state.

use super::*;
use crate::memory::{AdamCorrection, LowPass, Storage};
use crate::scan::CHUNK;

const THREADS: [usize; 3] = [1, 3, 7];

/// Frames, residual and moment after two steps.
type Outcome = (Vec<Vec<u8>>, Vec<u32>, Vec<u32>);

fn run(codec: &Codec, gradients: &[Vec<f32>], threads: usize) -> Outcome {
    let mut state = codec.init_state(gradients[0].len()).unwrap();
    let mut workspace = Workspace::with(Kernels::current(), threads);
    workspace.scanner.grain = CHUNK;
    let mut frames = Vec::new();
    for gradient in gradients {
        let mut frame = Vec::new();
        let input = Input::F32(gradient);
        codec.encode_into(input, &mut state, None, &mut workspace, &mut frame).unwrap();
        frames.push(frame);
    }
    let of = |values: Option<&[f32]>| bits(values.unwrap_or_default());
    let residual = match state.stored_residual() {
        Some(Input::BF16(values)) => values.iter().map(|v| v.to_bits().into()).collect(),
        _ => of(state.residual()),
    };
    (frames, residual, of(state.momentum().or(state.second_moment())))
}

fn check(codecs: Vec<Codec>, len: usize) {
    let gradients: Vec<_> = (0..2).map(|step| gradient(len, step)).collect();
    for codec in codecs {
        let mut outcomes = THREADS.iter().map(|&threads| run(&codec, &gradients, threads));
        let expected = outcomes.next().unwrap();
        assert!(outcomes.all(|outcome| outcome == expected), "{codec:?} {len}");
    }
}

/// Groups of no, some and all entries, short and long, at a length around the boundary of a chunk.
#[test]
fn dense_frames_are_the_same_on_any_number_of_threads() {
    for memory in Memory::examples() {
        check(compose(&[Sparsifier::All], &Quantizer::examples(), memory), 7 * CHUNK + 1);
    }
}

#[test]
fn selections_are_the_same_on_any_number_of_threads() {
    let filter = Memory::LowPass(LowPass { beta: 0.3, ..LowPass::PLAIN });
    let storage = Storage::BFloat16 { seed: 0 };
    let adam = |storage| AdamCorrection { beta2: 0.999, eps: 1e-8, storage };
    let [adam, low] = [Storage::Float32, storage].map(|s| Memory::AdamCorrection(adam(s)));
    let rounded = Memory::Residual(Residual { storage, ..Residual::PLAIN });
    for memory in [Memory::None, FEEDBACK, filter, adam, low, rounded] {
        check(compose(&sparsifiers(), &[Quantizer::BFloat16], memory), 6 * CHUNK + 120);
    }
}
