//! Plain Rust, on arrays of sixteen.

use super::activations::{self, Rounded};
use super::lanes::Values;
use super::run::{self, Rows, Task, Vectors};
use crate::simd::LANES;

#[derive(Clone, Copy)]
struct Plain([f32; LANES]);

// SAFETY of all methods: pointers are the caller's promise, see the trait.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Values for Plain {
    const WIDTH: usize = LANES;
    type Scale = [f32; 2];

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { to.cast::<[f32; LANES]>().write(self.0) };
    }

    #[inline(always)]
    unsafe fn add_product(mut self, a: Self, b: Self) -> Self {
        for i in 0..LANES {
            self.0[i] += a.0[i] * b.0[i];
        }
        self
    }

    #[inline(always)]
    unsafe fn scale<const W: usize>(scale: *const f32) -> Self::Scale {
        if W == 32 { [0.0; 2] } else { unsafe { scale.cast::<[f32; 2]>().read() } }
    }

    #[inline(always)]
    unsafe fn values<const W: usize>(codes: *const u8, _: usize, scale: Self::Scale) -> Self {
        if W == 32 {
            return unsafe { Self::load(codes.cast()) };
        }
        let [step, base] = scale;
        let mut values = [0.0; LANES];
        for (i, value) in values.iter_mut().enumerate() {
            let byte = unsafe { codes.add(i * W / 8).read() };
            let code = byte >> (i * W % 8) & (0xFF >> (8 - W));
            *value = base + step * f32::from(code);
        }
        Self(values)
    }
}

pub(in crate::simd) fn decode(row: Rows<'_>, skip: usize, out: &mut [f32]) {
    // SAFETY: needs no features.
    unsafe { run::decode::<Plain>(row, skip, out) };
}

pub(in crate::simd) fn arrange(x: &[f32], width: u32, out: &mut [f32]) {
    // SAFETY: needs no features.
    unsafe { run::arrange::<Plain>(x, width, out) };
}

pub(in crate::simd) fn dot(rows: Rows<'_>, vectors: Vectors<'_>, lanes: &mut [[f32; LANES]]) {
    let task = Task::new(rows, vectors, lanes);
    for vector in 0..task.vectors() {
        // SAFETY: needs no features, and there is such a vector.
        unsafe { task.add::<Plain, 1, 1>(vector) };
    }
}

pub(in crate::simd) fn sums(
    codes: &[u8],
    width: u32,
    x: Rounded<'_>,
    run: usize,
    sums: &mut [i32],
) {
    activations::check(codes, width, x, run, sums);
    let (width, Rounded { codes: x, stride, count }) = (width as usize, x);
    let runs = sums.len().checked_div(count).unwrap_or(0);
    for (m, sums) in sums.chunks_mut(runs.max(1)).enumerate() {
        for (k, sum) in sums.iter_mut().enumerate() {
            let products = (k * run..(k + 1) * run).map(|i| {
                let code = codes[i * width / 8] >> (i * width % 8) & (0xFF >> (8 - width));
                i32::from(code) * i32::from(x[m * stride + i])
            });
            *sum = products.sum();
        }
    }
}
