//! Quantizers one entry at a time, in float64.

/// 1-bit SGD: each entry becomes the mean of the entries of its column that have its sign; zeros
/// count as positive. Columns are runs of `column` positions.
pub fn two_means(positions: &[u32], values: &[f32], column: usize) -> Vec<f64> {
    let same = |i: usize, j: usize| {
        positions[i] as usize / column == positions[j] as usize / column
            && (values[i] >= 0.0) == (values[j] >= 0.0)
    };
    let mean = |i: usize| {
        let fellows = (0..values.len()).filter(|&j| same(i, j));
        let (sum, count) =
            fellows.fold((0.0, 0.0), |(sum, count), j| (sum + f64::from(values[j]), count + 1.0));
        sum / count
    };
    (0..values.len()).map(mean).collect()
}

/// The mean of magnitudes with each entry's sign; zeros count as positive.
pub fn sign_mean(values: &[f32]) -> Vec<f64> {
    let mean = values.iter().map(|&v| f64::from(v.abs())).sum::<f64>() / values.len() as f64;
    values.iter().map(|&v| if v >= 0.0 { mean } else { -mean }).collect()
}

/// The root of the mean square with each entry's sign; zeros count as positive.
pub fn sign_rms(values: &[f32]) -> Vec<f64> {
    let squares = values.iter().map(|&v| f64::from(v) * f64::from(v));
    let square = squares.sum::<f64>() / values.len() as f64;
    values.iter().map(|&v| if v >= 0.0 { square.sqrt() } else { -square.sqrt() }).collect()
}

/// TernGrad's magnitude: the largest after clipping at so many standard deviations.
pub fn ternary_scale(values: &[f32], clip: f64) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let deviations = values.iter().map(|&v| f64::from(v) - mean);
    let variance = deviations.map(|d| d * d).sum::<f64>() / n;
    let peak = values.iter().fold(0.0_f64, |peak, &v| peak.max(f64::from(v).abs()));
    if variance > 0.0 { peak.min(clip * variance.sqrt()) } else { peak }
}
