//! The loops, for any vector.

use std::array::from_fn;

use super::lanes::Lanes;
use super::{DEPTH, Matrix, MatrixMut, NEAR, ROWS, Shape};

/// Entries from some one on, and how far rows are apart.
type Rows<T> = (*const T, usize);

/// The product, by tiles of `MANY` rows and two vectors.
///
/// # Safety
///
/// The CPU has the features of the vector, and all entries of a product of this shape are there.
#[inline(always)]
pub(super) unsafe fn product<V: Lanes, const MANY: usize>(
    out: &mut MatrixMut<'_, V::Entry>,
    a: Matrix<'_, V::Entry>,
    b: Matrix<'_, V::Entry>,
    [rows, depth, cols]: Shape,
) {
    let width = 2 * V::WIDTH;
    let in_place = b.stride * size_of::<V::Entry>() <= NEAR;
    let mut panel = [V::ZEROS; DEPTH];
    for first in (0..rows).step_by(ROWS) {
        let many = ROWS.min(rows - first);
        for k in (0..depth).step_by(DEPTH) {
            let deep = DEPTH.min(depth - k);
            for j in (0..cols).step_by(width) {
                let wide = width.min(cols - j);
                let columns = if in_place && wide == width {
                    (b.values[k * b.stride + j..].as_ptr(), b.stride)
                } else {
                    for (row, to) in panel[..deep].iter_mut().enumerate() {
                        let from = (k + row) * b.stride + j;
                        to.as_mut()[..wide].copy_from_slice(&b.values[from..from + wide]);
                    }
                    (panel.as_ptr().cast(), width)
                };
                let stride = out.stride;
                let mut to = MatrixMut { values: &mut out.values[first * stride + j..], stride };
                let a = Matrix { values: &a.values[first * a.stride + k..], ..a };
                // SAFETY: as above; all rows of the panel are there.
                unsafe { strip::<V, MANY>(&mut to, a, columns, [many, deep, wide]) };
            }
        }
    }
}

/// The tiles below one another, of at most two vectors.
///
/// # Safety
///
/// As of [`product`]; `b` has two whole vectors in each of its rows.
#[inline(always)]
unsafe fn strip<V: Lanes, const MANY: usize>(
    out: &mut MatrixMut<'_, V::Entry>,
    a: Matrix<'_, V::Entry>,
    b: Rows<V::Entry>,
    [rows, depth, wide]: Shape,
) {
    let mut row = 0;
    while row < rows {
        let a = (a.values[row * a.stride..].as_ptr(), a.stride);
        let values = &mut out.values[row * out.stride..];
        let many = match rows - row {
            left if left >= MANY => MANY,
            left if left >= 4 => 4,
            _ => 1,
        };
        let mut edge = [V::ZEROS; MANY];
        let is_edge = wide < 2 * V::WIDTH;
        let to = if is_edge {
            for (i, edge) in edge[..many].iter_mut().enumerate() {
                edge.as_mut()[..wide].copy_from_slice(&values[i * out.stride..][..wide]);
            }
            (edge.as_mut_ptr().cast(), 2 * V::WIDTH)
        } else {
            (values.as_mut_ptr(), out.stride)
        };
        // SAFETY: as above, and `out` has so many rows of two whole vectors.
        unsafe {
            match many {
                1 => tile::<V, 1>(to, a, b, depth),
                4 => tile::<V, 4>(to, a, b, depth),
                _ => tile::<V, MANY>(to, a, b, depth),
            }
        }
        if is_edge {
            for (i, edge) in edge[..many].iter_mut().enumerate() {
                values[i * out.stride..][..wide].copy_from_slice(&edge.as_mut()[..wide]);
            }
        }
        row += many;
    }
}

/// One tile.
///
/// # Safety
///
/// The CPU has the features of the vector; `out` has `N` rows of two vectors, `a` `N` of `depth` entries, and
/// `b` `depth` of two vectors.
#[inline(always)]
unsafe fn tile<V: Lanes, const N: usize>(
    (out, stride): (*mut V::Entry, usize),
    (a, apart): Rows<V::Entry>,
    (b, below): Rows<V::Entry>,
    depth: usize,
) {
    // SAFETY: all pointers are to entries that are there.
    unsafe {
        let mut sums: [[V; 2]; N] =
            from_fn(|i| [0, V::WIDTH].map(|j| V::load(out.add(i * stride + j))));
        for k in 0..depth {
            let row = [0, V::WIDTH].map(|j| V::load(b.add(k * below + j)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let a = *a.add(i * apart + k);
                *sums = [sums[0].add_product(a, row[0]), sums[1].add_product(a, row[1])];
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            sums[0].store(out.add(i * stride));
            sums[1].store(out.add(i * stride + V::WIDTH));
        }
    }
}
