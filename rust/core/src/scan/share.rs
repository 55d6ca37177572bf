//! Work on parts of a tensor that do not depend on each other, shared between threads.

use super::{Part, Scanner, Survivors};
use crate::pool;
use crate::simd::Kernels;

/// Memory of one thread, to be used again.
#[derive(Debug, Default)]
pub(crate) struct Local {
    /// Elements that had to be brought together.
    pub floats: Vec<f32>,
    /// Magnitudes.
    pub bits: Vec<u32>,
    /// Positions within something.
    pub places: Vec<u32>,
    /// Entries in another order than that of their positions.
    pub entries: Survivors,
}

impl Local {
    pub fn bytes(&self) -> usize {
        let words = self.floats.capacity() + self.bits.capacity() + self.places.capacity();
        size_of::<u32>() * words + self.entries.bytes()
    }
}

/// What [`Scanner::share`] hands out: which units, where to put what is found, and memory.
pub(crate) struct Share<'a> {
    pub kernels: &'static Kernels,
    pub units: std::ops::Range<usize>,
    pub survivors: &'a mut Survivors,
    pub local: &'a mut Local,
}

impl Scanner {
    /// Has `work` find the survivors of `units` units of a tensor of `len` elements, each thread those
    /// of an equal share of consecutive ones. They are put together in order.
    pub fn share(&mut self, units: usize, len: usize, work: impl Fn(Share<'_>) + Sync) {
        let width = self.width(len).min(units.max(1));
        let pool = pool::acquire(width);
        let width = if pool.is_some() { width } else { 1 };
        if self.parts.len() < width {
            self.parts.resize_with(width, Part::default);
        }
        let (kernels, parts) = (self.kernels, &mut self.parts[..width]);
        match pool {
            Some(pool) => pool.install(|| spread(kernels, 0..units, parts, &work)),
            None => spread(kernels, 0..units, parts, &work),
        }
        let (first, rest) = parts.split_at_mut(1);
        for part in rest {
            first[0].survivors.append(&part.survivors);
        }
    }
}

fn spread(
    kernels: &'static Kernels,
    units: std::ops::Range<usize>,
    parts: &mut [Part],
    work: &(impl Fn(Share<'_>) + Sync),
) {
    if let [part] = parts {
        part.survivors.clear();
        work(Share { kernels, units, survivors: &mut part.survivors, local: &mut part.local });
        return;
    }
    let half = parts.len() / 2;
    let middle = units.start + units.len() * half / parts.len();
    let (left, right) = parts.split_at_mut(half);
    rayon::join(
        || spread(kernels, units.start..middle, left, work),
        || spread(kernels, middle..units.end, right, work),
    );
}
