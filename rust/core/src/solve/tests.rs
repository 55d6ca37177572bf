use std::sync::atomic::AtomicBool;

use super::*;
use crate::quantize::{Affine, AffineFit, Quantizer, Rounding};
use crate::reference::solve::{self as naive, Grid};
use crate::rng::Key;
use crate::simd::{Kernels, available_levels};
use crate::{Error, Result};

static GO_ON: AtomicBool = AtomicBool::new(false);

fn unit(key: u64, i: usize) -> f64 {
    f64::from(Key::from_bits(key).unit(i as u32)) - 0.5
}

/// Weights, some of which are large.
pub(super) fn weights(rows: usize, cols: usize) -> Vec<f32> {
    let large = |i: usize| if unit(2, i) > 0.49 { 8.0 } else { 1.0 };
    (0..rows * cols).map(|i| ((unit(1, i) + unit(1, i + 99_999)) * large(i)) as f32).collect()
}

/// The Gram matrix of inputs that go together, some much larger than others.
pub(super) fn gram(cols: usize) -> Vec<f64> {
    let samples = 2 * cols;
    let scale = |i: usize| if i.is_multiple_of(17) { 4.0 } else { 1.0 };
    let input = |s: usize, i: usize| {
        scale(i) * (unit(3, s * cols + i) + unit(4, s * cols + i / 4) + 2.0 * unit(5, s))
    };
    let inputs: Vec<f64> = (0..samples * cols).map(|at| input(at / cols, at % cols)).collect();
    let mut gram = vec![0.0; cols * cols];
    for sample in inputs.chunks(cols) {
        for (i, line) in gram.chunks_mut(cols).enumerate() {
            for (to, x) in line.iter_mut().zip(sample) {
                *to += sample[i] * x;
            }
        }
    }
    gram
}

fn affine(bits: u8, block: usize, fit: AffineFit) -> Quantizer {
    let block = Some(block as u32);
    Affine { bits, block, fit, rounding: Rounding::Nearest, seed: 0 }.into()
}

fn grids(solved: &Solved) -> Vec<Grid> {
    let pairs = solved.steps.iter().zip(&solved.bases);
    pairs.map(|(&step, &base)| [f64::from(step), f64::from(base)]).collect()
}

/// The objective of each row.
fn objectives(weights: &[f32], matrix: &[f64], solved: &Solved) -> Vec<f64> {
    let cols = matrix.len().isqrt();
    let (grids, rows) = (grids(solved), weights.len() / cols);
    let wide = grids.len() / rows;
    (0..rows)
        .map(|row| {
            let values =
                naive::values(&solved.codes[row * cols..][..cols], &grids[row * wide..][..wide]);
            let row: Vec<f64> =
                weights[row * cols..][..cols].iter().map(|&w| f64::from(w)).collect();
            naive::objective(&row, &values, matrix)
        })
        .collect()
}

fn total(weights: &[f32], matrix: &[f64], solved: &Solved) -> f64 {
    objectives(weights, matrix, solved).iter().sum()
}

fn with(start: Start, sweeps: u32) -> Comq {
    Comq { sweeps, start, bases: true }
}

pub(super) fn error(result: Result<impl Sized>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn gptq_without_an_inverse_gives_the_codes_of_the_published_formula() {
    for (cols, block, bits) in [(48, 16, 3), (300, 300, 2), (260, 20, 4)] {
        let (rows, gram) = (7, gram(cols));
        let weights = weights(rows, cols);
        let layer =
            Layer::new(&weights, cols, &gram, affine(bits, block, AffineFit::Range), 0.01).unwrap();
        let solved = gptq(&layer, &GO_ON).unwrap();
        let (grids, matrix) = (grids(&solved), naive::damped(&gram, 0.01));
        let wide = cols / block;
        let mut expected = solved.clone();
        for row in 0..rows {
            let values: Vec<f64> =
                weights[row * cols..][..cols].iter().map(|&w| f64::from(w)).collect();
            let codes = naive::gptq(&values, &grids[row * wide..][..wide], bits, &matrix);
            expected.codes[row * cols..][..cols].copy_from_slice(&codes);
        }
        let same = solved.codes.iter().zip(&expected.codes).filter(|(a, b)| a == b).count();
        assert!(
            same as f64 >= 0.995 * solved.codes.len() as f64,
            "{same} of {}",
            solved.codes.len()
        );
        let [ours, theirs] = [&solved, &expected].map(|s| total(&weights, &matrix, s));
        assert!((ours / theirs - 1.0).abs() < if same == solved.codes.len() { 1e-9 } else { 1e-2 });
    }
}

/// Row by row; and every number is one of float16 times the power of the frame.
#[test]
fn no_sweep_makes_any_row_worse_and_no_row_is_worse_than_its_starts() {
    let (rows, cols) = (37, 96);
    let (weights, gram) = (weights(rows, cols), gram(cols));
    let matrix = naive::damped(&gram, 0.01);
    let fits = [AffineFit::Range, AffineFit::Zero, AffineFit::Sawb, AffineFit::Squares];
    for (i, fit) in fits.into_iter().enumerate() {
        for (bits, block) in [(2, 96), (3, 32), (4, 12)] {
            let layer = Layer::new(&weights, cols, &gram, affine(bits, block, fit), 0.01).unwrap();
            let bases = i % 2 == 0 || bits == 3;
            let descended = |start, sweeps| {
                let options = Comq { bases, ..with(start, sweeps) };
                objectives(&weights, &matrix, &comq(&layer, options, &GO_ON).unwrap())
            };
            let dead = vec![0.0; cols * cols];
            let nearest = Layer::new(&weights, cols, &dead, affine(bits, block, fit), 0.0).unwrap();
            let starts = [gptq(&layer, &GO_ON).unwrap(), gptq(&nearest, &GO_ON).unwrap()]
                .map(|start| objectives(&weights, &matrix, &start));
            for start in [Start::Gptq, Start::Nearest] {
                let mut before: Vec<f64> = starts[1].clone();
                if start == Start::Gptq {
                    before = before.iter().zip(&starts[0]).map(|(a, b)| a.min(*b)).collect();
                }
                for sweeps in [1, 2, 5] {
                    let after = descended(start, sweeps);
                    let pairs = after.iter().zip(&before);
                    assert!(
                        pairs.clone().all(|(a, b)| *a <= b * (1.0 + 1e-6)),
                        "{fit:?} {bits} {sweeps}"
                    );
                    let sums = [&after, &before].map(|x| x.iter().sum::<f64>());
                    assert!(sweeps > 1 || sums[0] < sums[1]);
                    before = after;
                }
            }
        }
    }
}

/// At the end, no code alone can be better, and no step and base of a block.
#[test]
fn descent_ends_where_no_code_and_no_grid_is_better_alone() {
    let (rows, cols, bits) = (33, 40, 3);
    let (weights, gram) = (weights(rows, cols), gram(cols));
    let matrix = naive::damped(&gram, 0.01);
    let layer =
        Layer::new(&weights, cols, &gram, affine(bits, cols, AffineFit::Range), 0.01).unwrap();
    let solved = comq(&layer, with(Start::Gptq, 100), &GO_ON).unwrap();
    let (found, grids) = (objectives(&weights, &matrix, &solved), grids(&solved));
    for (row, found) in found.iter().enumerate() {
        let values: Vec<f64> =
            weights[row * cols..][..cols].iter().map(|&w| f64::from(w)).collect();
        let codes = &solved.codes[row * cols..][..cols];
        let grid = grids[row];
        let best = naive::descent(&values, &[grid], bits, &matrix, codes.to_vec());
        let of =
            |codes: &[u8], grid| naive::objective(&values, &naive::values(codes, &[grid]), &matrix);
        assert!(*found <= of(&best, grid) * (1.0 + 1e-4), "{row}");
        let refitted = naive::refit(&values, grid, &matrix, codes);
        assert!(*found <= of(codes, refitted) * 1.01, "{row} {found} {}", of(codes, refitted));
    }
}

#[test]
fn neither_the_level_nor_the_threads_change_anything() {
    // More than a group of strips, more than a panel of the factor, and a row that is a block.
    for (rows, cols, block) in [(150, 272, 16), (40, 200, 200)] {
        let (weights, gram) = (weights(rows, cols), gram(cols));
        let layer =
            Layer::new(&weights, cols, &gram, affine(2, block, AffineFit::Range), 0.01).unwrap();
        let expected = layer.with(Kernels::current(), 1);
        let expected = [gptq(&expected, &GO_ON), comq(&expected, with(Start::Gptq, 2), &GO_ON)]
            .map(Result::unwrap);
        for level in available_levels() {
            for threads in [1, 3] {
                let layer = layer.with(Kernels::of(level).unwrap(), threads);
                assert_eq!(gptq(&layer, &GO_ON).unwrap(), expected[0], "{level:?} {threads}");
                let found = comq(&layer, with(Start::Gptq, 2), &GO_ON).unwrap();
                assert_eq!(found, expected[1], "{level:?} {threads}");
            }
        }
    }
}

#[test]
fn weights_of_inputs_that_are_always_zero_are_rounded_to_the_nearest() {
    let (rows, cols, block) = (5, 64, 32);
    let (weights, mut gram) = (weights(rows, cols), gram(cols));
    let dead = [3, 40, 41];
    for i in dead {
        for j in 0..cols {
            (gram[i * cols + j], gram[j * cols + i]) = (0.0, 0.0);
        }
    }
    for damp in [0.0, 0.01] {
        let layer =
            Layer::new(&weights, cols, &gram, affine(3, block, AffineFit::Range), damp).unwrap();
        let solved = [gptq(&layer, &GO_ON), comq(&layer, with(Start::Nearest, 3), &GO_ON)]
            .map(Result::unwrap);
        for solved in solved {
            for (row, column) in (0..rows).flat_map(|row| dead.map(|column| (row, column))) {
                let grid = grids(&solved)[row * 2 + column / block];
                let weight = f64::from(weights[row * cols + column]);
                let code = naive::nearest(grid, 3, weight);
                assert_eq!(solved.codes[row * cols + column], code, "{row} {column}");
            }
        }
    }
}

#[test]
fn what_cannot_be_solved_is_refused_with_what_to_do() {
    let (cols, weights) = (8, weights(2, 8));
    let good = gram(cols);
    let range = affine(3, 8, AffineFit::Range);
    let new =
        |gram: &[f64], quantizer, damp| error(Layer::new(&weights, cols, gram, quantizer, damp));
    let changed = |at: usize, value: f64| {
        let mut gram = good.clone();
        gram[at] = value;
        gram
    };
    assert!(new(&good[1..], range, 0.0).contains("give 8 rows and columns"));
    assert!(new(&changed(3, f64::NAN), range, 0.0).contains("gram[0, 3] is NaN"));
    assert!(new(&changed(9, -1.0), range, 0.0).contains("gram[1, 1] is -1"));
    assert!(new(&changed(3, 1e3), range, 0.0).contains("not symmetric: [3, 0]"));
    assert!(new(&good, range, -0.5).contains("damp must be"));
    assert!(new(&good, range, f64::NAN).contains("damp must be"));
    assert!(new(&good, affine(3, 16, AffineFit::Range), 0.0).contains("at most a row"));
    assert!(new(&good, affine(3, 3, AffineFit::Range), 0.0).contains("at most a row"));
    let layer = Layer::new(&weights, cols, &good, range, 0.01).unwrap();
    assert!(error(comq(&layer, with(Start::Gptq, 0), &GO_ON)).contains("sweeps"));
    // Of one input, all others are multiples.
    let singular = vec![1.0; 64];
    let layer = Layer::new(&weights, cols, &singular, range, 0.0).unwrap();
    assert!(error(gptq(&layer, &GO_ON)).contains("larger damp"));
    assert!(comq(&layer, with(Start::Nearest, 2), &GO_ON).is_ok());
    let stop = AtomicBool::new(true);
    assert!(matches!(gptq(&layer, &stop), Err(Error::CalledOff)));
    let weights = [1.0, f32::NAN, f32::INFINITY, 0.0, 1.0, 1.0, 1.0, 1.0];
    let refused = Layer::new(&weights, cols, &good, range, 0.0).map(drop);
    assert_eq!(refused, Err(Error::NonFinite { count: 2, first: 1 }));
}

#[test]
fn constant_and_tiny_and_huge_weights_are_solved() {
    let (cols, gram) = (32, gram(32));
    for scale in [0.0, 1e-40, 1e-20, 1.0, 1e35] {
        for wide in [false, true] {
            let weights: Vec<f32> =
                (0..64).map(|i| scale * if wide { unit(8, i) as f32 } else { 0.5 }).collect();
            for fit in [AffineFit::Range, AffineFit::Zero, AffineFit::Sawb] {
                let layer = Layer::new(&weights, cols, &gram, affine(4, 16, fit), 0.01).unwrap();
                let solved = comq(&layer, with(Start::Gptq, 3), &GO_ON).unwrap();
                let all = solved.steps.iter().chain(&solved.bases);
                assert!(all.clone().all(|x| x.is_finite()), "{scale} {fit:?}");
                let lost = total(&weights, &gram, &solved);
                let norm: f64 = weights
                    .chunks(cols)
                    .map(|row| {
                        let row: Vec<f64> = row.iter().map(|&w| f64::from(w)).collect();
                        naive::objective(&row, &vec![0.0; cols], &gram)
                    })
                    .sum();
                assert!(lost <= 0.01 * norm + 1e-80, "{scale} {wide} {fit:?} {}", lost / norm);
            }
        }
    }
}
