//! The types of elements that a sweep reads: each is made float32 as it is loaded.

use super::vector::Vector;
use crate::simd::widen;
use half::{bf16, f16};

/// An element of a gradient.
pub(super) trait Element: Copy {
    /// Sixteen elements from there on, as float32.
    ///
    /// # Safety
    ///
    /// As the methods of [`Vector`].
    unsafe fn load<V: Vector>(from: *const Self) -> V;

    /// The same of a few elements, by plain Rust.
    fn widen(x: &[Self], out: &mut [f32]);
}

/// Implements [`Element`] by a method of [`Vector`] and a function.
macro_rules! element {
    ($element:ty, $load:ident, $widen:expr) => {
        impl Element for $element {
            #[inline(always)]
            unsafe fn load<V: Vector>(from: *const Self) -> V {
                // SAFETY: the caller's promise is the one that the method needs.
                unsafe { V::$load(from) }
            }

            fn widen(x: &[Self], out: &mut [f32]) {
                $widen(x, out);
            }
        }
    };
}

element!(f32, load, |x: &[f32], out: &mut [f32]| out.copy_from_slice(x));
element!(f64, load_f64, widen::from_f64::scalar);
element!(f16, load_f16, widen::from_f16::scalar);
element!(bf16, load_bf16, widen::from_bf16::scalar);
