//! Figures that papers state, of the codecs they describe.

use super::*;
use crate::quantize::Magnitude;
use crate::rng::Key;

const TOLD: Quantizer = Quantizer::SignScale(SignScale { magnitude: Magnitude::Selector });

/// Independent normal numbers, by Box and Muller.
fn normal(n: usize, seed: u64) -> Vec<f32> {
    let key = Key::new(seed, 0, 0, 0);
    let unit = |i: u32| f64::from(key.unit(i)) + 1e-9;
    let one = |i: u32| {
        let radius = libm::sqrt(-2.0 * libm::log(unit(2 * i)));
        (radius * libm::cos(std::f64::consts::TAU * unit(2 * i + 1))) as f32
    };
    (0..n as u32).map(one).collect()
}

/// A steady state of AdaComp on independent normal gradients: entries sent for each of the tensor,
/// and all bits of the frame for each entry.
fn adacomp(bin: u32, soft: f32) -> (f64, f64) {
    let n = 50_000;
    let sparsifier = Sparsifier::BinMax(BinMax { bin, soft });
    let codec = Codec::new(sparsifier, TOLD, FEEDBACK, IndexCoding::Auto).unwrap();
    let mut state = codec.init_state(n).unwrap();
    let (mut sent, mut bytes) = (0.0, 0.0);
    for step in 0..100 {
        let (frame, encoded) = encode(&codec, &normal(n, step), &mut state);
        if step >= 90 {
            sent += encoded.count as f64;
            bytes += frame.len() as f64;
        }
    }
    (sent / (10.0 * n as f64), 8.0 * bytes / sent)
}

#[test]
fn adacomp_reaches_its_published_rates() {
    // Bits that the paper counts for an entry: the position in the bin and two for the value.
    let table = [
        (50, 8.0, 1.0, 200.0),
        (50, 8.0, 1.5, 97.0),
        (50, 8.0, 2.0, 40.4),
        (50, 8.0, 3.0, 20.5),
        (500, 16.0, 1.5, 473.0),
        (500, 16.0, 2.0, 166.0),
    ];
    for (bin, counted, soft, expected) in table {
        let (share, bits) = adacomp(bin, soft);
        let rate = 32.0 / (counted * share);
        let (entries, real) = (share * f64::from(bin), 32.0 / (bits * share));
        println!(
            "bins of {bin}, soft {soft}: {entries:.2} entries a bin, {rate:.1} times smaller as \
             counted, {real:.1} as sent ({bits:.2} bits per entry)"
        );
        assert!((0.9..1.1).contains(&(rate / expected)), "{bin} {soft}: {rate} for {expected}");
        // Positions among all entries take less than positions in a bin do, unless each bin has
        // exactly one.
        assert!(soft == 1.0 || bits < counted, "{bin} {soft}: {bits} bits");
    }
}

#[test]
fn adacomp_sends_the_mean_of_the_bins_largest_with_the_sign_of_the_sum() {
    let (n, bin) = (10_007, 50);
    let sparsifier = Sparsifier::BinMax(BinMax { bin: bin as u32, soft: 2.0 });
    let codec = Codec::new(sparsifier, TOLD, FEEDBACK, IndexCoding::Auto).unwrap();
    let mut state = codec.init_state(n).unwrap();
    for step in 0..5 {
        let x = normal(n, step);
        let before = state.residual().unwrap();
        let sums: Vec<f32> = x.iter().zip(before).map(|(x, r)| x + r).collect();
        let (frame, _) = encode(&codec, &x, &mut state);
        let (selected, magnitude) = reference::adacomp(&x, &sums, bin, 2.0);
        let sent = decode(&frame, n);
        for &i in &selected {
            let value = sent[i as usize];
            assert_eq!(value.abs(), magnitude as f32);
            assert_eq!(value > 0.0, sums[i as usize] > 0.0);
        }
    }
}

#[test]
fn adaptive_columns_take_their_means_and_a_sixtieth_of_the_bytes() {
    let (rows, columns) = (4096, 24);
    let n = rows * columns;
    let sparsifier = Sparsifier::TwoSided(TwoSided::new(32.0));
    let means = Quantizer::TwoMeans(TwoMeans { column: Some(rows as u32) });
    let codec = Codec::new(sparsifier, means, FEEDBACK, IndexCoding::Auto).unwrap();
    let mut state = codec.init_state(n).unwrap();
    for step in 0..6 {
        let x: Vec<f32> =
            normal(n, step).iter().enumerate().map(|(i, v)| v * (1 + i / rows) as f32).collect();
        let before = state.residual().unwrap();
        let sums: Vec<f32> = x.iter().zip(before).map(|(x, r)| x + r).collect();
        let (frame, encoded) = encode(&codec, &x, &mut state);
        assert!(frame.len() * 60 <= 4 * n, "{} bytes of {}", frame.len(), 4 * n);
        let header = *Frame::parse(&frame, None).unwrap().header();
        let bits = encoded.count.div_ceil(8);
        assert_eq!(header.value_len, bits + 8 * columns as u64 + 4, "one bit and two means");
        let sent = decode(&frame, n);
        let positions = positions(&frame);
        for column in 0..columns {
            for positive in [true, false] {
                let members: Vec<usize> = positions
                    .iter()
                    .map(|&i| i as usize)
                    .filter(|&i| i / rows == column && (sums[i] > 0.0) == positive)
                    .collect();
                let Some(&first) = members.first() else { continue };
                let error = |value: f64| -> f64 {
                    members.iter().map(|&i| (f64::from(sums[i]) - value).powi(2)).sum()
                };
                let value = f64::from(sent[first]);
                assert!(members.iter().all(|&i| sent[i] == sent[first]));
                let off = 1e-3 * value;
                assert!(error(value) < error(value + off) && error(value) < error(value - off));
            }
        }
    }
}

#[test]
fn strom_sends_plus_or_minus_the_threshold() {
    let n = 20_000;
    let sparsifier = Sparsifier::Threshold(Threshold { threshold: 1.5 });
    let codec = Codec::new(sparsifier, TOLD, FEEDBACK, IndexCoding::Auto).unwrap();
    let mut state = codec.init_state(n).unwrap();
    let x = normal(n, 3);
    let (frame, _) = encode(&codec, &x, &mut state);
    let sent = decode(&frame, n);
    for i in 0..n {
        let expected = if x[i].abs() > 1.5 { 1.5f32.copysign(x[i]) } else { 0.0 };
        assert_eq!(sent[i], expected);
        assert_eq!(state.residual().unwrap()[i], x[i] - expected);
    }
}

#[test]
fn presets_of_signs_conserve_and_agree_on_every_level_and_thread_count() {
    let means = Quantizer::TwoMeans(TwoMeans { column: Some(1000) });
    let codecs = [
        (Sparsifier::BinMax(BinMax { bin: 50, soft: 2.0 }), TOLD),
        (Sparsifier::BinMax(BinMax { bin: 500, soft: 2.0 }), TOLD),
        (Sparsifier::TwoSided(TwoSided::new(32.0)), means),
        (Sparsifier::Threshold(Threshold { threshold: 0.2 }), TOLD),
    ]
    .map(|(sparsifier, quantizer)| {
        Codec::new(sparsifier, quantizer, FEEDBACK, IndexCoding::Auto).unwrap()
    });
    for n in [0, 1, 1000, 300_000] {
        let spike = (0..n).map(|i| if i == n / 2 { f32::from_bits(3) } else { 0.0 }).collect();
        let steps = [gradient(n, 5), vec![0.0; n], vec![-0.5; n], spike, gradient(n, 6)];
        for codec in &codecs {
            let mut runs = Vec::new();
            for level in available_levels() {
                for threads in [1, 2, 3] {
                    let mut workspace = Workspace::with(Kernels::of(level).unwrap(), threads);
                    runs.push(run(codec, &steps, &mut workspace));
                }
            }
            assert!(runs.windows(2).all(|pair| pair[0] == pair[1]), "{codec:?} {n}");
        }
    }
}

/// Encodes the steps, each twice with a rollback between, and checks what is left of each.
fn run(codec: &Codec, steps: &[Vec<f32>], workspace: &mut Workspace) -> Vec<Vec<u8>> {
    let n = steps[0].len();
    let mut state = codec.init_state(n).unwrap();
    let mut frames = Vec::new();
    for x in steps {
        let before = state.residual().unwrap().to_vec();
        let mut once = |state: &mut State| {
            let mut out = Vec::new();
            codec.encode_into(Input::F32(x), state, None, workspace, &mut out).unwrap();
            out
        };
        let frame = once(&mut state);
        state.rollback().unwrap();
        assert_eq!(state.residual().unwrap(), before);
        assert_eq!(once(&mut state), frame);
        let (sent, after) = (decode(&frame, n), state.residual().unwrap());
        for i in 0..n {
            let sum = reference::kept(x[i] + before[i]);
            assert_eq!(after[i], reference::kept(sum - sent[i]), "{codec:?} {i}");
        }
        frames.push(frame);
    }
    frames
}
