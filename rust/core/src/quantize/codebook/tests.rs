//! Judged by the best that sorting can find, and by the quantizer of the paper.

use super::*;
use crate::rng::Key;

/// Errors are measured as the root of the mean square, as a share of that of the values.
fn relative_error(values: &[f32], decoded: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let error: f64 = values.iter().zip(decoded).map(|(v, d)| square(f64::from(v - d))).sum();
    (error / values.iter().map(|v| square(f64::from(*v))).sum::<f64>()).sqrt()
}

fn round(bits: u8, values: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; values.len()];
    let blocks = values.chunks(BLOCK as usize).zip(out.chunks_mut(BLOCK as usize));
    for (block, out) in blocks {
        let scales = scales(bits, block);
        let mut codes = vec![0xAA; block.len()];
        code(bits, block, &scales, &mut codes);
        assert!(codes.iter().all(|code| code >> bits == 0));
        super::values(bits, &codes, &scales, out);
    }
    out
}

/// Uniform numbers above zero and below one.
fn uniform(seed: u64) -> impl Iterator<Item = f64> {
    let key = Key::new(seed, 0, 0, 0);
    (0..).map(move |at| (f64::from(key.bits(at)) + 0.5) / 4_294_967_296.0)
}

fn normal(seed: u64) -> impl Iterator<Item = f64> {
    let mut units = uniform(seed);
    std::iter::from_fn(move || {
        let (a, b) = (units.next()?, units.next()?);
        Some((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos())
    })
}

fn laplace(seed: u64) -> impl Iterator<Item = f64> {
    uniform(seed).map(|u| if u < 0.5 { (2.0 * u).ln() } else { -(2.0 - 2.0 * u).ln() })
}

/// Student's t with three degrees of freedom.
fn student(seed: u64) -> impl Iterator<Item = f64> {
    let mut normals = normal(seed);
    std::iter::from_fn(move || {
        let [x, a, b, c] = [0; 4].map(|_| normals.next().unwrap_or(1.0));
        Some(x / ((a * a + b * b + c * c) / 3.0).sqrt())
    })
}

/// The 64 largest of every 4096, from 128 chunks.
fn largest_of_chunks(source: impl Iterator<Item = f64>) -> Vec<f32> {
    let all: Vec<f32> = source.take(128 * 4096).map(|x| x as f32).collect();
    let top = |chunk: &[f32]| {
        let mut chunk = chunk.to_vec();
        chunk.sort_by(|a, b| b.abs().total_cmp(&a.abs()));
        chunk[..64].to_vec()
    };
    all.chunks(4096).flat_map(top).collect()
}

#[test]
fn two_magnitudes_are_as_good_as_the_best_there_are() {
    for (name, values) in [
        ("all of a Gaussian", normal(4).take(4096).map(|x| x as f32).collect::<Vec<_>>()),
        ("large of a Laplace", largest_of_chunks(laplace(5))[..4096].to_vec()),
        ("few", student(6).take(11).map(|x| x as f32).collect()),
    ] {
        let mut sorted: Vec<f64> = values.iter().map(|v| f64::from(v.abs())).collect();
        sorted.sort_by(f64::total_cmp);
        let error = |part: &[f64]| {
            let mean = part.iter().sum::<f64>() / part.len() as f64;
            part.iter().map(|x| (x - mean).powi(2)).sum::<f64>()
        };
        let cuts = (1..sorted.len()).step_by(1 + sorted.len() / 500);
        let best = cuts.map(|cut| error(&sorted[..cut]) + error(&sorted[cut..]));
        let best = best.fold(f64::INFINITY, f64::min);
        let all = sorted.iter().map(|x| x * x).sum::<f64>();
        let ours = relative_error(&values, &round(2, &values)).powi(2) * all;
        assert!(ours <= 1.005 * best, "{name}: {ours} against {best}");
    }
}

#[test]
fn more_bits_err_less_and_each_magnitude_is_the_mean_of_its_values() {
    let values: Vec<f32> = normal(7).take(4096).map(|x| x as f32).collect();
    let mut last = 1.0;
    for bits in BITS {
        let error = relative_error(&values, &round(bits, &values));
        // A bit more takes about half of the error off.
        assert!(error < 0.67 * last, "{bits} bits: {error} after {last}");
        last = error;
        let scales = scales(bits, &values);
        let scales = &scales[..magnitudes(bits)];
        let mut codes = vec![0; values.len()];
        code(bits, &values, &super::scales(bits, &values), &mut codes);
        for (level, &scale) in scales.iter().enumerate() {
            let own = codes.iter().zip(&values);
            let own = own.filter(|(c, _)| usize::from(**c & !(1 << (bits - 1))) == level);
            let (n, sum) = own.fold((0.0, 0.0), |(n, s), (_, v)| (n + 1.0, s + v.abs()));
            assert!((sum / n - scale).abs() <= 0.02 * scale, "{bits} bits, {level}: {scale}");
        }
        assert!(scales.is_sorted());
    }
}

#[test]
fn as_few_magnitudes_as_the_book_has_are_exact() {
    let tiny = f32::from_bits(1);
    for (bits, values) in [
        (1, vec![]),
        (1, vec![0.1; 4096]),
        (2, vec![0.0; 100]),
        (2, vec![-0.1, 0.1, 0.1]),
        (2, vec![0.0, 0.0, 0.0, -7.25, 0.0]),
        (2, vec![1e-30, -1.0, 1.0, 1e-30]),
        (2, vec![f32::MAX; 4096]),
        (2, vec![-f32::MAX, f32::MAX, 1.0, 1.0]),
        (2, vec![tiny, -tiny, 3.0 * tiny, tiny]),
        (3, vec![1.0, -2.0, 3.0, -4.0, 1.0]),
        (3, vec![1.0, -2.0, 4.0, -8.0, 8.0]),
        (4, vec![1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0, 1.0]),
    ] {
        let rounded = round(bits, &values);
        // (1e-30 shares the cell of all that is far below the largest, and is alone there.)
        assert_eq!(rounded, values, "{bits} bits");
    }
}

#[test]
fn magnitudes_scale_with_the_values_and_do_not_know_their_signs() {
    let values: Vec<f32> = laplace(8).take(1000).map(|x| x as f32).collect();
    let scales = super::scales(3, &values);
    let turned: Vec<f32> = values.iter().map(|v| -v * 1024.0).collect();
    assert_eq!(super::scales(3, &turned), scales.map(|s| s * 1024.0));
}
