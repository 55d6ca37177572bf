//! The loops, the same for every level.

#![allow(clippy::needless_range_loop, reason = "vectors are kept by their numbers")]

use std::array::from_fn;

use super::lanes::Values;
use crate::simd::LANES;

/// Rows of packed codes, or of values.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The codes of the first row, and so on; values as their bytes.
    pub codes: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bits of a code, 2, 4 or 8; of a value, 32.
    pub width: u32,
    /// Step and base of the blocks of the first row, and so on; of values, none.
    pub scales: &'a [[f32; 2]],
    /// Scales from one row to the next.
    pub scale_stride: usize,
    /// Entries of a row that share a scale: a multiple of sixteen.
    pub block: usize,
}

/// Vectors of float32 that [`arrange`](super::arrange) has written for codes of a width.
#[derive(Debug, Clone, Copy)]
pub struct Vectors<'a> {
    /// The entries of the first one, and so on.
    pub x: &'a [f32],
    /// Entries from one to the next.
    pub stride: usize,
    /// Entries of a row and of a vector: a multiple of sixteen.
    pub len: usize,
    /// How many there are.
    pub count: usize,
}

/// Bytes of codes that are asked for together.
const LINE: usize = 64;

/// Fails unless all of so many rows of `len` entries is there.
fn check(rows: Rows<'_>, count: usize, len: usize) {
    let Rows { codes, stride, width, scales, scale_stride, block } = rows;
    assert!(matches!(width, 2 | 4 | 8 | 32), "codes of 2, 4 or 8 bits, or values");
    assert!([block, len].map(|n| n % LANES) == [0; 2] && block > 0, "whole lanes");
    let Some(before) = count.checked_sub(1).filter(|_| len > 0) else { return };
    assert!(codes.len() >= before * stride + len * width as usize / 8, "a code for each entry");
    let blocks = if width == 32 { 0 } else { len.div_ceil(block) };
    assert!(scales.len() >= before * scale_stride + blocks, "a scale for each block");
}

/// Calls `$run::<$level, W, ..>` for a width that is not known before.
macro_rules! for_width {
    ($width:expr, $run:ident::<$($level:ty),*>($($arg:expr),*)) => {
        match $width {
            2 => $run::<$($level,)* 2>($($arg),*),
            4 => $run::<$($level,)* 4>($($arg),*),
            8 => $run::<$($level,)* 8>($($arg),*),
            _ => $run::<$($level,)* 32>($($arg),*),
        }
    };
}

/// The values of one row of codes, from `skip` entries on behind the beginning of the first block.
///
/// # Safety
///
/// The CPU has the features of `V`.
#[inline(always)]
pub(super) unsafe fn decode<V: Values>(row: Rows<'_>, skip: usize, out: &mut [f32]) {
    let Rows { codes, width, scales, block, .. } = row;
    check(row, 1, out.len());
    assert!(skip.is_multiple_of(LANES) && skip < block && V::WIDTH == LANES, "whole lanes");
    assert!(scales.len() >= (skip + out.len()).div_ceil(block), "a scale for each block");
    // SAFETY: the features are the caller's promise; lengths were checked.
    unsafe { for_width!(width, decode_width::<V>(codes, scales, block, skip, out)) }
}

#[inline(always)]
unsafe fn decode_width<V: Values, const W: usize>(
    codes: &[u8],
    scales: &[[f32; 2]],
    block: usize,
    skip: usize,
    out: &mut [f32],
) {
    let (mut at, mut end) = (0, block - skip);
    for scale in scales {
        // SAFETY: the features are the caller's promise, and so are sixteen codes for each sixteen
        // values.
        unsafe {
            let scale = V::scale::<W>(scale.as_ptr());
            while at < end.min(out.len()) {
                let values = V::values::<W>(codes.as_ptr().add(at * W / 8), 0, scale);
                values.restore::<W>().store(out.as_mut_ptr().add(at));
                at += LANES;
            }
        }
        end += block;
    }
}

/// Entries in the order in which `V` takes them from codes of `width` bits, zeros behind them.
///
/// # Safety
///
/// The CPU has the features of `V`.
#[inline(always)]
pub(super) unsafe fn arrange<V: Values>(x: &[f32], width: u32, out: &mut [f32]) {
    // SAFETY: the features are the caller's promise.
    unsafe { for_width!(width, arrange_width::<V>(x, out)) }
}

#[inline(always)]
unsafe fn arrange_width<V: Values, const W: usize>(x: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks(LANES).zip(out.as_chunks_mut::<LANES>().0) {
        let mut lanes = [0.0; LANES];
        lanes[..x.len()].copy_from_slice(x);
        // SAFETY: the features are the caller's promise; both are sixteen entries long.
        unsafe {
            for part in (0..LANES).step_by(V::WIDTH) {
                let x = V::load(lanes.as_ptr().add(part)).reorder::<W>();
                x.store(out.as_mut_ptr().add(part));
            }
        }
    }
}

/// Products of rows and vectors, which are added to the lanes of each pair: those of the first row with
/// all vectors, then of the second.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    rows: Rows<'a>,
    vectors: Vectors<'a>,
    lanes: *mut [f32; LANES],
    count: usize,
}

impl<'a> Task<'a> {
    /// Fails unless all of it is there.
    pub fn new(rows: Rows<'a>, vectors: Vectors<'a>, lanes: &'a mut [[f32; LANES]]) -> Self {
        let Vectors { x, stride, len, count } = vectors;
        let row_count = lanes.len().checked_div(count).unwrap_or(0);
        assert_eq!(row_count * count, lanes.len(), "lanes for each pair");
        check(rows, row_count, len);
        let before = count.saturating_sub(1);
        assert!(count == 0 || x.len() >= before * stride + len, "as many entries as rows have");
        Self { rows, vectors, lanes: lanes.as_mut_ptr(), count: row_count }
    }

    /// How many vectors there are.
    pub fn vectors(&self) -> usize {
        self.vectors.count
    }

    /// All rows, `R` at a time, with the `M` vectors from one on.
    ///
    /// # Safety
    ///
    /// The CPU has the features of `V`, and there are so many vectors.
    #[inline(always)]
    pub unsafe fn add<V: Values, const R: usize, const M: usize>(self, vector: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.rows.width {
                2 => self.add_width::<V, 2, R, M>(vector),
                4 => self.add_width::<V, 4, R, M>(vector),
                8 => self.add_width::<V, 8, R, M>(vector),
                _ => self.add_width::<V, 32, R, M>(vector),
            }
        }
    }

    #[inline(always)]
    unsafe fn add_width<V: Values, const W: usize, const R: usize, const M: usize>(
        self,
        vector: usize,
    ) {
        let mut row = 0;
        // SAFETY: the caller's promise, and there are so many rows.
        unsafe {
            while row + R <= self.count {
                self.tile::<V, W, R, M>(row, vector);
                row += R;
            }
            while row < self.count {
                self.tile::<V, W, 1, M>(row, vector);
                row += 1;
            }
        }
    }

    /// `R` rows with `M` vectors.
    ///
    /// # Safety
    ///
    /// There are so many from these on, and the CPU has the features of `V`.
    #[inline(always)]
    unsafe fn tile<V: Values, const W: usize, const R: usize, const M: usize>(
        self,
        row: usize,
        vector: usize,
    ) {
        let Rows { codes, stride, scales, scale_stride, block, .. } = self.rows;
        let Vectors { x, stride: x_stride, len, count } = self.vectors;
        // SAFETY: the caller's promise; `new` has checked that all rows and vectors are there.
        unsafe {
            let codes: [*const u8; R] = from_fn(|r| codes.as_ptr().add((row + r) * stride));
            let scales: [*const [f32; 2]; R] =
                from_fn(|r| scales.as_ptr().wrapping_add((row + r) * scale_stride));
            let x: [*const f32; M] = from_fn(|m| x.as_ptr().add((vector + m) * x_stride));
            let lanes = |r: usize, m: usize| -> *mut f32 {
                self.lanes.add((row + r) * count + vector + m).cast()
            };
            // Registers may be narrower than sixteen lanes.
            for part in (0..LANES).step_by(V::WIDTH) {
                // In closures vectors would not have the registers of the calling function.
                let mut sums = [[V::load(lanes(0, 0).add(part)).reorder::<W>(); M]; R];
                for r in 0..R {
                    for m in 0..M {
                        sums[r][m] = V::load(lanes(r, m).add(part)).reorder::<W>();
                    }
                }
                // Counted in sixteens.
                let (len, block) = (len / LANES, block / LANES);
                let (mut at, mut number) = (0, 0);
                while at < len {
                    let mut grids = [V::scale::<W>(scales[0].wrapping_add(number).cast()); R];
                    for r in 1..R {
                        grids[r] = V::scale::<W>(scales[r].wrapping_add(number).cast());
                    }
                    let end = len.min(at + block);
                    while at < end {
                        if M == 1 || part == 0 {
                            for codes in codes {
                                // Of the rows that come next.
                                V::fetch(codes.wrapping_add(at * 2 * W + R * stride));
                            }
                        }
                        let strip = end.min(at + (LINE / (2 * W)).max(1));
                        // Written out four times where there is but one vector: it makes a tenth.
                        let each = if M == 1 { 4 } else { 1 };
                        while at + each <= strip {
                            for _ in 0..each {
                                step::<V, W, R, M>(&mut sums, (codes, grids), x, at, part);
                                at += 1;
                            }
                        }
                        while at < strip {
                            step::<V, W, R, M>(&mut sums, (codes, grids), x, at, part);
                            at += 1;
                        }
                    }
                    number += 1;
                }
                for (r, sums) in sums.iter().enumerate() {
                    for (m, sum) in sums.iter().enumerate() {
                        sum.restore::<W>().store(lanes(r, m).add(part));
                    }
                }
            }
        }
    }
}

/// Adds the products of the sixteen columns of a number, or of a part of these.
///
/// # Safety
///
/// As [`Task::tile`].
#[inline(always)]
unsafe fn step<V: Values, const W: usize, const R: usize, const M: usize>(
    sums: &mut [[V; M]; R],
    (codes, scales): ([*const u8; R], [V::Scale; R]),
    x: [*const f32; M],
    at: usize,
    part: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut values = [V::values::<W>(codes[0].add(at * 2 * W), part, scales[0]); R];
        for r in 1..R {
            values[r] = V::values::<W>(codes[r].add(at * 2 * W), part, scales[r]);
        }
        for m in 0..M {
            let x = V::load(x[m].add(at * LANES + part));
            for r in 0..R {
                sums[r][m] = sums[r][m].add_product(values[r], x);
            }
        }
    }
}
