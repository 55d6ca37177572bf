//! The right entries are selected, whatever was tracked.

use super::*;

#[test]
fn top_k_is_exact_whatever_the_bound_was() {
    for n in [1, 100, 5000, 200_000] {
        for k in [1, 7, n / 100 + 1, n / 3 + 1, n] {
            let codec = exact(top(k as u64), Memory::None);
            let mut state = codec.init_state(n).unwrap();
            // Each law after the other: the bound of one is wrong by far for the next.
            let mut laws = vec![gradient(n, 1), vec![0.5; n], vec![0.0; n], gradient(n, 2)];
            laws.push(gradient(n, 3).iter().map(|v| v * 1000.0).collect());
            laws.push(gradient(n, 4).iter().map(|v| v * 1e-3).collect());
            laws.push((0..n).map(|i| if i % 3 == 0 { 1.0 } else { 0.0 }).collect());
            let mut spike = vec![0.0; n];
            spike[n / 2] = f32::MIN_POSITIVE / 8.0;
            laws.push(spike);
            for (law, x) in laws.iter().enumerate() {
                let (frame, encoded) = encode(&codec, x, &mut state);
                assert_eq!(positions(&frame), reference::largest(x, k), "law {law}, {k} of {n}");
                assert_eq!(encoded.target, Some(k.min(n) as u64));
            }
        }
    }
}

#[test]
fn a_threshold_selects_what_is_strictly_above() {
    let x = gradient(10_000, 5);
    for threshold in [0.0, 0.01, 0.25, 3.0] {
        let sparsifier = Sparsifier::Threshold(Threshold { threshold });
        let codec = exact(sparsifier, Memory::None);
        let (frame, _) = encode(&codec, &x, &mut codec.init_state(x.len()).unwrap());
        assert_eq!(positions(&frame), reference::above(&x, threshold));
    }
}

#[test]
fn tracked_bounds_do_not_change_what_sid_selects() {
    let n = 200_000;
    for law in [Distribution::Exponential, Distribution::Gamma, Distribution::GeneralizedPareto] {
        let codec = exact(sid(0.005, law), FEEDBACK);
        let (mut tracked, mut fresh) = (codec.init_state(n).unwrap(), codec.init_state(n).unwrap());
        for step in 0..6 {
            let x = gradient(n, 50 + step);
            fresh.tracked.tracker.bound =
                [None, Some(0.0), Some(1e-3), Some(10.0)][step as usize % 4];
            assert_eq!(encode(&codec, &x, &mut tracked), encode(&codec, &x, &mut fresh));
        }
    }
}
