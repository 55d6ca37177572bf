//! What each memory becomes, entry by entry, and that every memory keeps the promises of a state.

use super::*;
use crate::memory::{AdamCorrection, Keeps, LowPass, MomentumCorrection, Storage};

const CORRECTION: MomentumCorrection =
    MomentumCorrection { momentum: 0.9, nesterov: false, masking: true, clip: None };

const ADAM: AdamCorrection = AdamCorrection { beta2: 0.999, eps: 1e-8, storage: Storage::Float32 };

fn low_pass(beta: f32) -> Memory {
    Memory::LowPass(LowPass { beta, ..LowPass::PLAIN })
}

fn corrections() -> Vec<MomentumCorrection> {
    let mut all = Vec::new();
    for nesterov in [false, true] {
        for masking in [false, true] {
            for clip in [None, Some(3.0)] {
                all.push(MomentumCorrection { nesterov, masking, clip, ..CORRECTION });
            }
        }
    }
    all
}

fn memories() -> Vec<Memory> {
    let mut all = vec![low_pass(0.1), low_pass(0.7), low_pass(1.0)];
    all.extend(corrections().into_iter().map(Memory::MomentumCorrection));
    all.extend([0.999, 0.0].map(|beta2| Memory::AdamCorrection(AdamCorrection { beta2, ..ADAM })));
    all
}

/// Everything in a state that an encode may change.
fn all_of(state: &State) -> (Vec<u32>, Vec<u32>, Vec<(String, f64)>) {
    let bits = |values: Option<Input<'_>>| match values {
        Some(Input::F32(values)) => values.iter().map(|v| v.to_bits()).collect(),
        Some(Input::BF16(values)) => values.iter().map(|v| v.to_bits().into()).collect(),
        _ => Vec::new(),
    };
    let moment = state.momentum().map(Input::F32).or(state.stored_second_moment());
    (bits(state.stored_residual()), bits(moment), state.scalars())
}

/// Steps whose scale jumps, so that bounds tracked before are of no use.
fn steps(n: usize) -> Vec<Vec<f32>> {
    let scales = [1.0, 1.1, 1e3, 1e-3, 1.0];
    let step =
        |(s, scale): (usize, &f32)| gradient(n, s as u64).iter().map(|g| g * scale).collect();
    scales.iter().enumerate().map(step).collect()
}

#[test]
fn the_frame_is_that_of_gradient_and_memory_put_together() {
    // Whatever a selection reads again, it must see the sums, not what was written of them.
    let n = 60_000;
    for memory in memories() {
        for codec in codecs(memory) {
            // AdaComp looks at the gradient by itself, too.
            let pairs = matches!(codec.sparsifier(), Sparsifier::BinMax(_));
            if codec.quantizer() != Quantizer::BFloat16 || pairs {
                continue;
            }
            let plain = Codec { memory: Memory::None, ..codec };
            let (mut state, mut other) =
                (codec.init_state(n).unwrap(), plain.init_state(n).unwrap());
            for x in steps(n) {
                let mut sum = vec![0.0; n];
                let mut workspace = Workspace::default();
                codec.preview(Input::F32(&x), &state, &mut workspace, &mut sum).unwrap();
                assert_eq!(encode(&codec, &x, &mut state), encode(&plain, &sum, &mut other));
            }
        }
    }
}

#[test]
fn bytes_and_memory_agree_on_every_level_and_thread_count() {
    let adam = [Storage::Float32, Storage::BFloat16 { seed: 7 }]
        .map(|storage| Memory::AdamCorrection(AdamCorrection { storage, ..ADAM }));
    let few = [vec![low_pass(0.3), Memory::MomentumCorrection(CORRECTION)], adam.to_vec()].concat();
    for (n, memories) in [(130, [memories(), adam.to_vec()].concat()), (300_000, few)] {
        for codec in memories.into_iter().flat_map(codecs) {
            let few =
                matches!(codec.sparsifier(), Sparsifier::TopK(TopK { amount: Amount::Count(5) }));
            let gamma = codec.sparsifier() == sid(0.01, Distribution::Gamma);
            let all = codec.sparsifier() == Sparsifier::All;
            if n > 130 && (codec.quantizer() != Quantizer::BFloat16 || !(few || gamma || all)) {
                continue;
            }
            let mut runs = Vec::new();
            for level in available_levels() {
                for threads in [1, 2, 3] {
                    let mut workspace = Workspace::with(Kernels::of(level).unwrap(), threads);
                    let mut state = codec.init_state(n).unwrap();
                    let mut frames = Vec::new();
                    for s in 0..3 {
                        let x = gradient(n, s);
                        let (input, mut out) = (Input::F32(&x), Vec::new());
                        codec
                            .encode_into(input, &mut state, None, &mut workspace, &mut out)
                            .unwrap();
                        frames.push(out);
                    }
                    runs.push((frames, all_of(&state)));
                }
            }
            assert!(runs.windows(2).all(|pair| pair[0] == pair[1]), "{codec:?} {n}");
        }
    }
}

/// What decays would end among the subnormal numbers, and slow every later encode: 0.9 times four of
/// the smallest is four of them.
#[test]
fn what_is_kept_is_normal_or_zero_on_every_level_and_ends_at_zero() {
    let n = 67;
    let least = f32::MIN_POSITIVE;
    // Around the smallest normal number, of both signs, and zeros of both signs.
    let step = |s: u32| -> Vec<f32> {
        let share = |i: u32| (i * 7 + s * 13) % 41;
        let sign = |i: u32| if (i + s).is_multiple_of(3) { -1.0 } else { 1.0 };
        (0..n as u32).map(|i| sign(i) * share(i) as f32 / 16.0 * least).collect()
    };
    let decayed = |storage| Memory::Residual(Residual { decay: 0.9, storage });
    let rounded = Storage::BFloat16 { seed: 3 };
    let adam = |storage| AdamCorrection { beta2: 0.95, eps: 1e-8, storage };
    let mut all = memories();
    all.extend([FEEDBACK, decayed(Storage::Float32), decayed(rounded)]);
    all.extend([Storage::Float32, rounded].map(|s| Memory::AdamCorrection(adam(s))));
    all.push(Memory::LowPass(LowPass { beta: 0.3, storage: rounded }));
    let kept = |state: &State| -> Vec<f32> {
        let floats = |values: Option<Input<'_>>| match values {
            Some(Input::BF16(values)) => values.iter().map(|v| v.to_f32()).collect(),
            Some(Input::F32(values)) => values.to_vec(),
            _ => Vec::new(),
        };
        let moment = state.momentum().map(Input::F32).or(state.stored_second_moment());
        [floats(state.stored_residual()), floats(moment)].concat()
    };
    for codec in all.into_iter().flat_map(|memory| [codecs(memory), scaled_codecs(memory)].concat())
    {
        let mut runs = Vec::new();
        for level in available_levels() {
            let mut workspace = Workspace::with(Kernels::of(level).unwrap(), 1);
            let (mut state, mut run) = (codec.init_state(n).unwrap(), Vec::new());
            for s in 0..12 {
                // Squares of these are near the smallest normal number.
                let scale =
                    if codec.memory().facts().keeps == Keeps::SecondMoment { 9e18 } else { 1.0 };
                let quiet = s >= 9;
                let x: Vec<f32> =
                    step(s).iter().map(|v| if quiet { 0.0 } else { v * scale }).collect();
                let (input, mut out) = (Input::F32(&x), Vec::new());
                codec.encode_into(input, &mut state, None, &mut workspace, &mut out).unwrap();
                let after = kept(&state);
                let tidy = |v: &f32| v.is_normal() || v.to_bits() == 0;
                assert!(after.iter().all(tidy), "{codec:?} {level:?} {s} {after:?}");
                run.push((out, bits(&after)));
            }
            runs.push(run);
        }
        assert!(runs.windows(2).all(|pair| pair[0] == pair[1]), "{codec:?}");
    }
}

#[test]
fn states_that_are_loaded_keep_no_subnormal_numbers() {
    let n = 4;
    let least = f32::MIN_POSITIVE;
    let values = [least, -least, 0.75 * least, -1e-45];
    let expected = bits(&[least, -least, 0.0, 0.0]);
    for memory in [FEEDBACK, low_pass(0.3), Memory::MomentumCorrection(CORRECTION)] {
        let mut state = codecs(memory)[0].init_state(n).unwrap();
        state.set_residual(&values).unwrap();
        assert_eq!(bits(state.residual().unwrap()), expected);
        if state.momentum().is_some() {
            state.set_momentum(&values).unwrap();
            assert_eq!(bits(state.momentum().unwrap()), expected);
        }
    }
    let mut state = codecs(Memory::AdamCorrection(ADAM))[0].init_state(n).unwrap();
    state.set_second_moment(&values.map(f32::abs)).unwrap();
    assert_eq!(bits(state.second_moment().unwrap()), bits(&[least, least, 0.0, 0.0]));
}

#[test]
fn tensors_that_are_streamed_give_what_small_pieces_give() {
    // Beyond what sources write past the caches; entries above a threshold know nothing of others.
    let n = (1 << 21) + 77;
    let sparsifier = Sparsifier::Threshold(Threshold { threshold: 0.2 });
    let masked = Memory::MomentumCorrection(CORRECTION);
    for memory in [low_pass(0.3), masked, Memory::AdamCorrection(ADAM)] {
        let codec = Codec::new(sparsifier, Quantizer::BFloat16, memory, IndexCoding::Auto).unwrap();
        let run = |range: std::ops::Range<usize>| {
            let mut state = codec.init_state(range.len()).unwrap();
            for s in 0..3 {
                encode(&codec, &gradient(n, s)[range.clone()], &mut state);
            }
            let (residual, momentum, _) = all_of(&state);
            (residual, momentum)
        };
        let (whole, head, tail) = (run(0..n), run(0..1 << 20), run(1 << 20..n));
        assert!(whole.0 == [head.0, tail.0].concat(), "{memory:?}");
        assert!(whole.1 == [head.1, tail.1].concat(), "{memory:?}");
    }
}

#[test]
fn low_pass_follows_its_rule_in_every_entry() {
    let n = 5000;
    for beta in [0.1f32, 0.3, 0.7, 1.0] {
        for codec in codecs(low_pass(beta)) {
            let mut state = codec.init_state(n).unwrap();
            let mut oracle = reference::LowPass::new(f64::from(beta), n);
            for step in 0..4 {
                let x = gradient(n, 10 + step);
                let before = state.residual().unwrap().to_vec();
                let (frame, _) = encode(&codec, &x, &mut state);
                let (sent, at) = (decode(&frame, n), positions(&frame));
                oracle.step(&x, &sent);
                let mut selected = vec![codec.sparsifier() == Sparsifier::All; n];
                for i in at {
                    selected[i as usize] = true;
                }
                for (i, &after) in state.residual().unwrap().iter().enumerate() {
                    let normal = reference::kept;
                    let left = normal(normal(x[i] + before[i]) - sent[i]);
                    let expected = if selected[i] {
                        (1.0 - beta) * before[i] + beta * left
                    } else {
                        before[i] + beta * x[i]
                    };
                    let expected = normal(expected);
                    assert_eq!(after, expected, "{codec:?} {i}");
                    if selected[i] && codec.quantizer() == Quantizer::Float32 {
                        // Not zero: what is sent leaves the rest of the old memory behind.
                        assert_eq!(after, normal((1.0 - beta) * before[i]), "{codec:?} {i}");
                    }
                    assert!((f64::from(after) - oracle.memory[i]).abs() < 1e-5, "{codec:?} {i}");
                }
            }
        }
    }
}

#[test]
fn a_low_pass_that_takes_in_everything_is_the_residual() {
    let n = 5000;
    for (filter, residual) in codecs(low_pass(1.0)).iter().zip(&codecs(FEEDBACK)) {
        let (mut a, mut b) = (filter.init_state(n).unwrap(), residual.init_state(n).unwrap());
        for x in steps(n) {
            assert_eq!(encode(filter, &x, &mut a), encode(residual, &x, &mut b));
            assert_eq!(all_of(&a), all_of(&b), "{filter:?}");
        }
    }
}

#[test]
fn momentum_follows_the_equations_over_many_steps() {
    let n = 700;
    for correction in corrections() {
        for codec in codecs(Memory::MomentumCorrection(correction)) {
            let mut state = codec.init_state(n).unwrap();
            let MomentumCorrection { momentum, nesterov, masking, clip } = correction;
            let mut oracle = reference::MomentumCorrection {
                factor: f64::from(momentum),
                nesterov,
                masking,
                clip: clip.map(f64::from),
                momentum: vec![0.0; n],
                velocity: vec![0.0; n],
            };
            for step in 0..20 {
                let x = gradient(n, 50 + step);
                let (frame, _) = encode(&codec, &x, &mut state);
                let mut at = positions(&frame);
                if codec.sparsifier() == Sparsifier::All {
                    at = (0..n as u32).collect();
                }
                oracle.step(&x, &at, &decode(&frame, n));
                let (u, v) = (state.momentum().unwrap(), state.residual().unwrap());
                for i in 0..n {
                    assert!((f64::from(u[i]) - oracle.momentum[i]).abs() < 1e-4, "{codec:?} {i}");
                    assert!((f64::from(v[i]) - oracle.velocity[i]).abs() < 1e-3, "{codec:?} {i}");
                }
                if masking {
                    assert!(at.iter().all(|&i| u[i as usize] == 0.0));
                }
            }
        }
    }
}

#[test]
fn sent_and_left_make_the_momentum_of_the_sum_of_gradients() {
    // Without masking nothing is taken from the momentum: what was sent and is left together is
    // what momentum SGD would have moved by.
    let n = 1000;
    let memory = Memory::MomentumCorrection(MomentumCorrection { masking: false, ..CORRECTION });
    for codec in codecs(memory) {
        let mut state = codec.init_state(n).unwrap();
        let (mut u, mut moved, mut sent) = (vec![0.0f64; n], vec![0.0f64; n], vec![0.0f64; n]);
        for step in 0..20 {
            let x = gradient(n, step);
            let (frame, _) = encode(&codec, &x, &mut state);
            let arrived = decode(&frame, n);
            for i in 0..n {
                u[i] = 0.9f32 as f64 * u[i] + f64::from(x[i]);
                moved[i] += u[i];
                sent[i] += f64::from(arrived[i]);
            }
        }
        for (i, &left) in state.residual().unwrap().iter().enumerate() {
            assert!((sent[i] + f64::from(left) - moved[i]).abs() < 1e-3, "{codec:?} {i}");
        }
    }
}

#[test]
fn clipping_scales_to_the_norm_and_leaves_shorter_gradients_alone() {
    let memory =
        |clip| Memory::MomentumCorrection(MomentumCorrection { clip: Some(clip), ..CORRECTION });
    let top = Sparsifier::TopK(TopK { amount: Amount::Count(1) });
    let make = |clip| Codec::new(top, Quantizer::Float32, memory(clip), IndexCoding::Auto).unwrap();
    let x = [3.0, 4.0, 0.0];
    for (clip, expected) in [(5.0, [3.0, 4.0, 0.0]), (2.5, [1.5, 2.0, 0.0])] {
        let codec = make(clip);
        let mut seen = [0.0; 3];
        let (state, mut workspace) = (codec.init_state(3).unwrap(), Workspace::default());
        codec.preview(Input::F32(&x), &state, &mut workspace, &mut seen).unwrap();
        assert_eq!(seen, expected);
    }
    // The sum of squares is beyond float32.
    let mut state = make(1.0).init_state(2).unwrap();
    let (frame, _) = encode(&make(1.0), &[3e30, 4e30], &mut state);
    assert_eq!(decode(&frame, 2), [0.0, 0.8]);
    let bad = make(1.0).encode_into(
        Input::F32(&[1.0, f32::NAN]),
        &mut state,
        None,
        &mut Workspace::default(),
        &mut Vec::new(),
    );
    assert_eq!(bad, Err(Error::NonFinite { count: 1, first: 1 }));
}

#[test]
fn rollback_and_errors_restore_both_buffers() {
    let n = 5000;
    for codec in memories().into_iter().flat_map(codecs) {
        let mut state = codec.init_state(n).unwrap();
        encode(&codec, &gradient(n, 1), &mut state);
        let before = all_of(&state);
        let (first, _) = encode(&codec, &gradient(n, 2), &mut state);
        let after = all_of(&state);
        state.rollback().unwrap();
        assert_eq!(all_of(&state), before);
        let mut bad = gradient(n, 3);
        (bad[4000], bad[77]) = (f32::NAN, f32::INFINITY);
        let (mut out, mut workspace) = (vec![1], Workspace::default());
        let result =
            codec.encode_into(Input::F32(&bad), &mut state, None, &mut workspace, &mut out);
        assert_eq!(result, Err(Error::NonFinite { count: 2, first: 77 }), "{codec:?}");
        assert_eq!(all_of(&state), before);
        assert!(state.rollback().is_err());
        assert_eq!(encode(&codec, &gradient(n, 2), &mut state).0, first);
        assert_eq!(all_of(&state), after);
        state.reset();
        assert_eq!(all_of(&state), all_of(&codec.init_state(n).unwrap()));
    }
}

#[test]
fn a_sum_that_overflows_is_found_though_the_memory_would_not() {
    // 0.1 of the gradient fits into float32 beside the memory, all of it does not.
    for codec in codecs(low_pass(0.1)) {
        let mut state = codec.init_state(3).unwrap();
        state.set_residual(&[0.0, 3e38, 0.0]).unwrap();
        let result = codec.encode_into(
            Input::F32(&[1.0, 2e38, 0.0]),
            &mut state,
            None,
            &mut Workspace::default(),
            &mut Vec::new(),
        );
        assert_eq!(result, Err(Error::NonFinite { count: 1, first: 1 }), "{codec:?}");
        assert_eq!(state.residual().unwrap(), [0.0, 3e38, 0.0]);
    }
}

#[test]
fn a_saved_state_goes_on_bit_for_bit_with_momentum() {
    let n = 1000;
    for codec in memories().into_iter().flat_map(codecs) {
        let mut state = codec.init_state(n).unwrap();
        for step in 0..3 {
            encode(&codec, &gradient(n, step), &mut state);
        }
        let mut restored = codec.init_state(n).unwrap();
        restored.set_residual(state.residual().unwrap()).unwrap();
        if let Some(momentum) = state.momentum() {
            restored.set_momentum(momentum).unwrap();
        }
        if let Some(second) = state.second_moment() {
            restored.set_second_moment(second).unwrap();
        }
        restored.load_scalars(&state.scalars()).unwrap();
        for step in 3..6 {
            let x = gradient(n, step);
            assert_eq!(encode(&codec, &x, &mut state), encode(&codec, &x, &mut restored));
        }
        assert_eq!(all_of(&state), all_of(&restored));
    }
}

#[test]
fn degenerate_tensors_pass_through_every_memory() {
    let tensors: [&[f32]; 6] = [&[], &[0.0], &[-3.0], &[0.0; 40], &[2.0; 40], &[0.0, 1e-45, 0.0]];
    for codec in memories().into_iter().flat_map(codecs) {
        for x in tensors {
            let mut state = codec.init_state(x.len()).unwrap();
            for _ in 0..3 {
                encode(&codec, x, &mut state);
            }
            assert!(state.residual().unwrap().iter().all(|r| r.is_finite()));
        }
    }
}

#[test]
fn memories_without_meaning_are_refused() {
    let refused = |sparsifier, memory: Memory| {
        let result = Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto);
        assert!(matches!(result, Err(Error::Argument { .. })), "{memory:?}");
    };
    let top = Sparsifier::TopK(TopK { amount: Amount::Count(1) });
    for beta in [0.0, -1.0, 1.1, f32::NAN] {
        refused(top, low_pass(beta));
    }
    for momentum in [-0.1, 1.0, f32::NAN] {
        let correction = MomentumCorrection { momentum, ..CORRECTION };
        refused(top, Memory::MomentumCorrection(correction));
    }
    for clip in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let correction = MomentumCorrection { clip: Some(clip), ..CORRECTION };
        refused(top, Memory::MomentumCorrection(correction));
    }
    refused(Sparsifier::All, Memory::MomentumCorrection(CORRECTION));
}

#[test]
fn a_state_goes_with_the_memory_that_it_was_made_for() {
    let top = Sparsifier::TopK(TopK { amount: Amount::Count(1) });
    let make = |memory| Codec::new(top, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
    let corrected = make(Memory::MomentumCorrection(CORRECTION));
    let residual = make(FEEDBACK);
    for (codec, other) in [(&corrected, &residual), (&residual, &corrected)] {
        let mut state = other.init_state(3).unwrap();
        let result = codec.encode_into(
            Input::F32(&[1.0, 2.0, 3.0]),
            &mut state,
            None,
            &mut Workspace::default(),
            &mut Vec::new(),
        );
        assert!(matches!(result, Err(Error::Argument { .. })));
    }
    let mut state = residual.init_state(3).unwrap();
    assert!(state.set_momentum(&[0.0; 3]).is_err());
    let mut state = corrected.init_state(3).unwrap();
    assert!(state.set_momentum(&[0.0; 2]).is_err());
    assert!(state.set_momentum(&[f32::NAN; 3]).is_err());
}
