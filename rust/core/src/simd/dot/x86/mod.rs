//! AVX2 and AVX-512.

pub(super) mod avx2;
pub(super) mod avx512;

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// How far ahead of their use codes are asked for, in bytes.
const AHEAD: usize = 4096;

/// Asks for a cache line, wherever that is: it need not be memory.
#[inline(always)]
fn fetch(from: *const u8) {
    // SAFETY: SSE is part of the target's baseline; a prefetch reads no memory.
    #[allow(unused_unsafe)]
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(from.cast());
    }
}

/// The loops, compiled for a level. `$sixteen` has all lanes. Of more than so many vectors, so many are taken
/// together with some rows, by vectors of a type.
macro_rules! level {
    ($features:literal, $sixteen:ty, [$($vectors:literal: $rows:literal $values:ty),+]) => {
        #[target_feature(enable = $features)]
        pub(in crate::simd) fn decode(row: Rows<'_>, skip: usize, out: &mut [f32]) {
            // SAFETY: this function has the features of the vector.
            unsafe { run::decode::<$sixteen>(row, skip, out) };
        }

        #[target_feature(enable = $features)]
        pub(in crate::simd) fn dot(
            rows: Rows<'_>,
            vectors: Vectors<'_>,
            lanes: &mut [[f32; LANES]],
        ) {
            let (task, mut vector) = (Task::new(rows, vectors, lanes), 0);
            while vector < task.vectors() {
                // SAFETY: as above, and there are so many vectors.
                vector += unsafe {
                    match task.vectors() - vector {
                        $($vectors.. => {
                            task.add::<$values, $rows, $vectors>(vector);
                            $vectors
                        })+
                        0 => 1,
                    }
                };
            }
        }
    };
}

/// The exact sums of all runs of a row, four at a time, with all vectors. `$bytes` makes the codes of a run ready,
/// `$sums` eight lanes of a run, and [`avx2::four`] sums of four times those.
macro_rules! sums_by {
    (($codes:expr, $width:expr, $x:expr, $run:expr, $out:expr), $bytes:ident, $sums:ident) => {{
        let (codes, width, x, run, out): (&[u8], u32, Rounded<'_>, usize, &mut [i32]) =
            ($codes, $width, $x, $run, $out);
        activations::check(codes, width, x, run, out);
        match (width, run) {
            (2, 32) => sums_by!(2, 32, (codes, x, out), $bytes, $sums),
            (2, _) => sums_by!(2, 64, (codes, x, out), $bytes, $sums),
            (4, 32) => sums_by!(4, 32, (codes, x, out), $bytes, $sums),
            (4, _) => sums_by!(4, 64, (codes, x, out), $bytes, $sums),
            (_, 32) => sums_by!(8, 32, (codes, x, out), $bytes, $sums),
            _ => sums_by!(8, 64, (codes, x, out), $bytes, $sums),
        }
    }};
    ($w:literal, $r:literal, ($codes:ident, $x:ident, $out:ident), $bytes:ident, $sums:ident) => {{
        let Rounded { codes: x, stride, count } = $x;
        let runs = $out.len().checked_div(count).unwrap_or(0);
        for first in (0..runs).step_by(4) {
            let bytes = 4 * $r * $w / 8;
            for line in (0..bytes).step_by(64) {
                fetch($codes.as_ptr().wrapping_add(first / 4 * bytes + AHEAD + line));
            }
            // Of the last ones, some may be done again.
            let at = |i: usize| (first + i).min(runs - 1);
            // SAFETY: the calling function has the features of what it names, and all runs and vectors
            // are there.
            unsafe {
                let mut codes = [$bytes::<$w, $r>($codes.as_ptr().add(at(0) * $r * $w / 8)); 4];
                for i in 1..4 {
                    codes[i] = $bytes::<$w, $r>($codes.as_ptr().add(at(i) * $r * $w / 8));
                }
                let (mut x, mut out) = (x.as_ptr(), $out.as_mut_ptr().add(first));
                for _ in 0..count {
                    let mut eights = [$sums::<$w, $r>(codes[0], x.add(at(0) * $r)); 4];
                    for i in 1..4 {
                        eights[i] = $sums::<$w, $r>(codes[i], x.add(at(i) * $r));
                    }
                    let four = avx2::four(eights);
                    if first + 4 <= runs {
                        std::arch::x86_64::_mm_storeu_si128(out.cast(), four);
                    } else {
                        let mut last = [0; 4];
                        std::arch::x86_64::_mm_storeu_si128(last.as_mut_ptr().cast(), four);
                        out.copy_from_nonoverlapping(last.as_ptr(), runs - first);
                    }
                    (x, out) = (x.wrapping_add(stride), out.wrapping_add(runs));
                }
            }
        }
    }};
}

use {level, sums_by};
