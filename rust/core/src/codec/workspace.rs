//! Scratch memory of an encode.

use super::totals::Totals;
use crate::frame::Codes;
use crate::scan::Scanner;
use crate::simd::Kernels;

/// Memory for encodes to be used again, one for each thread that encodes. No call allocates once it
/// has grown to what the largest tensor needs.
///
/// That is up to 16 bytes for each entry that is in the running for a selection: three times as many
/// as are sent as a rule, or one in 64 if that is more; all entries that exceed it for a threshold
/// without a limit.
#[derive(Debug)]
pub struct Workspace {
    pub(super) scanner: Scanner,
    /// Magnitudes of a sample, and the like.
    pub(super) keys: Vec<u32>,
    /// Sums over the groups of a quantizer.
    pub(super) totals: Totals,
    /// The frame of this encode before its values were put into blocks, and those.
    pub(super) codes: Codes,
}

impl Workspace {
    /// A workspace whose encodes run these kernels on so many threads, instead of the defaults.
    /// For tests and measurements: neither changes a byte of a frame.
    pub fn with(kernels: &'static Kernels, threads: usize) -> Self {
        Self::on(Scanner::new(kernels, Some(threads)))
    }

    /// Has encodes run the kernels in use from now on: memory is kept longer than a level.
    pub fn follow(&mut self) {
        self.scanner.kernels = Kernels::current();
    }

    /// The kernels that encodes run.
    pub(crate) fn kernels(&self) -> &'static Kernels {
        self.scanner.kernels
    }

    fn on(scanner: Scanner) -> Self {
        let totals = Totals::default();
        Self { scanner, keys: Vec::new(), totals, codes: Codes::default() }
    }

    /// Begins an encode.
    pub(super) fn begin(&mut self) {
        self.scanner.begin();
        self.codes.frame.clear();
    }

    /// Bytes that are held to be used again.
    pub fn bytes(&self) -> usize {
        let keys = size_of::<u32>() * self.keys.capacity();
        self.scanner.bytes() + keys + self.totals.bytes() + self.codes.bytes()
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Self::on(Scanner::new(Kernels::current(), None))
    }
}
