//! That updates follow Adam, that none of them is lost, and what becomes of a learning rate.

use half::{bf16, f16};

use super::*;
use crate::memory::AdamCorrection;

const ADAM: AdamCorrection = AdamCorrection { beta2: 0.999, eps: 1e-8, low_memory: false };

fn memory(low_memory: bool) -> Memory {
    Memory::AdamCorrection(AdamCorrection { low_memory, ..ADAM })
}

fn top(memory: Memory, count: u64) -> Codec {
    let top = Sparsifier::TopK(TopK { amount: Amount::Count(count) });
    Codec::new(top, Quantizer::Float32, memory, IndexCoding::Auto).unwrap()
}

/// Everything in a state that an encode may change.
fn all_of(state: &State) -> (Vec<u32>, Vec<u32>, Vec<(String, f64)>) {
    (bits(state.residual().unwrap()), bits(state.second_moment().unwrap()), state.scalars())
}

/// Learning rates as of a schedule: warmed up, and less and less.
fn rate(step: u64) -> f64 {
    if step == 17 { 0.0 } else { 4e-3 * (step + 1).min(10) as f64 / (10 + step) as f64 }
}

#[test]
fn second_moment_and_residual_follow_the_equations_and_no_update_is_lost() {
    let n = 700;
    for AdamCorrection { beta2, eps, low_memory } in [
        ADAM,
        AdamCorrection { low_memory: true, ..ADAM },
        AdamCorrection { beta2: 0.9, eps: 1e-3, ..ADAM },
        AdamCorrection { beta2: 0.0, ..ADAM },
    ] {
        let memory = Memory::AdamCorrection(AdamCorrection { beta2, eps, low_memory });
        for codec in codecs(memory).into_iter().chain(scaled_codecs(memory)) {
            let mut state = codec.init_state(n).unwrap();
            let mut oracle = reference::AdamCorrection::new(beta2, eps, n);
            let mut balance = vec![0.0; n];
            for step in 0..32 {
                let x = gradient(n, 90 + step);
                state.set_learning_rate(rate(step)).unwrap();
                let sent = decode(&encode(&codec, &x, &mut state).0, n);
                for (i, moved) in oracle.step(&x, rate(step), &sent).into_iter().enumerate() {
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

#[test]
fn one_buffer_each_gives_the_same_frames_and_the_same_state() {
    let n = 5000;
    let (one, two) = (memory(true), memory(false));
    let all = |memory| codecs(memory).into_iter().chain(scaled_codecs(memory));
    for (one, two) in all(one).zip(all(two)) {
        let (mut a, mut b) = (one.init_state(n).unwrap(), two.init_state(n).unwrap());
        for step in 0..4 {
            let x = gradient(n, step);
            for state in [&mut a, &mut b] {
                state.set_learning_rate(rate(step)).unwrap();
            }
            assert_eq!(encode(&one, &x, &mut a), encode(&two, &x, &mut b), "{one:?}");
            assert_eq!(all_of(&a), all_of(&b), "{one:?}");
        }
        let before = all_of(&a);
        assert!(a.rollback().is_err());
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = gradient(n, 9);
            (x[77], x[4000]) = (bad, bad);
            for rate in [0.0, 1.0] {
                a.set_learning_rate(rate).unwrap();
                let (mut out, mut workspace) = (Vec::new(), Workspace::default());
                let result =
                    one.encode_into(Input::F32(&x), &mut a, None, &mut workspace, &mut out);
                assert_eq!(result, Err(Error::NonFinite { count: 2, first: 77 }), "{one:?}");
            }
            a.set_learning_rate(rate(3)).unwrap();
            assert_eq!(all_of(&a), before, "{one:?}");
        }
    }
}

#[test]
fn the_largest_and_the_smallest_gradients_make_steps() {
    let x = [f32::MAX, -3e38, 1e30, 1e-30, -1e-45, 0.0, -0.0, 1.0];
    for low_memory in [false, true] {
        for codec in codecs(memory(low_memory)) {
            let mut state = codec.init_state(x.len()).unwrap();
            for rate in [16.0, 0.0, 1e-30, 16.0] {
                state.set_learning_rate(rate).unwrap();
                encode(&codec, &x, &mut state);
                let (v, r) = (state.second_moment().unwrap(), state.residual().unwrap());
                assert!(v.iter().chain(r).all(|value| value.is_finite()), "{codec:?}");
                assert!(v[0] == f32::MAX && v[4..7] == [0.0; 3], "{codec:?}");
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
            for low_memory in [false, true] {
                let memory = Memory::AdamCorrection(AdamCorrection { beta2, eps, low_memory });
                let codec = top(memory, spikes.len() as u64);
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
fn all_of_it_can_be_sent() {
    for (numel, count) in [(0, 1), (1, 1), (1, 5), (40, 40), (40, 100)] {
        for low_memory in [false, true] {
            let codec = top(memory(low_memory), count);
            let mut state = codec.init_state(numel).unwrap();
            let x = vec![-2.0; numel];
            let (frame, encoded) = encode(&codec, &x, &mut state);
            // The first step is the rate, whatever the gradient.
            assert_eq!(decode(&frame, numel), vec![-1.0; numel]);
            assert_eq!(encoded.count, numel as u64);
            assert!(state.residual().unwrap().iter().all(|&r| r == 0.0));
        }
    }
}

#[test]
fn elements_of_every_type_are_as_their_float32() {
    let n = 3000;
    let x: Vec<f32> = gradient(n, 5).iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
    let x: Vec<f32> = x.iter().map(|v| f16::from_f32(*v).to_f32()).collect();
    let (double, half, brain): (Vec<_>, Vec<_>, Vec<_>) = (
        x.iter().map(|v| f64::from(*v)).collect(),
        x.iter().map(|v| f16::from_f32(*v)).collect(),
        { x.iter().map(|v| bf16::from_f32(*v)).collect() },
    );
    let brain_x: Vec<f32> = brain.iter().map(|v: &bf16| v.to_f32()).collect();
    for low_memory in [false, true] {
        for codec in codecs(memory(low_memory)) {
            for (input, plain) in [
                (Input::F64(&double), &x),
                (Input::F16(&half), &x),
                (Input::BF16(&brain), &brain_x),
            ] {
                if codec.quantizer().of(input.dtype()) != codec.quantizer().of(Dtype::F32) {
                    // It rounds to what the elements are.
                    continue;
                }
                let (mut a, mut b) = (codec.init_state(n).unwrap(), codec.init_state(n).unwrap());
                for _ in 0..2 {
                    let (mut out, mut workspace) = (Vec::new(), Workspace::default());
                    codec.encode_into(input, &mut a, None, &mut workspace, &mut out).unwrap();
                    encode(&codec, plain, &mut b);
                    assert_eq!(all_of(&a), all_of(&b), "{codec:?}");
                }
            }
        }
    }
}

#[test]
fn a_learning_rate_is_of_the_next_encode_and_stays() {
    // Without a past, every step is the rate exactly.
    let codec = top(Memory::AdamCorrection(AdamCorrection { beta2: 0.0, ..ADAM }), 2);
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
    assert_eq!(all_of(&state), all_of(&codec.init_state(3).unwrap()));
    let mut other = top(FEEDBACK, 2).init_state(3).unwrap();
    assert_eq!((other.learning_rate(), other.second_moment()), (None, None));
    assert!(other.set_learning_rate(0.1).is_err());
    assert!(other.set_second_moment(&[0.0; 3]).is_err());
}

#[test]
fn a_flush_is_no_step() {
    let n = 500;
    for low_memory in [false, true] {
        let codec = top(memory(low_memory), 20);
        let (mut state, mut other) = (codec.init_state(n).unwrap(), codec.init_state(n).unwrap());
        for step in 0..3 {
            encode(&codec, &gradient(n, step), &mut state);
            encode(&codec, &gradient(n, step), &mut other);
            let second = bits(state.second_moment().unwrap());
            codec.flush_into(&mut state, &mut Vec::new()).unwrap();
            assert_eq!(bits(state.second_moment().unwrap()), second);
            other.set_residual(&vec![0.0; n]).unwrap();
            assert_eq!(all_of(&state).0, all_of(&other).0);
            assert_eq!(all_of(&state).1, all_of(&other).1);
        }
        if !low_memory {
            let before = all_of(&state);
            codec.flush_into(&mut state, &mut Vec::new()).unwrap();
            state.rollback().unwrap();
            assert_eq!(all_of(&state), before);
        }
    }
}

#[test]
fn a_checkpoint_is_checked_before_it_is_taken() {
    let codec = top(memory(false), 2);
    let mut state = codec.init_state(3).unwrap();
    encode(&codec, &[1.0, 2.0, 3.0], &mut state);
    let (before, scalars) = (all_of(&state), state.scalars());
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
    assert_eq!(all_of(&state), before);
}

#[test]
fn memories_without_meaning_are_refused() {
    let sparsifier = Sparsifier::TopK(TopK { amount: Amount::Count(1) });
    let refused = |memory| {
        let memory = Memory::AdamCorrection(memory);
        let result = Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto);
        assert!(matches!(result, Err(Error::Argument { .. })), "{memory:?}");
    };
    for beta2 in [-0.1, 1.0, f64::NAN] {
        refused(AdamCorrection { beta2, ..ADAM });
    }
    for eps in [0.0, -1.0, 1e-39, 1e39, f64::INFINITY, f64::NAN] {
        refused(AdamCorrection { eps, ..ADAM });
    }
}
