//! Frames and sections without a codec.

use gradwire_core::frame::{self, Layout};
use gradwire_core::pack::{Chunks, Coding, Draw, DrawKind};
use gradwire_core::quantize::Hints;
use gradwire_core::rng::Key;
use gradwire_core::sparsify::SparsifierId;

use crate::bytes::{Bytes, draw};
use crate::drawn::{CODINGS, DTYPES, quantizer, support};

/// What a frame is written of.
#[derive(Debug)]
pub struct Entries {
    pub layout: Layout,
    pub hints: Hints,
    pub numel: u64,
    pub positions: Vec<u32>,
    pub values: Vec<f32>,
}

impl Entries {
    pub fn draw(bytes: &mut Bytes<'_>) -> Self {
        let numel = bytes.numel();
        let (layout, positions) = draw(bytes, |draw| {
            let (pattern, positions) = support(draw, numel);
            let (dtype, sparsifier) = (draw.pick(&DTYPES), draw.pick(SparsifierId::KNOWN).0);
            let (quantizer, indices) = (quantizer(draw, numel), draw.pick(&CODINGS));
            (Layout { dtype, sparsifier, quantizer, indices, pattern }, positions)
        });
        let values = bytes.floats(positions.len());
        let hints = Hints { key: Some(Key::from_bits(bytes.word().into())), magnitude: Some(1.0) };
        Self { layout, hints, numel: numel as u64, positions, values }
    }

    /// The longest frame of so many entries, as was promised.
    pub fn longest(&self) -> usize {
        let Layout { quantizer, indices, pattern, .. } = self.layout;
        frame::max_len(quantizer, indices, pattern, self.numel, self.values.len() as u64)
    }
}

/// What is known of an index section before it is read.
#[derive(Debug)]
pub struct Section {
    pub coding: Coding,
    /// Bytes of the section that say what `coding` does.
    pub parameters: usize,
    pub numel: u64,
    pub count: u64,
}

impl Section {
    pub fn draw(bytes: &mut Bytes<'_>) -> Self {
        let (kind, width, numel) = (bytes.byte(), bytes.byte(), bytes.word());
        let chunks = Chunks::new(bytes.word(), u32::from(width) + 1);
        let seeded = |kind| Coding::Seeded(Draw { kind, key: Key::from_bits(u64::from(width)) });
        let (coding, parameters) = match (kind % 7, chunks) {
            (0, _) => (Coding::EliasFano { low_bits: width }, 0),
            (1, _) => (Coding::Rice { bits: width }, 0),
            (2, _) => (Coding::Bitmap, 0),
            (3, _) => (seeded(DrawKind::Subset), 9),
            (4, _) => (seeded(DrawKind::Run), 9),
            (5, Some(chunks)) => (Coding::ChunkLocal(chunks), 8),
            _ => (Coding::None, 0),
        };
        // There are no bytes to bound the size of these by.
        let unbounded = matches!(coding, Coding::None | Coding::Seeded(_));
        let numel = u64::from(if unbounded { numel % (1 << 12) } else { numel });
        let count = match coding {
            Coding::ChunkLocal(chunks) if kind < 128 => chunks.count(numel),
            _ => u64::from(bytes.word()),
        };
        Self { coding, parameters, numel, count }
    }
}
