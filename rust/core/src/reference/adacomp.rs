//! AdaComp's selection, a bin at a time.

/// Positions that are sent of these sums, and the mean over the bins of their largest magnitude.
pub fn adacomp(gradient: &[f32], sums: &[f32], bin: usize, soft: f32) -> (Vec<u32>, f64) {
    let (mut positions, mut total, mut bins) = (Vec::new(), 0.0, 0.0);
    for (b, whole) in sums.chunks(bin).enumerate() {
        let most = whole.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        total += f64::from(most);
        bins += 1.0;
        for (j, &sum) in whole.iter().enumerate() {
            let i = b * bin + j;
            let ahead = sum + (soft - 1.0) * gradient[i];
            if most > 0.0 && ahead.abs() >= most && sum != 0.0 {
                positions.push(i as u32);
            }
        }
    }
    (positions, total / bins)
}
