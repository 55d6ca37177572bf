//! Quantizers with scales: what they send against the oracles, how large it is, and what chance
//! makes of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::disallowed_methods, reason = "powers of two are exact, and bounds need not be")]

#[allow(dead_code, reason = "a part of it is used here")]
mod laws;

use gradwire_core::Input;
use gradwire_core::codec::{Codec, State, Workspace};
use gradwire_core::frame::{Frame, Scratch};
use gradwire_core::memory::{Memory, Residual};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::{Magnitude, Quantizer, SignScale, Ternary, TwoMeans};
use gradwire_core::reference;
use gradwire_core::sparsify::{Amount, Sparsifier, Threshold, TopK};
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
    let quantizer = Quantizer::Ternary(Ternary { clip: Some(2.5), seed: 6 });
    let (_, values) = entries(&once(&codec(Sparsifier::All, quantizer, RESIDUAL), &x));
    let sent: Vec<f32> = values.iter().filter(|v| **v != 0.0).map(|v| v.abs()).collect();
    assert_near(&sent, &vec![reference::ternary_scale(&x, 2.5); sent.len()]);
}

/// Of an entry that stays as it is, two neighbours are sent, each as often as its distance says. (But for
/// what is clipped first, and what is hardly ever rounded away from the nearer one.)
#[test]
fn what_is_rounded_by_chance_has_the_value_as_its_mean() {
    const STEPS: u32 = 400;
    let (x, steps) = (gradient(0, 1500), f64::from(STEPS));
    let clips = |q: &Quantizer| matches!(q, Quantizer::Ternary(Ternary { clip: Some(_), .. }));
    let drawn = |q: &Quantizer| q.seed().is_some() && !clips(q);
    for quantizer in Quantizer::examples().into_iter().filter(drawn) {
        let codec = codec(Sparsifier::All, quantizer, Memory::None);
        let mut state = codec.init_state(x.len()).unwrap();
        let mut seen = vec![[f64::INFINITY, f64::NEG_INFINITY, 0.0]; x.len()];
        for _ in 0..STEPS {
            let (_, values) = entries(&encode(&codec, &x, &mut state));
            for ([low, high, sum], value) in seen.iter_mut().zip(values.into_iter().map(f64::from))
            {
                (*low, *high, *sum) = (low.min(value), high.max(value), *sum + value);
            }
        }
        let mut judged = 0;
        for (&[low, high, sum], x) in seen.iter().zip(x.iter().copied().map(f64::from)) {
            if low < high {
                let (part, ups) = ((x - low) / (high - low), (sum - steps * low) / (high - low));
                let deviation = (steps * part * (1.0 - part)).max(0.0).sqrt();
                let error = (ups - steps * part).abs();
                assert!(error < 5.0 * deviation + 4.0, "{quantizer:?} {x}: {ups} of {part}");
                assert!((ups - ups.round()).abs() < 1e-3, "{quantizer:?} {x}: more than two");
            }
            judged += usize::from(low < high || (low - x).abs() <= 1e-6 * x.abs());
        }
        assert!(judged * 2 > x.len(), "{quantizer:?}: {judged}");
    }
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
    // Nobody says the magnitude.
    let told = Quantizer::SignScale(SignScale { magnitude: Magnitude::Selector });
    let quantizers = Quantizer::examples().into_iter().filter(|quantizer| *quantizer != told);
    let quantizers: Vec<_> = quantizers.collect();
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
}
