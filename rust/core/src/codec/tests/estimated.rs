//! Selections by a threshold that is estimated, and by bins, against their oracles.

use super::*;
use crate::rng::Key;
use crate::sparsify::Plan;

/// Tensors of several laws; those of one length follow each other in one state.
fn laws(n: usize) -> Vec<Vec<f32>> {
    let mut laws = vec![gradient(n, 1), gradient(n, 2), vec![0.5; n], vec![0.0; n], gradient(n, 3)];
    laws.push(gradient(n, 3).iter().map(|v| v * 1000.0).collect());
    laws.push(gradient(n, 4).iter().map(|v| v * 1e-3).collect());
    laws.push(gradient(n, 5).iter().map(|v| v.powi(9)).collect());
    laws.push(gradient(n, 6).iter().map(|v| v.abs()).collect());
    laws.push((0..n).map(|i| if i % 100 == 3 { -1.0 } else { 0.0 }).collect());
    let mut spike = vec![0.0; n];
    spike[n / 2] = f32::MIN_POSITIVE / 8.0;
    laws.push(spike);
    laws
}

/// Encodes all laws in a row in one state, and compares the positions with an oracle's, which knows
/// the step.
fn check(sparsifier: Sparsifier, n: usize, oracle: impl Fn(&[f32], u64) -> Vec<u32>) {
    let codec = exact(sparsifier, Memory::None);
    let mut state = codec.init_state(n).unwrap();
    for (step, x) in laws(n).iter().enumerate() {
        let (frame, encoded) = encode(&codec, x, &mut state);
        let same = positions(&frame) == oracle(x, step as u64);
        assert!(same, "{sparsifier:?} of {n}, law {step}");
        assert!(encoded.count <= sparsifier.max_count(n));
    }
}

#[test]
fn a_sample_gives_the_threshold_and_magnitude_decides_what_is_too_much() {
    for n in [1, 2, 100, 5000, 200_000] {
        for ratio in [0.001, 0.02, 0.3, 1.0] {
            let sampled = SampledTopK::new(ratio);
            let Plan { stride, samples, above } = Plan::new(ratio, sampled.sample_ratio, n);
            check(Sparsifier::SampledTopK(sampled), n, |x, step| {
                let draw = u64::from(Key::new(0, 0, step, 0).bits(0));
                let start = ((draw * stride as u64) >> 32) as usize;
                let sample: Vec<f32> = (0..samples).map(|j| x[start + j * stride]).collect();
                let k = libm::ceil(n as f64 * ratio) as usize;
                reference::sampled(x, &sample, above, k, 0.8)
            });
        }
    }
}

#[test]
fn dgc_never_truncates_by_position() {
    // All that matters is at the end, and the sample asks for too much: the published code keeps
    // the first k of what is above its threshold.
    let n = 100_000;
    let x: Vec<f32> = (0..n).map(|i| 1.0 + i as f32 / n as f32).collect();
    let codec = exact(Sparsifier::SampledTopK(SampledTopK::new(0.01)), FEEDBACK);
    let mut state = codec.init_state(n).unwrap();
    let mut exceeded = 0;
    for _ in 0..20 {
        let sums: Vec<f32> =
            x.iter().zip(state.residual().unwrap()).map(|(x, residual)| x + residual).collect();
        let (frame, encoded) = encode(&codec, &x, &mut state);
        assert_eq!(positions(&frame), reference::largest(&sums, encoded.count as usize));
        exceeded += u32::from(encoded.count == 1000);
    }
    assert!(exceeded > 3, "the sample was never too generous");
}

#[test]
fn dgc_with_a_threshold_of_zero_selects_the_largest_and_no_zeros() {
    let n = 100_000;
    for (nonzeros, expected) in [(20, 20), (1000, 1000), (5000, 1000)] {
        let x: Vec<f32> =
            (0..n).map(|i| if i % (n / nonzeros) == 1 { i as f32 + 1.0 } else { 0.0 }).collect();
        for resample in [true, false] {
            let sampled = SampledTopK { resample, ..SampledTopK::new(0.01) };
            let codec = exact(Sparsifier::SampledTopK(sampled), Memory::None);
            let (frame, _) = encode(&codec, &x, &mut codec.init_state(n).unwrap());
            let most = reference::largest(&x, 1000);
            assert_eq!(most.len(), expected);
            assert_eq!(positions(&frame), most);
        }
    }
}

#[test]
fn a_sample_is_drawn_again_the_same_and_another_in_the_next_step() {
    let n = 50_000;
    let x = gradient(n, 8);
    for strided in [true, false] {
        // Fewer than k are sent as they are, and so show which threshold there was.
        let sampled = SampledTopK { strided, ..SampledTopK::new(0.3) };
        let codec = exact(Sparsifier::SampledTopK(sampled), Memory::None);
        let run = || {
            let mut state = codec.init_state(n).unwrap();
            (0..12).map(|_| encode(&codec, &x, &mut state).1.threshold).collect::<Vec<_>>()
        };
        let thresholds = run();
        assert_eq!(thresholds, run());
        assert!(thresholds.windows(2).any(|pair| pair[0] != pair[1]));
    }
}

#[test]
fn a_normal_law_gives_the_threshold() {
    for n in [2, 100, 5000, 200_000] {
        for ratio in [0.001, 0.02, 0.3] {
            let k = Amount::Ratio(ratio).of(n) as usize;
            let sparsifier = Sparsifier::Gaussian(Gaussian::new(ratio));
            check(sparsifier, n, |x, _| reference::gaussian(x, k));
        }
    }
}

#[test]
fn gaussian_with_a_band_keeps_it_on_whatever_comes() {
    let n = 100_000;
    for ratio in [0.001, 0.05] {
        let gaussian = Gaussian { band: Some((0.8, 1.25)), ..Gaussian::new(ratio) };
        let codec = exact(Sparsifier::Gaussian(gaussian), Memory::None);
        let mut state = codec.init_state(n).unwrap();
        let dense = |x: &Vec<f32>| x.iter().filter(|v| **v != 0.0).count() > n / 2;
        for x in laws(n).iter().filter(|x| dense(x)) {
            let achieved = encode(&codec, x, &mut state).1.count as f64 / (n as f64 * ratio);
            assert!((0.8..=1.25).contains(&achieved), "{ratio} {achieved}");
        }
    }
}

#[test]
fn redsync_trims_to_exactly_k_and_searches_for_k_to_2k() {
    for n in [1, 100, 5000, 200_000] {
        for ratio in [0.001, 0.02, 0.3, 1.0] {
            let k = Amount::Ratio(ratio).of(n) as usize;
            let trim = Trimmed::new(ratio);
            check(Sparsifier::Trimmed(trim), n, |x, _| reference::largest(x, k));
            let search = Trimmed { method: TrimMethod::Search, ..trim };
            check(Sparsifier::Trimmed(search), n, |x, _| {
                let selected = reference::redsync(x, k, 0.2);
                let nonzeros = x.iter().filter(|v| **v != 0.0).count();
                assert!((k.min(nonzeros)..=2 * k).contains(&selected.len()));
                selected
            });
        }
    }
}

#[test]
fn two_sided_takes_entries_at_or_beyond_the_thresholds_of_the_sample() {
    for n in [1500, 5000, 200_000] {
        for proportion in [4.0, 32.0, 500.0] {
            let two_sided = TwoSided::new(proportion);
            check(Sparsifier::TwoSided(two_sided), n, |x, step| {
                let key = Key::new(0, 0, step, 0);
                let draw = |j| ((u64::from(key.bits(j)) * n as u64) >> 32) as usize;
                let sample: Vec<f32> = (0..1024).map(|j| x[draw(j)]).collect();
                let kept = ((1024.0 / proportion) as usize).max(1);
                let most = (4.0 * n as f64 / proportion) as usize;
                reference::two_sided(x, &sample, kept, most)
            });
        }
    }
}

#[test]
fn two_sided_without_a_sample_takes_one_in_proportion() {
    for n in [1, 7, 1024, 20_000] {
        for (proportion, sample) in [(32.0, None), (4.0, None), (1.0, None), (32.0, Some(1 << 20))]
        {
            let two_sided = TwoSided { sample, ..TwoSided::new(proportion) };
            let k = ((n as f64 / proportion) as usize).max(1);
            check(Sparsifier::TwoSided(two_sided), n, |x, _| reference::largest(x, k));
        }
    }
}

#[test]
fn two_sided_keeps_what_is_beyond_its_limit_smallest_first() {
    // One large entry in 50: the sample's last kept one is small, and everything is beyond it.
    let n = 100_000;
    let x: Vec<f32> =
        (0..n).map(|i| if i % 50 == 0 { 5.0 + i as f32 } else { 1.0 + i as f32 * 1e-9 }).collect();
    let codec = exact(Sparsifier::TwoSided(TwoSided::new(32.0)), FEEDBACK);
    let mut state = codec.init_state(n).unwrap();
    let (frame, encoded) = encode(&codec, &x, &mut state);
    assert!(encoded.count <= 4 * n as u64 / 32);
    assert_eq!(positions(&frame), reference::largest(&x, encoded.count as usize));
    let sent = decode(&frame, n);
    assert!((0..n).all(|i| sent[i] + state.residual().unwrap()[i] == x[i]));
}

#[test]
fn adacomp_selects_what_its_definition_does_at_every_level_and_thread_count() {
    let lengths = [(1, 50), (777, 1), (100_003, 50), (200_000, 500), (9000, 2048), (200_007, 9999)];
    for (shift, (n, bin)) in lengths.into_iter().enumerate() {
        for soft in [1.0, 2.0] {
            let codec = exact(Sparsifier::BinMax(BinMax { bin, soft }), FEEDBACK);
            on_every_level(&codec, [1, 2, 3], shift, |workspace| {
                let mut state = codec.init_state(n).unwrap();
                for step in 0..3 {
                    let (x, before) = (gradient(n, 20 + step), state.residual().unwrap());
                    let sum = |(x, r): (&f32, &f32)| reference::kept(x + r);
                    let sums: Vec<f32> = x.iter().zip(before).map(sum).collect();
                    let (input, mut out) = (Input::F32(&x), Vec::new());
                    codec.encode_into(input, &mut state, None, workspace, &mut out).unwrap();
                    let (expected, _) = reference::adacomp(&x, &sums, bin as usize, soft);
                    assert_eq!(positions(&out), expected, "{bin} {soft}");
                }
            });
        }
    }
}

#[test]
fn adacomp_sends_nothing_of_bins_of_zeros() {
    let mut x = vec![0.0; 1000];
    x[130] = -0.5;
    let codec = exact(Sparsifier::BinMax(BinMax { bin: 50, soft: 2.0 }), FEEDBACK);
    let (frame, _) = encode(&codec, &x, &mut codec.init_state(1000).unwrap());
    assert_eq!(positions(&frame), [130]);
    let (frame, _) = encode(&codec, &[0.0; 1000], &mut codec.init_state(1000).unwrap());
    assert!(positions(&frame).is_empty());
}
