//! Figures that papers state, of the codecs they describe.

use super::*;
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
    let codec = of(sparsifier, TOLD, FEEDBACK);
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
    let codec = of(sparsifier, TOLD, FEEDBACK);
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
    let codec = of(sparsifier, means, FEEDBACK);
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
