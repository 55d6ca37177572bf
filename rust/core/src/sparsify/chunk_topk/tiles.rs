//! Tiles of a matrix, a band of them after the other.

use super::Tile;
use crate::allocate;
use crate::scan::{Chunks, Local, Share, Tensor, Worker};

/// A matrix and its tiles.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    rows: usize,
    width: usize,
    tile_rows: usize,
    tile_columns: usize,
}

impl Grid {
    /// The tiles of a tensor of `numel` elements, a multiple of the width.
    pub fn new(tile: Tile, numel: usize) -> Self {
        let width = tile.width as usize;
        Self {
            rows: numel / width,
            width,
            tile_rows: tile.rows as usize,
            tile_columns: tile.columns as usize,
        }
    }

    /// Elements of a band: of tiles that are beside each other.
    pub fn band(self) -> usize {
        self.tile_rows.saturating_mul(self.width)
    }

    /// The most entries there are with `k` of each tile.
    pub fn max_count(self, k: u64) -> u64 {
        let (rows, columns) = (self.tile_rows as u64, self.tile_columns as u64);
        let (height, width) = (self.rows as u64, self.width as u64);
        // Tiles of whole and of last rows, times those of whole and of last columns.
        let bands = [(height / rows, rows), (u64::from(height % rows > 0), height % rows)];
        let stacks =
            [(width / columns, columns), (u64::from(width % columns > 0), width % columns)];
        let pairs = bands.iter().flat_map(|band| stacks.iter().map(move |stack| (band, stack)));
        pairs.map(|((m, h), (n, w))| m * n * k.min(h * w)).sum()
    }

    /// Searches a share of the bands.
    pub fn search(self, tensor: &Tensor<'_>, k: usize, share: Share<'_, ()>) {
        let Share { kernels, range, worker: Worker { candidates, local, scratch, .. }, .. } = share;
        for band in range.start / self.band()..range.end.div_ceil(self.band()) {
            let top = band * self.tile_rows;
            let height = self.tile_rows.min(self.rows - top);
            let Local { floats, bits, places, entries } = &mut *local;
            entries.clear();
            entries.forgive();
            for left in (0..self.width).step_by(self.tile_columns) {
                let width = self.tile_columns.min(self.width - left);
                if !candidates.admit_memory(allocate::resize(floats, height * width)) {
                    return;
                }
                for (r, row) in floats.chunks_mut(width).enumerate() {
                    tensor.copy(kernels, (top + r) * self.width + left, row, scratch);
                }
                let first = entries.len();
                Chunks { chunk: floats.len(), k }.search(kernels, floats, 0, bits, entries);
                // Positions in the tile become those in the band.
                for place in &mut entries.indices_mut()[first..] {
                    let (r, c) = (*place as usize / width, *place as usize % width);
                    *place = (r * self.width + left + c) as u32;
                }
            }
            // Entries of a row are in order already, tile by tile: rows are put after each other.
            let row_of = |place: u32| place as usize / self.width;
            places.clear();
            let allocated = allocate::resize(places, height + 1).and(entries.check_memory());
            if !candidates.admit_memory(allocated) {
                return;
            }
            entries.indices().iter().for_each(|&place| places[row_of(place) + 1] += 1);
            for r in 0..height {
                places[r + 1] += places[r];
            }
            let start = (top * self.width) as u32;
            let Some((indices, values)) = candidates.spare(entries.len()) else { return };
            for (&place, &value) in entries.indices().iter().zip(entries.values()) {
                let slot = &mut places[row_of(place)];
                (indices[*slot as usize], values[*slot as usize]) = (start + place, value);
                *slot += 1;
            }
            candidates.admit(entries.len());
        }
    }
}
