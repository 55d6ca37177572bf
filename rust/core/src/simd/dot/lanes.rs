//! The vectors that the loops are made of.

/// Values in float32: sixteen lanes, or so many of them that a pass over a row takes.
///
/// # Safety
///
/// Every method needs the CPU features of its implementation. Pointers are valid for `WIDTH` elements, scales
/// for two, and codes of `W` bits for sixteen of them; `W` is 2, 4, 8, or 32 for values themselves, which
/// have no scale to be read.
pub(super) trait Values: Copy {
    const WIDTH: usize;

    /// What the codes of a block take to become values.
    type Scale: Copy;

    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// `self + a * b`, two rounded operations.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;

    /// Of a step and a base.
    unsafe fn scale<const W: usize>(scale: *const f32) -> Self::Scale;
    /// Those from lane `part` on of sixteen, in the order that suits their width.
    unsafe fn values<const W: usize>(codes: *const u8, part: usize, scale: Self::Scale) -> Self;
    /// Puts what was loaded in that order, where it is another one.
    #[inline(always)]
    unsafe fn reorder<const W: usize>(self) -> Self {
        self
    }
    /// Puts it back.
    #[inline(always)]
    unsafe fn restore<const W: usize>(self) -> Self {
        self
    }
    /// Asks for the cache line, wherever that is: it need not be memory.
    #[inline(always)]
    fn fetch(_: *const u8) {}
}
