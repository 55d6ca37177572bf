//! What each memory becomes, entry by entry, and that every memory keeps the promises of a state.

use super::*;
use crate::memory::Keeps;

fn corrections() -> Vec<MomentumCorrection> {
    let mut all = Vec::new();
    for nesterov in [false, true] {
        for masking in [false, true] {
            for clip in [None, Some(3.0)] {
                all.push(MomentumCorrection { nesterov, masking, clip, ..MOMENTUM });
            }
        }
    }
    all
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
    let steps = steps(n);
    // AdaComp looks at the gradient by itself, too.
    let of_sums = |sparsifier: &Sparsifier| !matches!(sparsifier, Sparsifier::BinMax(_));
    let of_sums: Vec<_> = sparsifiers().into_iter().filter(of_sums).collect();
    for memory in Memory::examples() {
        for codec in compose(&of_sums, &[Quantizer::BFloat16], memory) {
            let plain = Codec { memory: Memory::None, ..codec };
            let (mut state, mut other) =
                (codec.init_state(n).unwrap(), plain.init_state(n).unwrap());
            for x in &steps {
                let (mut sum, mut workspace) = (vec![0.0; n], Workspace::default());
                codec.preview(Input::F32(x), &state, &mut workspace, &mut sum).unwrap();
                assert_eq!(encode(&codec, x, &mut state), encode(&plain, &sum, &mut other));
            }
        }
    }
}

/// What decays would end among the subnormal numbers, and slow every later encode: 0.9 times four of
/// the smallest is four of them.
#[test]
fn what_is_kept_is_normal_or_zero_on_every_level_and_ends_at_zero() {
    let n = 67;
    let least = f32::MIN_POSITIVE;
    // Around the smallest normal number, of both signs, and zeros of both signs; zeros at last.
    let step = |s: u32, scale: f32| -> Vec<f32> {
        let share = |i: u32| (i * 7 + s * 13) % 41;
        let sign = |i: u32| if (i + s).is_multiple_of(3) { -1.0 } else { 1.0 };
        let entry = |i| if s < 9 { sign(i) * share(i) as f32 / 16.0 * least * scale } else { 0.0 };
        (0..n as u32).map(entry).collect()
    };
    for memory in Memory::examples() {
        // Squares of these are near the smallest normal number.
        let scale = if memory.facts().keeps == Keeps::SecondMoment { 9e18 } else { 1.0 };
        let steps: Vec<_> = (0..12).map(|s| step(s, scale)).collect();
        for (shift, codec) in [codecs(memory), scaled_codecs(memory)].concat().iter().enumerate() {
            on_every_level(codec, [1; 3], shift, |workspace| {
                let mut state = codec.init_state(n).unwrap();
                let run = |x: &Vec<f32>| {
                    let mut out = Vec::new();
                    codec
                        .encode_into(Input::F32(x), &mut state, None, workspace, &mut out)
                        .unwrap();
                    let (residual, moment, _) = contents(&state);
                    let tidy = |&v: &u32| v == 0 || f32::from_bits(v).is_normal();
                    assert!(residual.iter().chain(&moment).all(tidy), "{codec:?} {residual:?}");
                    (out, residual, moment)
                };
                steps.iter().map(run).collect::<Vec<_>>()
            });
        }
    }
}

#[test]
fn states_that_are_loaded_keep_no_subnormal_numbers() {
    let n = 4;
    let least = f32::MIN_POSITIVE;
    let values = [least, -least, 0.75 * least, -1e-45];
    let expected = bits(&[least, -least, 0.0, 0.0]);
    for memory in [FEEDBACK, low_pass(0.3), Memory::MomentumCorrection(MOMENTUM)] {
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
    for memory in [low_pass(0.3), MOMENTUM.into(), ADAM.into()] {
        let codec = of(sparsifier, Quantizer::BFloat16, memory);
        let run = |range: std::ops::Range<usize>| {
            let mut state = codec.init_state(range.len()).unwrap();
            for s in 0..3 {
                encode(&codec, &gradient(n, s)[range.clone()], &mut state);
            }
            let (residual, momentum, _) = contents(&state);
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
    let steps: Vec<_> = (10..14).map(|seed| gradient(n, seed)).collect();
    for beta in [0.1f32, 0.3, 0.7, 1.0] {
        for codec in codecs(low_pass(beta)) {
            let mut state = codec.init_state(n).unwrap();
            let mut oracle = reference::LowPass::new(f64::from(beta), n);
            for x in &steps {
                let before = state.residual().unwrap().to_vec();
                let (frame, _) = encode(&codec, x, &mut state);
                let (sent, at) = (decode(&frame, n), positions(&frame));
                oracle.step(x, &sent);
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
    let steps = steps(n);
    for (filter, residual) in codecs(low_pass(1.0)).iter().zip(&codecs(FEEDBACK)) {
        let (mut a, mut b) = (filter.init_state(n).unwrap(), residual.init_state(n).unwrap());
        for x in &steps {
            assert_eq!(encode(filter, x, &mut a), encode(residual, x, &mut b));
            assert_eq!(contents(&a), contents(&b), "{filter:?}");
        }
    }
}

#[test]
fn momentum_follows_the_equations_over_many_steps() {
    let n = 700;
    let steps: Vec<_> = (50..70).map(|seed| gradient(n, seed)).collect();
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
            for x in &steps {
                let (frame, _) = encode(&codec, x, &mut state);
                let mut at = positions(&frame);
                if codec.sparsifier() == Sparsifier::All {
                    at = (0..n as u32).collect();
                }
                oracle.step(x, &at, &decode(&frame, n));
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
fn clipping_scales_to_the_norm_and_leaves_shorter_gradients_alone() {
    let make = |clip| exact(top(1), MomentumCorrection { clip: Some(clip), ..MOMENTUM }.into());
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
    let (bad, _) = attempt(&make(1.0), Input::F32(&[1.0, f32::NAN]), &mut state, None);
    assert_eq!(bad, Err(Error::NonFinite { count: 1, first: 1 }));
}

#[test]
fn a_sum_that_overflows_is_found_though_the_memory_would_not() {
    // 0.1 of the gradient fits into float32 beside the memory, all of it does not.
    for codec in codecs(low_pass(0.1)) {
        let mut state = codec.init_state(3).unwrap();
        state.set_residual(&[0.0, 3e38, 0.0]).unwrap();
        let (result, _) = attempt(&codec, Input::F32(&[1.0, 2e38, 0.0]), &mut state, None);
        assert_eq!(result, Err(Error::NonFinite { count: 1, first: 1 }), "{codec:?}");
        assert_eq!(state.residual().unwrap(), [0.0, 3e38, 0.0]);
    }
}

#[test]
fn degenerate_tensors_pass_through_every_memory() {
    let tensors: [&[f32]; 6] = [&[], &[0.0], &[-3.0], &[0.0; 40], &[2.0; 40], &[0.0, 1e-45, 0.0]];
    for codec in Memory::examples().into_iter().flat_map(codecs) {
        for x in tensors {
            let mut state = codec.init_state(x.len()).unwrap();
            for _ in 0..3 {
                encode(&codec, x, &mut state);
            }
            assert!(floats(state.stored_residual()).iter().all(|r| r.is_finite()));
        }
    }
}
