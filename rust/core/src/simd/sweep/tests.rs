//! A sweep of every type of elements, memory and mode: to the last bit what the single kernels give.

use half::{bf16, f16};

use super::*;
use crate::Input;
use crate::buffer::Buffer;
use crate::rng::Key;
use crate::simd::above::SLACK;
use crate::simd::testing::{levels_and_lengths, tensor};
use crate::simd::{Kernels, Level, adam, momentum};

const BETA: f32 = 0.3;
const DECAY: f32 = 0.9;
const RULE: adam::Rule =
    adam::Rule { keep: 0.9, take: 0.1, correction: 1.5, eps: 1e-8, least: 0.47, rate: 0.5 };

/// All that a sweep leaves behind.
#[derive(Debug, PartialEq)]
struct Outcome {
    found: Found,
    lanes: moments::Lanes,
    sum: Vec<u32>,
    /// The next second moment, or what a filter takes in.
    beside: Vec<u32>,
    /// The residual, where it stays.
    kept: Vec<u32>,
    /// What becomes of a residual in bfloat16.
    next: Vec<bf16>,
    indices: Vec<u32>,
    values: Vec<u32>,
}

/// What elements are added to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Memory {
    None,
    Residual,
    Steps,
    Momentum {
        nesterov: bool,
        stays: bool,
    },
    /// In bfloat16, of which nothing is kept.
    Widened,
    /// The same, rounded from this position on: the sums, or what a filter takes in.
    Rounded {
        filters: bool,
        first: u32,
    },
}

#[derive(Debug, Clone, Copy)]
struct Mode {
    memory: Memory,
    streams: bool,
    sums: bool,
}

/// Every mode, rounded from the beginning of a group and from elsewhere.
fn modes() -> Vec<Mode> {
    let mut memories = vec![Memory::None, Memory::Residual, Memory::Steps, Memory::Widened];
    for nesterov in [false, true] {
        memories.extend([false, true].map(|stays| Memory::Momentum { nesterov, stays }));
    }
    for first in [0, 192, 7, u32::MAX - 63] {
        memories.extend([false, true].map(|filters| Memory::Rounded { filters, first }));
    }
    let flags = [(false, false), (false, true), (true, false), (true, true)];
    let of = |memory| flags.map(|(streams, sums)| Mode { memory, streams, sums });
    memories.into_iter().flat_map(of).collect()
}

/// A residual, the same in bfloat16, and a second moment.
fn pasts(len: usize) -> (Vec<f32>, Vec<bf16>, Vec<f32>) {
    let residual = tensor(len, 31);
    let narrow = residual.iter().map(|v| bf16::from_f32(*v)).collect();
    (residual, narrow, tensor(len, 32).into_iter().map(f32::abs).collect())
}

/// A location that goes with a bound: below it, or none.
fn location(bound: f32) -> f32 {
    if bound < 1.0 { 0.5 * bound } else { 0.0 }
}

fn key() -> Key {
    Key::new(1, 2, 3, 4)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

fn sweep(kernels: &Kernels, x: Input<'_>, bound: f32, mode: Mode) -> Outcome {
    let n = x.len();
    let (old, narrow, second) = pasts(n);
    let [mut sum, mut beside, mut kept] = [0; 3].map(|_| Buffer::zeros(n).unwrap());
    let mut next = Buffer::<bf16>::zeros(n).unwrap();
    let (mut indices, mut values) = (vec![0; n + SLACK], vec![0.0; n + SLACK]);
    let mut lanes = moments::Lanes::default();
    let moments = mode.sums.then_some((location(bound), &mut lanes));
    let gather = Gather { moments, bound, base: 5, indices: &mut indices, values: &mut values };
    let found = kernels.streaming(|streaming| {
        let streams = mode.streams.then_some(streaming);
        let (sum, beside) = (sum.as_mut_slice(), beside.as_mut_slice());
        let addend = match mode.memory {
            Memory::None => Addend::None,
            Memory::Residual => {
                Addend::Residual(Feedback { residual: &old, decay: DECAY, sum, streams })
            }
            Memory::Steps => {
                let moment = Moment { second: &second, next: beside, rule: RULE };
                Addend::Steps(moment, Feedback { residual: &old, decay: 1.0, sum, streams })
            }
            Memory::Momentum { nesterov, stays } => {
                let stays = if stays { kept.as_mut_slice() } else { &mut [] };
                let rule = momentum::Rule { momentum: BETA, nesterov, scale: 0.7 };
                let moved = Momentum { momentum: &second, next: beside, stays, rule };
                Addend::Momentum(moved, Feedback { residual: &old, decay: -1.0, sum, streams })
            }
            Memory::Widened => {
                Addend::Rounded(Rounded { residual: &narrow, decay: DECAY, sum, keep: None })
            }
            Memory::Rounded { filters, first } => {
                let (next, filter) = (next.as_mut_slice(), filters.then_some((BETA, beside)));
                let keep = Some(Keep { next, filter, key: key(), first, streams });
                Addend::Rounded(Rounded { residual: &narrow, decay: DECAY, sum, keep })
            }
        };
        kernels.sweep(x, addend, gather)
    });
    Outcome {
        found,
        lanes,
        sum: bits(sum.as_slice()),
        beside: bits(beside.as_slice()),
        kept: bits(kept.as_slice()),
        next: next.as_slice().to_vec(),
        indices: indices[..found.count].to_vec(),
        values: bits(&values[..found.count]),
    }
}

/// The same by the single kernels.
fn one_by_one(x: &[f32], bound: f32, mode: Mode) -> Outcome {
    let (kernels, n) = (Kernels::of(Level::Scalar).unwrap(), x.len());
    let (residual, narrow, second) = pasts(n);
    let [mut old, mut step, mut sum, mut beside, mut kept] = [0; 5].map(|_| vec![0.0; n]);
    let mut next = vec![bf16::ZERO; n];
    match mode.memory {
        Memory::None => {}
        Memory::Residual => kernels.add(&mut sum, x, &residual, DECAY),
        Memory::Steps => {
            kernels.adam(&mut beside, &mut step, x, &second, RULE);
            kernels.add(&mut sum, &step, &residual, 1.0);
        }
        Memory::Momentum { nesterov, stays } => {
            let rule = momentum::Rule { momentum: BETA, nesterov, scale: 0.7 };
            kernels.momentum(&mut beside, &mut step, x, &second, rule);
            kernels.add(&mut sum, &step, &residual, -1.0);
            if stays {
                kept.copy_from_slice(&residual);
            }
        }
        Memory::Widened | Memory::Rounded { .. } => {
            kernels.widen_bf16(&narrow, &mut old);
            kernels.add(&mut sum, x, &old, DECAY);
        }
    }
    if let Memory::Rounded { filters, first } = mode.memory {
        if filters {
            kernels.add(&mut beside, &old, x, BETA);
        }
        kernels.dither(if filters { &beside } else { &sum }, key(), first, &mut next);
    }
    let block = if mode.memory == Memory::None { x } else { &sum };
    let mut lanes = moments::Lanes::default();
    if mode.sums {
        kernels.moments(block, location(bound), &mut lanes);
    }
    let (mut indices, mut values) = (vec![0; n + SLACK], vec![0.0; n + SLACK]);
    let count = kernels.above(block, bound, 5, &mut indices, &mut values);
    Outcome {
        found: Found { peak: kernels.peak(block), count },
        lanes,
        sum: bits(&sum),
        beside: bits(&beside),
        kept: bits(&kept),
        next,
        indices: indices[..count].to_vec(),
        values: bits(&values[..count]),
    }
}

#[test]
fn equals_the_single_kernels_for_every_type_on_every_level() {
    levels_and_lengths(|kernels, mut x| {
        if let Some(first) = x.first_mut() {
            *first = 3e38;
        }
        let double: Vec<f64> = x.iter().map(|v| f64::from(*v) * (1.0 + 1e-9)).collect();
        let half: Vec<f16> = x.iter().map(|v| f16::from_f32(v.clamp(-6e4, 6e4))).collect();
        let brain: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
        for (input, plain) in [
            (Input::F32(&x), x.clone()),
            (Input::F64(&double), double.iter().map(|v| *v as f32).collect()),
            (Input::F16(&half), half.iter().map(|v| v.to_f32()).collect()),
            (Input::BF16(&brain), brain.iter().map(|v| v.to_f32()).collect()),
        ] {
            for mode in modes() {
                for bound in [0.0, 0.3, 1e29, f32::INFINITY] {
                    let expected = one_by_one(&plain, bound, mode);
                    let found = sweep(kernels, input, bound, mode);
                    assert_eq!(found, expected, "{:?} {mode:?} {bound}", input.dtype());
                }
            }
        }
    });
}

#[test]
fn shows_what_is_not_finite_in_any_type() {
    levels_and_lengths(|kernels, mut x| {
        let mut half = vec![f16::ONE; x.len()];
        let (mut brain, mut double) = (vec![bf16::ONE; x.len()], vec![1.0; x.len()]);
        for i in (0..x.len()).step_by(5) {
            let kept = x[i];
            // Beyond float32, a double is infinite.
            (half[i], brain[i], double[i]) = (f16::NAN, bf16::NEG_INFINITY, -1e300);
            for bad in [f32::NAN, f32::INFINITY] {
                x[i] = bad;
                let inputs =
                    [Input::F32(&x), Input::F16(&half), Input::BF16(&brain), Input::F64(&double)];
                for memory in [Memory::None, Memory::Residual, Memory::Steps, Memory::Widened] {
                    for input in inputs {
                        let mode = Mode { memory, streams: true, sums: false };
                        let Found { peak, .. } = sweep(kernels, input, 0.3, mode).found;
                        assert!(peak >= crate::simd::peak::NON_FINITE, "{mode:?}");
                    }
                }
            }
            (x[i], half[i], brain[i], double[i]) = (kept, f16::ONE, bf16::ONE, 1.0);
        }
    });
}
