//! `out[i][j] += sum over k of a[i][k] * b[k][j]`, in float32 and in float64.
//!
//! Every entry of `out` is one chain of fused multiply-adds, in the order of `k`, that begins from what `out`
//! holds. So a product is the same on every level, and it may be cut into parts anywhere: by rows, by columns,
//! and by ascending `k`.
//!
//! A tile of `out` stays in registers for some [`DEPTH`] of `k`. The columns of `b` that it needs are copied to
//! memory in a row, which stays in the first-level cache for all rows of `a`; where they lie nearly so
//! ([`NEAR`]), they are read in place.

mod lanes;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Steps of `k` that a tile stays in registers for.
const DEPTH: usize = 192;

/// Rows of `a` that one copy of some columns of `b` is made for.
const ROWS: usize = 512;

/// Bytes that rows of `b` are apart at most to be read in place.
const NEAR: usize = 256;

/// A matrix whose rows begin `stride` entries apart.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, T = f32> {
    /// The entries.
    pub values: &'a [T],
    /// From a row to the next.
    pub stride: usize,
}

/// The same, to be written.
#[derive(Debug)]
pub struct MatrixMut<'a, T = f32> {
    /// The entries.
    pub values: &'a mut [T],
    /// From a row to the next.
    pub stride: usize,
}

/// Numbers of rows, of steps of `k`, and of columns.
pub type Shape = [usize; 3];

/// Whether so many entries hold a matrix.
fn holds(len: usize, stride: usize, rows: usize, cols: usize) -> bool {
    rows == 0 || cols == 0 || (cols <= stride && (rows - 1) * stride + cols <= len)
}

/// Panics unless all entries of a product are there.
fn check<T: Copy>(out: &MatrixMut<'_, T>, a: Matrix<'_, T>, b: Matrix<'_, T>, shape: Shape) {
    let [rows, depth, cols] = shape;
    assert!(holds(out.values.len(), out.stride, rows, cols), "out is too short");
    assert!(holds(a.values.len(), a.stride, rows, depth), "a is too short");
    assert!(holds(b.values.len(), b.stride, depth, cols), "b is too short");
}

/// The levels' functions for one type of entries.
macro_rules! levels {
    ($name:ident, $element:ty, $plain:ty, $avx2:ident, $avx512:ident) => {
        pub(in crate::simd) mod $name {
            use super::{Matrix, MatrixMut, Shape, check, lanes, tile};
            #[cfg(target_arch = "aarch64")]
            pub(in crate::simd) use scalar as neon;

            pub(in crate::simd) fn scalar(
                mut out: MatrixMut<'_, $element>,
                a: Matrix<'_, $element>,
                b: Matrix<'_, $element>,
                shape: Shape,
            ) {
                check(&out, a, b, shape);
                // SAFETY: needs no features, and all entries are there.
                unsafe { tile::product::<$plain, 4>(&mut out, a, b, shape) };
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            pub(in crate::simd) fn avx2(
                mut out: MatrixMut<'_, $element>,
                a: Matrix<'_, $element>,
                b: Matrix<'_, $element>,
                shape: Shape,
            ) {
                check(&out, a, b, shape);
                // SAFETY: this function has the features of the vector, and all entries are there.
                unsafe { tile::product::<super::x86::$avx2, 6>(&mut out, a, b, shape) };
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            pub(in crate::simd) fn avx512(
                mut out: MatrixMut<'_, $element>,
                a: Matrix<'_, $element>,
                b: Matrix<'_, $element>,
                shape: Shape,
            ) {
                check(&out, a, b, shape);
                // SAFETY: as above.
                unsafe { tile::product::<super::x86::$avx512, 12>(&mut out, a, b, shape) };
            }
        }
    };
}

levels!(single, f32, lanes::Plain<f32, 8>, Avx2Single, Avx512Single);
levels!(double, f64, lanes::Plain<f64, 4>, Avx2Double, Avx512Double);

#[cfg(test)]
mod tests {
    use super::{DEPTH, Matrix, MatrixMut};
    use crate::simd::testing::tensor;
    use crate::simd::{Kernels, available_levels};

    #[test]
    fn every_entry_is_one_chain_of_fused_sums_on_every_level() {
        let shapes = [[0, 3, 4], [3, 0, 4], [3, 4, 0], [1, 1, 1], [5, 7, 3], [13, 5, 33]];
        let long = [[25, DEPTH + 1, 47], [7, 2 * DEPTH + 9, 65], [37, 40, 32], [515, 3, 17]];
        for shape in shapes.into_iter().chain(long) {
            let [rows, depth, cols] = shape;
            for apart in [0, 1, 70] {
                let strides = [cols + apart, depth + apart, cols + apart];
                let a = tensor(rows * strides[1], 1);
                let b = tensor(depth * strides[2], 2);
                let before = tensor(rows * strides[0], 3);
                let mut expected = before.clone();
                let mut wide: Vec<f64> = before.iter().map(|&x| f64::from(x)).collect();
                let before_wide = wide.clone();
                for i in 0..rows {
                    for j in 0..cols {
                        for k in 0..depth {
                            let [x, y] = [a[i * strides[1] + k], b[k * strides[2] + j]];
                            let out = &mut expected[i * strides[0] + j];
                            *out = x.mul_add(y, *out);
                            let out = &mut wide[i * strides[0] + j];
                            *out = f64::from(x).mul_add(f64::from(y), *out);
                        }
                    }
                }
                let [a_wide, b_wide] =
                    [&a, &b].map(|m| m.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
                for level in available_levels() {
                    let kernels = Kernels::of(level).unwrap();
                    let mut out = before.clone();
                    kernels.add_product(
                        MatrixMut { values: &mut out, stride: strides[0] },
                        Matrix { values: &a, stride: strides[1] },
                        Matrix { values: &b, stride: strides[2] },
                        shape,
                    );
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&out), bits(&expected), "{level:?} {shape:?} {apart}");
                    let mut out = before_wide.clone();
                    kernels.add_product_f64(
                        MatrixMut { values: &mut out, stride: strides[0] },
                        Matrix { values: &a_wide, stride: strides[1] },
                        Matrix { values: &b_wide, stride: strides[2] },
                        shape,
                    );
                    let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&out), bits(&wide), "{level:?} {shape:?} {apart}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "b is too short")]
    fn a_matrix_that_is_too_short_is_refused() {
        Kernels::current().add_product(
            MatrixMut { values: &mut [0.0; 4], stride: 2 },
            Matrix { values: &[0.0; 4], stride: 2 },
            Matrix { values: &[0.0; 3], stride: 2 },
            [2, 2, 2],
        );
    }
}
