//! The vectors that a tile is made of.

/// Some entries of a row, in one register or a few.
///
/// # Safety
///
/// Methods need the CPU features of the vector. Pointers are to `WIDTH` entries; they need not be aligned.
pub(super) trait Lanes: Copy {
    type Entry: Copy;
    const WIDTH: usize;
    /// The entries of two vectors.
    type Pair: AsMut<[Self::Entry]> + Copy;
    const ZEROS: Self::Pair;

    unsafe fn load(from: *const Self::Entry) -> Self;
    unsafe fn store(self, to: *mut Self::Entry);
    /// `self + a * b`, rounded once.
    unsafe fn add_product(self, a: Self::Entry, b: Self) -> Self;
}

/// An array, which compilers make vectors of where there are any.
#[derive(Clone, Copy)]
pub(super) struct Plain<T, const N: usize>([T; N]);

macro_rules! plain {
    ($entry:ty, $width:literal) => {
        // SAFETY of all methods: pointers are the caller's promise, see the trait.
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl Lanes for Plain<$entry, $width> {
            type Entry = $entry;
            type Pair = [$entry; 2 * $width];
            const WIDTH: usize = $width;
            const ZEROS: Self::Pair = [0.0; 2 * $width];

            #[inline(always)]
            unsafe fn load(from: *const $entry) -> Self {
                Self(unsafe { from.cast::<[$entry; $width]>().read_unaligned() })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $entry) {
                unsafe { to.cast::<[$entry; $width]>().write_unaligned(self.0) };
            }

            #[inline(always)]
            #[allow(clippy::disallowed_methods, reason = "fused on every level")]
            unsafe fn add_product(mut self, a: $entry, b: Self) -> Self {
                for (sum, b) in self.0.iter_mut().zip(b.0) {
                    *sum = a.mul_add(b, *sum);
                }
                self
            }
        }
    };
}

plain!(f32, 8);
plain!(f64, 4);
