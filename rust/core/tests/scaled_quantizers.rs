//! Quantizers with scales: what they send against the oracles, how large it is, and what chance
//! makes of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::disallowed_methods, reason = "powers of two are exact, and bounds need not be")]

#[allow(dead_code, reason = "a part of it is used here")]
mod laws;

use gradwire_core::codec::{Codec, State, Workspace};
use gradwire_core::frame::{Frame, HEADER_LEN, Scratch};
use gradwire_core::memory::{Memory, Residual};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::{Magnitude, Norm, Quantizer, SignScale, Ternary, TwoMeans, Uniform};
use gradwire_core::reference;
use gradwire_core::simd::{Kernels, available_levels};
use gradwire_core::sparsify::{Amount, Sparsifier, Threshold, TopK};
use gradwire_core::{Error, Input};
use laws::{Case, Source};

const TOP: Sparsifier = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.05) });
const RESIDUAL: Memory = Memory::Residual(Residual::PLAIN);

fn gradient(law: usize, numel: usize) -> Vec<f32> {
    let mut x = Vec::new();
    Source::new(Case::stationary()[law], numel.max(64)).next_into(&mut x);
    x.truncate(numel);
    x
}

fn codec(sparsifier: Sparsifier, quantizer: Quantizer, memory: Memory) -> Codec {
    Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto).unwrap()
}

fn encode(codec: &Codec, x: &[f32], state: &mut State) -> Vec<u8> {
    let (mut out, mut workspace) = (Vec::new(), Workspace::default());
    codec.encode_into(Input::F32(x), state, None, &mut workspace, &mut out).unwrap();
    assert!(out.len() <= codec.max_encoded_len(x.len()));
    out
}

fn once(codec: &Codec, x: &[f32]) -> Vec<u8> {
    encode(codec, x, &mut codec.init_state(x.len()).unwrap())
}

fn entries(frame: &[u8]) -> (Vec<u32>, Vec<f32>) {
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    let frame = Frame::parse(frame, None).unwrap();
    frame.indices_into(&mut indices).unwrap();
    frame.values_into(&mut values).unwrap();
    (indices, values)
}

fn assert_near(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= 1e-7 * expected.abs() + 1e-45, "{i}: {found} for {expected}");
    }
}

/// Section 9.4, mistake 8: means of every column from the rows of the first.
#[test]
fn onebit_takes_the_means_of_every_row_of_the_right_column() {
    // Columns of very different scale and offset, of several hundred rows each.
    let (rows, columns) = (431, 19);
    let mut x = gradient(0, rows * columns);
    for (c, column) in x.chunks_mut(rows).enumerate() {
        let (scale, offset) = (10_f32.powi(c as i32 - 9), c as f32 * 0.1 - 0.9);
        for v in column {
            *v = (*v + offset) * scale;
        }
    }
    let quantizer = Quantizer::TwoMeans(TwoMeans { column: Some(rows as u32) });
    for memory in [Memory::None, RESIDUAL] {
        let frame = once(&codec(Sparsifier::All, quantizer, memory), &x);
        let (positions, values) = entries(&frame);
        assert_near(&values, &reference::two_means(&positions, &x, rows));
        // One bit an entry, and two float32 a column.
        assert_eq!(frame.len(), HEADER_LEN + 4 + 8 * columns + (rows * columns).div_ceil(8));
    }
}

#[test]
fn two_means_of_a_selection_are_those_of_its_columns() {
    let (x, column) = (gradient(4, 30_000), 700);
    let codec = codec(TOP, Quantizer::TwoMeans(TwoMeans { column: Some(column) }), RESIDUAL);
    let mut state = codec.init_state(x.len()).unwrap();
    let (positions, values) = entries(&encode(&codec, &x, &mut state));
    let selected: Vec<f32> = positions.iter().map(|&p| x[p as usize]).collect();
    assert_eq!(positions, reference::largest(&x, 1500));
    assert_near(&values, &reference::two_means(&positions, &selected, column as usize));
    let left = state.residual().unwrap();
    for (&p, &sent) in positions.iter().zip(&values) {
        assert_eq!(left[p as usize], x[p as usize] - sent);
    }
}

#[test]
fn signs_go_with_the_mean_or_the_root_of_the_mean_square_or_what_the_selector_says() {
    let x = gradient(1, 5000);
    let send = |sparsifier, magnitude| {
        entries(&once(
            &codec(sparsifier, Quantizer::SignScale(SignScale { magnitude }), RESIDUAL),
            &x,
        ))
    };
    let (_, values) = send(Sparsifier::All, Magnitude::Mean);
    assert_near(&values, &reference::sign_mean(&x));
    let (_, values) = send(Sparsifier::All, Magnitude::RootMeanSquare);
    assert_near(&values, &reference::sign_rms(&x));
    let (positions, values) =
        send(Sparsifier::Threshold(Threshold { threshold: 1.5 }), Magnitude::Selector);
    assert_eq!(positions, reference::above(&x, 1.5));
    assert!(positions.iter().zip(values).all(|(&p, v)| v == 1.5_f32.copysign(x[p as usize])));
    let (positions, values) = send(TOP, Magnitude::Mean);
    let selected: Vec<f32> = positions.iter().map(|&p| x[p as usize]).collect();
    assert_near(&values, &reference::sign_mean(&selected));
}

#[test]
fn a_magnitude_that_nobody_says_is_refused() {
    let quantizer = Quantizer::SignScale(SignScale { magnitude: Magnitude::Selector });
    for sparsifier in [Sparsifier::All, TOP] {
        let result = Codec::new(sparsifier, quantizer, RESIDUAL, IndexCoding::Auto);
        assert!(matches!(result, Err(Error::Argument { .. })));
    }
    for bad in [
        Quantizer::Uniform(Uniform { bits: 1, block: 8, norm: Norm::L2, seed: 0 }),
        Quantizer::Uniform(Uniform { bits: 9, block: 8, norm: Norm::L2, seed: 0 }),
        Quantizer::Uniform(Uniform { bits: 4, block: 0, norm: Norm::L2, seed: 0 }),
        Quantizer::TwoMeans(TwoMeans { column: Some(0) }),
        Quantizer::Ternary(Ternary { clip: Some(0.0), seed: 0 }),
        Quantizer::Ternary(Ternary { clip: Some(f32::NAN), seed: 0 }),
    ] {
        let result = Codec::new(Sparsifier::All, bad, RESIDUAL, IndexCoding::Auto);
        assert!(matches!(result, Err(Error::Argument { .. })), "{bad:?}");
    }
}

#[test]
fn entries_really_take_two_b_and_one_bits() {
    for numel in [1, 7, 8, 9, 511, 512, 513, 10_001] {
        let x = gradient(0, numel);
        let len = |quantizer| once(&codec(Sparsifier::All, quantizer, RESIDUAL), &x).len();
        let bits = |bits: usize| (numel * bits).div_ceil(8);
        let sign = Quantizer::SignScale(SignScale { magnitude: Magnitude::Mean });
        assert_eq!(len(sign), HEADER_LEN + 4 + bits(1));
        assert_eq!(
            len(Quantizer::TwoMeans(TwoMeans { column: None })),
            HEADER_LEN + 4 + 8 + bits(1)
        );
        assert_eq!(
            len(Quantizer::Ternary(Ternary { clip: None, seed: 1 })),
            HEADER_LEN + 4 + bits(2)
        );
        for b in 2..=8 {
            let quantizer =
                Quantizer::Uniform(Uniform { bits: b, block: 100, norm: Norm::Max, seed: 1 });
            let expected = HEADER_LEN + 8 + 4 * numel.div_ceil(100) + bits(usize::from(b));
            assert_eq!(len(quantizer), expected);
        }
    }
}

/// Encodes the same tensor again and again, and holds the sum of errors, and of their squares, to
/// what two-valued rounding with the right probability makes of them: four standard errors.
fn holds_to_chance(quantizer: Quantizer, x: &[f32], levels: f64, scale: impl Fn(usize) -> f64) {
    const STEPS: usize = 300;
    let codec = codec(Sparsifier::All, quantizer, Memory::None);
    let mut state = codec.init_state(x.len()).unwrap();
    let (mut error, mut variance) = (0.0, 0.0);
    let (mut squares, mut expected, mut spread) = (0.0, 0.0, 0.0);
    // Each entry on its own: its mean over the steps, in standard errors of its own.
    let mut sums = vec![0.0; x.len()];
    for _ in 0..STEPS {
        let (_, values) = entries(&encode(&codec, x, &mut state));
        for (i, (&x, &sent)) in x.iter().zip(&values).enumerate() {
            let (low, high, p) = reference::neighbours(f64::from(x), scale(i), levels);
            let sent = f64::from(sent);
            let near = |level: f64| (sent - level).abs() <= 1e-6 * level.abs();
            assert!(near(low) || near(high), "{x} became {sent}, between {low} and {high}");
            let mean = low + p * (high - low);
            let (a, b) = ((low - mean).powi(2), (high - mean).powi(2));
            let second = (1.0 - p) * a + p * b;
            let fourth = (1.0 - p) * a * a + p * b * b;
            error += sent - mean;
            variance += second;
            squares += (sent - mean).powi(2);
            expected += second;
            spread += fourth - second * second;
            sums[i] += sent - mean;
        }
    }
    assert!(error.abs() <= 4.0 * variance.sqrt(), "bias {error}, {quantizer:?}");
    assert!((squares - expected).abs() <= 4.0 * spread.sqrt(), "{squares} for {expected}");
    let mut wild = 0;
    for (i, (sum, &x)) in sums.iter().zip(x).enumerate() {
        let (low, high, p) = reference::neighbours(f64::from(x), scale(i), levels);
        let deviation = (p * (1.0 - p) * STEPS as f64).sqrt() * (high - low).abs();
        wild += usize::from(sum.abs() > 4.0 * deviation + 1e-5 * scale(i));
    }
    // Beyond four standard errors are 6 of 100 000, somewhat more where p is small.
    assert!(wild * 200 <= x.len(), "{wild} entries are biased");
}

#[test]
fn uniform_is_unbiased_with_the_variance_of_its_grid() {
    let x = gradient(0, 3000);
    for (bits, norm) in [(2, Norm::Max), (3, Norm::L2), (4, Norm::L2), (8, Norm::Max)] {
        let block = 250;
        let scale = |i: usize| {
            let block = &x[i / block * block..][..block];
            let squares: f64 = block.iter().map(|&v| f64::from(v).powi(2)).sum();
            let peak = block.iter().fold(0.0_f64, |peak, &v| peak.max(f64::from(v).abs()));
            if norm == Norm::L2 { squares.sqrt() } else { peak }
        };
        let quantizer = Quantizer::Uniform(Uniform { bits, block: block as u32, norm, seed: 5 });
        holds_to_chance(quantizer, &x, f64::from((1 << (bits - 1)) - 1), scale);
    }
}

#[test]
fn ternary_is_unbiased_but_for_clipping_with_the_variance_of_its_grid() {
    let x = gradient(0, 3000);
    for clip in [Some(2.5), None] {
        let scale = reference::ternary_scale(&x, clip.map_or(f64::INFINITY, f64::from));
        holds_to_chance(Quantizer::Ternary(Ternary { clip, seed: 6 }), &x, 1.0, |_| scale);
    }
}

#[test]
fn steps_streams_and_tensors_draw_apart_and_a_rolled_back_step_draws_again() {
    let x = gradient(0, 4000);
    let quantizer = Quantizer::Uniform(Uniform { bits: 3, block: 64, norm: Norm::Max, seed: 9 });
    let codec = codec(Sparsifier::All, quantizer, Memory::None);
    let state = |tensor, stream| codec.init_state(x.len()).unwrap().identified(tensor, stream);
    let mut own = state(1, 0);
    let first = encode(&codec, &x, &mut own);
    let second = encode(&codec, &x, &mut own);
    assert_ne!(first, second);
    own.rollback().unwrap();
    assert_eq!(encode(&codec, &x, &mut own), second);
    assert_ne!(encode(&codec, &x, &mut state(2, 0)), first);
    assert_ne!(encode(&codec, &x, &mut state(1, 1)), first);
    assert_eq!(encode(&codec, &x, &mut state(1, 0)), first);
}

#[test]
fn degenerate_tensors_are_sent_as_well_as_they_can_be() {
    let one = |at: usize, n: usize, v: f32| {
        let mut x = vec![0.0; n];
        x[at] = v;
        x
    };
    let tiny = f32::from_bits(3);
    let tensors = [
        vec![],
        vec![0.0],
        vec![-2.5],
        vec![0.0; 100],
        vec![-0.0; 9],
        vec![0.75; 1000],
        vec![-0.1; 333],
        one(70, 100, -3.0),
        vec![tiny, -tiny, 0.0, tiny],
        vec![f32::MAX, -f32::MAX, f32::MAX, 1.0],
        vec![f32::MIN_POSITIVE; 17],
    ];
    let mut quantizers = vec![
        Quantizer::Uniform(Uniform { bits: 4, block: 10, norm: Norm::L2, seed: 0 }),
        Quantizer::Uniform(Uniform { bits: 2, block: 64, norm: Norm::Max, seed: 0 }),
        Quantizer::SignScale(SignScale { magnitude: Magnitude::Mean }),
        Quantizer::SignScale(SignScale { magnitude: Magnitude::RootMeanSquare }),
        Quantizer::TwoMeans(TwoMeans { column: Some(10) }),
        Quantizer::TwoMeans(TwoMeans { column: None }),
        Quantizer::Ternary(Ternary { clip: Some(2.5), seed: 0 }),
        Quantizer::Ternary(Ternary { clip: None, seed: 0 }),
    ];
    quantizers.extend(Quantizer::examples_besides(&quantizers));
    for x in &tensors {
        for &quantizer in &quantizers {
            for sparsifier in [Sparsifier::All, TOP] {
                let codec = codec(sparsifier, quantizer, RESIDUAL);
                let mut state = codec.init_state(x.len()).unwrap();
                for _ in 0..3 {
                    let frame = encode(&codec, x, &mut state);
                    let mut sent = vec![f32::NAN; x.len()];
                    let frame = Frame::parse(&frame, None).unwrap();
                    frame.decode_into(&mut sent, &mut Scratch::default()).unwrap();
                    assert!(sent.iter().all(|v| v.is_finite()));
                    if x.iter().all(|&v| v == 0.0) {
                        assert!(sent.iter().all(|&v| v == 0.0), "{quantizer:?}");
                    }
                    // What is left of the largest values may exceed a float32 in the next sum.
                    let left = state.residual().unwrap();
                    if left.iter().zip(x).any(|(left, x)| !(left + x).is_finite()) {
                        break;
                    }
                }
            }
        }
    }
    // All equal is what those with scales can say exactly, if blocks reach up to their only magnitude.
    let equal = vec![-0.3; 500];
    let exact = |q: &Quantizer| !matches!(q, Quantizer::Uniform(Uniform { norm: Norm::L2, .. }));
    for quantizer in quantizers.into_iter().take(8).filter(exact) {
        let (_, values) = entries(&once(&codec(Sparsifier::All, quantizer, RESIDUAL), &equal));
        assert!(values.iter().all(|v| (v + 0.3).abs() < 1e-7), "{quantizer:?}");
    }
}

#[test]
fn what_is_not_finite_is_found_wherever_it_is_and_nothing_changes() {
    let n = 200_000;
    let x = gradient(0, n);
    for quantizer in [
        Quantizer::TwoMeans(TwoMeans { column: Some(1000) }),
        Quantizer::TwoMeans(TwoMeans { column: None }),
        Quantizer::Uniform(Uniform { bits: 4, block: 512, norm: Norm::L2, seed: 0 }),
        Quantizer::SignScale(SignScale { magnitude: Magnitude::Mean }),
    ] {
        let codec = codec(Sparsifier::All, quantizer, Memory::Residual(Residual::PLAIN));
        let mut state = codec.init_state(n).unwrap();
        encode(&codec, &x, &mut state);
        let before = state.residual().unwrap().to_vec();
        let mut bad = x.clone();
        (bad[777], bad[150_001]) = (f32::NAN, f32::NEG_INFINITY);
        let (mut out, mut workspace) = (Vec::new(), Workspace::default());
        let input = Input::F32(&bad);
        let error = codec.encode_into(input, &mut state, None, &mut workspace, &mut out);
        assert_eq!(error.unwrap_err(), Error::NonFinite { count: 2, first: 777 });
        assert_eq!(state.residual().unwrap(), before);
    }
}

#[test]
fn groups_that_straddle_chunks_and_threads_give_the_same_bytes() {
    let n = 700_001;
    let steps = [gradient(0, n), gradient(1, n)];
    for quantizer in [
        Quantizer::TwoMeans(TwoMeans { column: Some(65_537) }),
        Quantizer::TwoMeans(TwoMeans { column: Some(65_536) }),
        Quantizer::TwoMeans(TwoMeans { column: Some(1001) }),
        Quantizer::Uniform(Uniform { bits: 5, block: 33, norm: Norm::L2, seed: 1 }),
        Quantizer::Uniform(Uniform { bits: 3, block: 300_000, norm: Norm::Max, seed: 1 }),
        Quantizer::SignScale(SignScale { magnitude: Magnitude::Mean }),
        Quantizer::Ternary(Ternary { clip: Some(2.5), seed: 2 }),
    ] {
        for memory in [RESIDUAL, Memory::None] {
            let codec = codec(Sparsifier::All, quantizer, memory);
            let mut seen: Option<Vec<Vec<u8>>> = None;
            for level in available_levels() {
                for threads in [1, 2, 3] {
                    let mut workspace = Workspace::with(Kernels::of(level).unwrap(), threads);
                    let mut state = codec.init_state(n).unwrap();
                    let mut frames = Vec::new();
                    for x in &steps {
                        let (input, mut out) = (Input::F32(x), Vec::new());
                        codec
                            .encode_into(input, &mut state, None, &mut workspace, &mut out)
                            .unwrap();
                        frames.push(out);
                    }
                    let first = seen.get_or_insert_with(|| frames.clone());
                    assert!(*first == frames, "{quantizer:?} {level:?} {threads}");
                }
            }
        }
    }
}

#[test]
fn selections_with_scales_are_trimmed_to_a_limit() {
    let x = gradient(0, 20_000);
    for quantizer in [
        Quantizer::TwoMeans(TwoMeans { column: Some(500) }),
        Quantizer::Uniform(Uniform { bits: 4, block: 64, norm: Norm::Max, seed: 1 }),
        Quantizer::SignScale(SignScale { magnitude: Magnitude::Mean }),
    ] {
        let codec = codec(TOP, quantizer, RESIDUAL);
        let whole = once(&codec, &x).len();
        for limit in [whole, whole - 1, whole / 2, 400, 60, HEADER_LEN] {
            let mut state = codec.init_state(x.len()).unwrap();
            let (mut out, mut workspace) = (Vec::new(), Workspace::default());
            let input = Input::F32(&x);
            let encoded = codec
                .encode_into(input, &mut state, Some(limit), &mut workspace, &mut out)
                .unwrap();
            assert!(out.len() <= limit);
            assert_eq!(encoded.count + encoded.trimmed, 1000);
            let (positions, values) = entries(&out);
            assert_eq!(positions, reference::largest(&x, positions.len()));
            let left = state.residual().unwrap();
            let mut sum = left.to_vec();
            for (&p, &sent) in positions.iter().zip(&values) {
                assert_eq!(left[p as usize], x[p as usize] - sent);
                sum[p as usize] = x[p as usize];
            }
            assert_eq!(sum, x);
        }
    }
}
