//! Codes of packed weights by what a layer's inputs say, one row at a time, in float64.

/// The step and the base of a block.
pub type Grid = [f64; 2];

/// The code next to a value, ties to even.
pub fn nearest([step, base]: Grid, bits: u8, value: f64) -> u8 {
    let most = f64::from((1_u32 << bits) - 1);
    if step > 0.0 { ((value - base) / step).round_ties_even().clamp(0.0, most) as u8 } else { 0 }
}

/// The values of codes.
pub fn values(codes: &[u8], grids: &[Grid]) -> Vec<f64> {
    let block = codes.len() / grids.len();
    let value = |(i, &code)| {
        let [step, base]: Grid = grids[i / block];
        base + step * f64::from(code)
    };
    codes.iter().enumerate().map(value).collect()
}

/// `gram` and on its diagonal `damp` times the mean of that.
pub fn damped(gram: &[f64], damp: f64) -> Vec<f64> {
    let cols = gram.len().isqrt();
    let mean = (0..cols).map(|i| gram[i * (cols + 1)]).sum::<f64>() / cols as f64;
    let mut damped = gram.to_vec();
    for i in 0..cols {
        damped[i * (cols + 1)] += damp * mean;
    }
    damped
}

/// `(q - w) H (q - w)ᵀ`.
pub fn objective(row: &[f64], values: &[f64], matrix: &[f64]) -> f64 {
    let errors: Vec<f64> = values.iter().zip(row).map(|(q, w)| q - w).collect();
    let pairs = matrix.chunks(row.len()).zip(&errors);
    let part = |(line, error): (&[f64], &f64)| {
        error * line.iter().zip(&errors).map(|(x, e)| x * e).sum::<f64>()
    };
    pairs.map(part).sum()
}

/// Frantar et al., 2022, Algorithm 1, with the columns of the largest inputs first: what a column leaves is
/// spread over the later ones by a row of the upper Cholesky factor of the inverse of `H`.
pub fn gptq(row: &[f64], grids: &[Grid], bits: u8, matrix: &[f64]) -> Vec<u8> {
    let cols = row.len();
    let mut order: Vec<usize> = (0..cols).collect();
    order.sort_by(|&a, &b| matrix[b * (cols + 1)].total_cmp(&matrix[a * (cols + 1)]));
    let permuted: Vec<f64> =
        order.iter().flat_map(|&i| order.iter().map(move |&j| matrix[i * cols + j])).collect();
    let upper = transposed(&cholesky(&inverse(&permuted, cols), cols), cols);
    let mut left: Vec<f64> = order.iter().map(|&i| row[i]).collect();
    let mut codes = vec![0; cols];
    for (i, &column) in order.iter().enumerate() {
        let [step, base] = grids[column * grids.len() / cols];
        let code = nearest([step, base], bits, left[i]);
        let error = (left[i] - (base + step * f64::from(code))) / upper[i * (cols + 1)];
        for j in i + 1..cols {
            left[j] -= error * upper[i * cols + j];
        }
        codes[column] = code;
    }
    codes
}

/// Coordinate descent on codes alone: each in turn the best one, all others as they are, until none changes.
pub fn descent(
    row: &[f64],
    grids: &[Grid],
    bits: u8,
    matrix: &[f64],
    mut codes: Vec<u8>,
) -> Vec<u8> {
    let block = row.len() / grids.len();
    loop {
        let before = codes.clone();
        for i in 0..row.len() {
            let errors = values(&codes, grids);
            let slope: f64 =
                (0..row.len()).map(|j| matrix[i * row.len() + j] * (errors[j] - row[j])).sum();
            let curve = matrix[i * (row.len() + 1)];
            codes[i] = nearest(grids[i / block], bits, errors[i] - slope / curve);
        }
        if codes == before {
            return codes;
        }
    }
}

/// The step and the base of one block with the least objective, by its codes: two equations.
pub fn refit(row: &[f64], grid: Grid, matrix: &[f64], codes: &[u8]) -> Grid {
    let cols = row.len();
    let errors: Vec<f64> = values(codes, &[grid]).iter().zip(row).map(|(q, w)| q - w).collect();
    let codes: Vec<f64> = codes.iter().map(|&code| f64::from(code)).collect();
    let ones = vec![1.0; cols];
    let form = |a: &[f64], b: &[f64]| -> f64 {
        let line =
            |i: usize| matrix[i * cols..][..cols].iter().zip(b).map(|(x, b)| x * b).sum::<f64>();
        (0..cols).map(|i| a[i] * line(i)).sum()
    };
    let [squares, mixed, all] = [form(&codes, &codes), form(&codes, &ones), form(&ones, &ones)];
    let [by_code, total] = [form(&codes, &errors), form(&ones, &errors)];
    let determinant = squares * all - mixed * mixed;
    [
        grid[0] - (by_code * all - total * mixed) / determinant,
        grid[1] - (total * squares - by_code * mixed) / determinant,
    ]
}

/// Where magnitudes end so that what is beyond is `alpha` in sum.
pub fn limit(values: &[f64], alpha: f64) -> f64 {
    let mut magnitudes: Vec<f64> = values.iter().map(|x| x.abs()).collect();
    magnitudes.sort_by(|a, b| b.total_cmp(a));
    let mut sum = 0.0;
    let limits = magnitudes.iter().enumerate().map(|(i, x)| {
        sum += x;
        (sum - alpha) / (i + 1) as f64
    });
    limits.fold(0.0, f64::max)
}

/// A step of proximal gradient descent: half the squared error of outputs, and `alpha` times the largest magnitude
/// of each block.
pub fn magr_step(
    before: &[f64],
    row: &[f64],
    (matrix, block): (&[f64], usize),
    alpha: f64,
) -> Vec<f64> {
    let cols = row.len();
    let moved: Vec<f64> = (0..cols)
        .map(|j| {
            let slopes = (0..cols).map(|i| (row[i] - before[i]) * matrix[i * cols + j]);
            row[j] - slopes.sum::<f64>()
        })
        .collect();
    let blocks = moved.chunks(block).flat_map(|moved| {
        let limit = limit(moved, alpha);
        moved.iter().map(move |x| x.clamp(-limit, limit))
    });
    blocks.collect()
}

/// L of `L Lᵀ`.
fn cholesky(matrix: &[f64], cols: usize) -> Vec<f64> {
    let mut lower = vec![0.0; cols * cols];
    for i in 0..cols {
        for j in 0..=i {
            let taken: f64 = (0..j).map(|k| lower[i * cols + k] * lower[j * cols + k]).sum();
            let left = matrix[i * cols + j] - taken;
            lower[i * cols + j] = if i == j { left.sqrt() } else { left / lower[j * (cols + 1)] };
        }
    }
    lower
}

/// By `L Lᵀ`, one column of the identity at a time.
fn inverse(matrix: &[f64], cols: usize) -> Vec<f64> {
    let lower = cholesky(matrix, cols);
    let mut out = vec![0.0; cols * cols];
    for column in 0..cols {
        let mut x = vec![0.0; cols];
        x[column] = 1.0;
        for i in 0..cols {
            let taken: f64 = (0..i).map(|k| lower[i * cols + k] * x[k]).sum();
            x[i] = (x[i] - taken) / lower[i * (cols + 1)];
        }
        for i in (0..cols).rev() {
            let taken: f64 = (i + 1..cols).map(|k| lower[k * cols + i] * x[k]).sum();
            x[i] = (x[i] - taken) / lower[i * (cols + 1)];
            out[i * cols + column] = x[i];
        }
    }
    out
}

fn transposed(matrix: &[f64], cols: usize) -> Vec<f64> {
    (0..cols * cols).map(|at| matrix[at % cols * cols + at / cols]).collect()
}
