//! Scratch memory of an encode.

use super::totals::Totals;
use crate::scan::Scanner;
use crate::simd::Kernels;

/// Memory for encodes to be used again, one for each thread that encodes. No call allocates once it
/// has grown to what the largest tensor needs.
#[derive(Debug)]
pub struct Workspace {
    pub(super) scanner: Scanner,
    /// Magnitudes of a sample, and the like.
    pub(super) keys: Vec<u32>,
    /// Sums over the groups of a quantizer.
    pub(super) totals: Totals,
}

impl Workspace {
    /// A workspace whose encodes run these kernels on so many threads, instead of the defaults.
    /// For tests and measurements: neither changes a byte of a frame.
    pub fn with(kernels: &'static Kernels, threads: usize) -> Self {
        Self::on(Scanner::new(kernels, Some(threads)))
    }

    /// The kernels that encodes run.
    pub(crate) fn kernels(&self) -> &'static Kernels {
        self.scanner.kernels
    }

    fn on(scanner: Scanner) -> Self {
        Self { scanner, keys: Vec::new(), totals: Totals::default() }
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Self::on(Scanner::new(Kernels::current(), None))
    }
}
