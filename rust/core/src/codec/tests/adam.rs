//! That updates follow Adam, that none of them is lost, and what becomes of a learning rate.

use half::bf16;

use super::*;
use crate::rng::Key;
use crate::simd::{adam, dither};

const MEMORY: Memory = Memory::AdamCorrection(ADAM);
const ROUNDED: Storage = Storage::BFloat16 { seed: 6 };
const LOW_MEMORY: Memory = Memory::AdamCorrection(AdamCorrection { storage: ROUNDED, ..ADAM });

fn residual(state: &State) -> Vec<f32> {
    floats(state.stored_residual())
}

fn second_moment(state: &State) -> Vec<f32> {
    floats(state.stored_second_moment())
}

/// Learning rates as of a schedule: warmed up, and less and less.
fn rate(step: u64) -> f64 {
    if step == 17 { 0.0 } else { 4e-3 * (step + 1).min(10) as f64 / (10 + step) as f64 }
}

#[test]
fn second_moment_and_residual_follow_the_equations_and_no_update_is_lost() {
    let n = 700;
    let steps: Vec<_> = (90..122).map(|seed| gradient(n, seed)).collect();
    for (beta2, eps) in [(0.999, 1e-8), (0.9, 1e-3), (0.0, 1e-8)] {
        let memory = Memory::AdamCorrection(AdamCorrection { beta2, eps, ..ADAM });
        for codec in codecs(memory).into_iter().chain(scaled_codecs(memory)) {
            let mut state = codec.init_state(n).unwrap();
            let mut oracle = reference::AdamCorrection::new(beta2, eps, n);
            let mut balance = vec![0.0; n];
            for (step, x) in (0..).zip(&steps) {
                state.set_learning_rate(rate(step)).unwrap();
                let sent = decode(&encode(&codec, x, &mut state).0, n);
                for (i, moved) in oracle.step(x, rate(step), &sent).into_iter().enumerate() {
                    balance[i] += moved - f64::from(sent[i]);
                }
                let (v, r) = (state.second_moment().unwrap(), state.residual().unwrap());
                for i in 0..n {
                    let (v, expected) = (f64::from(v[i]), oracle.second_moment[i]);
                    assert!((v - expected).abs() <= 1e-5 * expected + 1e-44, "{codec:?} {i}");
                    let r = f64::from(r[i]);
                    assert!((r - oracle.residual[i]).abs() < 1e-6, "{codec:?} {i} {step}");
                    assert!((r - balance[i]).abs() < 1e-6, "{codec:?} {i} {step}");
                }
            }
        }
    }
}

/// The keys of a step, as the documentation has them.
fn key(step: u64, bit: u32) -> Key {
    Key::new(6, 17, step, !3 ^ (1 << bit))
}

#[test]
fn in_bfloat16_both_are_those_of_float32_rounded_by_keys_of_their_own() {
    let n = 1500;
    for codec in codecs(LOW_MEMORY).into_iter().chain(scaled_codecs(LOW_MEMORY)) {
        let mut state = codec.init_state(n).unwrap().identified(17, 3);
        assert_eq!(state.nbytes(), 8 * n);
        for step in 0..4 {
            let x = gradient(n, 90 + step);
            state.set_learning_rate(rate(step)).unwrap();
            let unseen = libm::pow(0.999, step as f64 + 1.0);
            let rule = adam::Rule {
                keep: 0.999,
                take: (1.0 - 0.999_f64) as f32,
                correction: (1.0 / (1.0 - unseen).sqrt()) as f32,
                eps: 1e-8,
                least: 0.0,
                rate: rate(step) as f32,
            };
            let (old, v) = (residual(&state), second_moment(&state));
            let sent = decode(&encode(&codec, &x, &mut state).0, n);
            let (stored, stored_second) = (residual(&state), second_moment(&state));
            for i in 0..n {
                let (second, moved) = rule.of(x[i], v[i]);
                let left = reference::kept(reference::kept(moved + old[i]) - sent[i]);
                let expected = [(left, 63), (second, 61)]
                    .map(|(value, bit)| dither::at(value, key(step, bit), i as u32).to_f32());
                assert_eq!(stored[i].to_bits(), expected[0].to_bits(), "{codec:?}");
                assert_eq!(stored_second[i].to_bits(), expected[1].to_bits(), "{codec:?}");
            }
        }
    }
}

/// A step moves the second moment by a fifth of a unit in the last place of bfloat16, or less: rounded to
/// the nearest it would stay where it is.
#[test]
fn in_bfloat16_the_second_moment_moves_and_its_mean_is_that_of_float32() {
    let (n, steps) = (2048, if cfg!(miri) { 3 } else { 3000 });
    let [mut plain, mut low] =
        [MEMORY, LOW_MEMORY].map(|memory| exact(top(1), memory).init_state(n).unwrap());
    let (mut out, mut workspace) = (Vec::new(), Workspace::default());
    for step in 0..steps {
        // Of a variance of 1, and of a hundredth of that from the middle on.
        let scale = if step < steps / 2 { 1.0 } else { 0.1 };
        let key = Key::new(step, 0, 0, 0);
        let x: Vec<f32> =
            (0..n as u32).map(|i| scale * 12.0_f32.sqrt() * (key.unit(i) - 0.5)).collect();
        for (memory, state) in [(MEMORY, &mut plain), (LOW_MEMORY, &mut low)] {
            let codec = exact(top(1), memory);
            codec.encode_into(Input::F32(&x), state, None, &mut workspace, &mut out).unwrap();
        }
    }
    let (plain, low) = (second_moment(&plain), second_moment(&low));
    let ratios: Vec<f64> =
        low.iter().zip(&plain).map(|(low, plain)| f64::from(low / plain)).collect();
    let mean = ratios.iter().sum::<f64>() / n as f64;
    let variance = ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n as f64;
    let error = variance.sqrt();
    assert!(error < 0.15, "{error}");
    assert!((mean - 1.0).abs() < 4.5 * error / (n as f64).sqrt(), "{mean} {error}");
}

#[test]
fn the_largest_and_the_smallest_gradients_make_steps() {
    let x = [f32::MAX, -3e38, 1e30, 1e-30, -1e-45, 0.0, -0.0, 1.0];
    for (memory, largest) in [(MEMORY, f32::MAX), (LOW_MEMORY, bf16::MAX.to_f32())] {
        for codec in codecs(memory) {
            let mut state = codec.init_state(x.len()).unwrap();
            for rate in [16.0, 0.0, 1e-30, 16.0] {
                state.set_learning_rate(rate).unwrap();
                encode(&codec, &x, &mut state);
                let (v, r) = (second_moment(&state), residual(&state));
                assert!(v.iter().chain(&r).all(|value| value.is_finite()), "{codec:?}");
                assert!(v[0] == largest && v[4..7] == [0.0; 3], "{codec:?}");
            }
        }
    }
}

/// Kingma and Ba, section 2.1: with `v >= (1 - beta2) * g * g` a step is at most
/// `rate * sqrt((1 - beta2^t) / (1 - beta2))`, also where that square is beyond float32 or below it.
#[test]
fn no_gradient_makes_a_step_beyond_adams_bound() {
    let spikes = [1e-23, 1e-19, 1.0, 1e19, 6e20, 1e25, 1e30, -3e38, f32::MAX];
    let rate = 1e-3;
    for (beta2, eps) in
        [(0.0, 1e-8), (0.9, 1e-8), (0.95, 1.2e-38), (0.999, 1e-8), (0.999_999, 1e-8)]
    {
        for quiet in [0, 1, 30, if cfg!(miri) { 31 } else { 1000 }] {
            for storage in [Storage::Float32, ROUNDED] {
                let memory = Memory::AdamCorrection(AdamCorrection { beta2, eps, storage });
                let codec = exact(top(spikes.len() as u64), memory);
                let mut state = codec.init_state(spikes.len()).unwrap();
                state.set_learning_rate(rate).unwrap();
                for step in 0..quiet {
                    let x: Vec<f32> =
                        gradient(spikes.len(), step).iter().map(|g| 0.01 * g).collect();
                    encode(&codec, &x, &mut state);
                }
                for t in quiet + 1..quiet + 4 {
                    let sent = decode(&encode(&codec, &spikes, &mut state).0, spikes.len());
                    let unseen = libm::pow(beta2, t as f64);
                    let bound = rate * ((1.0 - unseen) / (1.0 - beta2)).sqrt() * (1.0 + 2e-6);
                    for (step, spike) in sent.iter().zip(spikes) {
                        let told = format!("{step} of {spike} in step {t}, {beta2} {bound}");
                        assert!(f64::from(step.abs()) <= bound, "{told}");
                        assert!(step.signum() == spike.signum() || *step == 0.0, "{told}");
                        // A spike that nothing before it was like comes to the bound.
                        let alone = t == quiet + 1 && spike.abs() > 1e18;
                        assert!(!alone || f64::from(step.abs()) > 0.99 * bound, "{told}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_learning_rate_is_of_the_next_encode_and_stays() {
    // Without a past, every step is the rate exactly.
    let codec = exact(top(2), Memory::AdamCorrection(AdamCorrection { beta2: 0.0, ..ADAM }));
    let mut state = codec.init_state(3).unwrap();
    assert_eq!(state.learning_rate(), Some(1.0));
    for bad in [-1e-9, f64::NAN, f64::INFINITY, 1e39] {
        assert!(matches!(state.set_learning_rate(bad), Err(Error::Argument { .. })));
    }
    state.set_learning_rate(0.25).unwrap();
    let (frame, _) = encode(&codec, &[3.0, 0.5, -2.0], &mut state);
    assert_eq!(decode(&frame, 3), [0.25, 0.25, 0.0]);
    assert_eq!(state.residual().unwrap(), [0.0, 0.0, -0.25]);
    state.set_learning_rate(0.5).unwrap();
    state.rollback().unwrap();
    assert_eq!(state.learning_rate(), Some(0.5));
    let (frame, _) = encode(&codec, &[3.0, 0.5, -2.0], &mut state);
    assert_eq!(decode(&frame, 3), [0.5, 0.5, 0.0]);
    state.reset();
    assert_eq!(contents(&state), contents(&codec.init_state(3).unwrap()));
    let mut other = exact(top(2), FEEDBACK).init_state(3).unwrap();
    assert_eq!((other.learning_rate(), other.second_moment()), (None, None));
    assert!(other.set_learning_rate(0.1).is_err());
    assert!(other.set_second_moment(&[0.0; 3]).is_err());
}

#[test]
fn a_checkpoint_is_checked_before_it_is_taken() {
    let codec = exact(top(2), MEMORY);
    let mut state = codec.init_state(3).unwrap();
    encode(&codec, &[1.0, 2.0, 3.0], &mut state);
    let (before, scalars) = (contents(&state), state.scalars());
    for bad in [&[0.0, -1e-9, 0.0][..], &[0.0, f32::NAN, 0.0], &[0.0; 2]] {
        assert!(state.set_second_moment(bad).is_err());
    }
    for (name, value) in [
        ("learning_rate", -1.0),
        ("learning_rate", f64::NAN),
        ("second_moment_steps", 0.5),
        ("second_moment_steps", -1.0),
        ("step", f64::INFINITY),
    ] {
        let mut scalars = scalars.clone();
        scalars.iter_mut().find(|(each, _)| each == name).unwrap().1 = value;
        assert!(state.load_scalars(&scalars).is_err(), "{name} {value}");
        scalars.retain(|(each, _)| each != name);
        assert!(state.load_scalars(&scalars).is_err(), "{name}");
    }
    assert_eq!(contents(&state), before);
}
