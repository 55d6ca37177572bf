//! The largest entries of each chunk of a tensor.
//!
//! After the read that adds gradient and memory, the sums are read once more, chunk by chunk. A chunk
//! is in the cache while it is searched, and the search takes as long whatever the data is: there is
//! no bound to track and none to miss. Sums that are not written down are searched during the read.
//!
//! Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient
//! Distributed Training", NeurIPS 2020, section 3 (one entry per chunk); Sarfi et al., "Communication
//! Efficient LLM Pre-training with SparseLoCo", arXiv 2508.15706, 2025 (several, of tiles).

mod tiles;

use super::{Facts, Positions, Scanned, Selected, Sparsify, Tracker, Unread, Wanted, largest};
use crate::pack;
use crate::part::{Options, Part};
use crate::scan::{self, Entries, LONGEST_CHUNK, Request, Totals};
use crate::{Error, Result};
use tiles::Grid;

/// The options of chunk-top-k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkTopK {
    /// Consecutive positions in a chunk.
    pub chunk: u32,
    /// Entries of each chunk; a shorter last one sends as many if it has them.
    pub k: u32,
    /// Chunks are tiles of a matrix instead.
    pub tile: Option<Tile>,
}

/// Rectangles of a matrix that stands row by row; those at its edges may be smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Rows of a tile.
    pub rows: u32,
    /// Columns of a tile.
    pub columns: u32,
    /// Columns of the matrix.
    pub width: u32,
}

/// Longer chunks are not searched as a whole, which takes 16 bytes for each element of one.
const LONG: usize = 1 << 16;

impl ChunkTopK {
    /// Searches each chunk as a tensor of its own, with what that takes of memory and of threads.
    fn search_long(self, scanned: &mut Scanned<'_, '_>) {
        let (chunk, numel) = (self.chunk as usize, scanned.numel());
        let mut found = scanned.scanner.take_entries();
        for at in (0..numel).step_by(chunk) {
            let len = chunk.min(numel - at);
            let mut part = Scanned {
                tensor: scanned.tensor.range(at..at + len),
                request: Request::default(),
                thresholds: None,
                totals: Totals::default(),
                pattern: scanned.pattern,
                scanner: &mut *scanned.scanner,
                scratch: &mut *scanned.scratch,
            };
            largest::keep(u64::from(self.k).min(len as u64), &mut part);
            let largest = scanned.scanner.candidates_mut();
            largest.indices_mut().iter_mut().for_each(|position| *position += at as u32);
            found.append(largest);
        }
        std::mem::swap(scanned.scanner.candidates_mut(), &mut found);
        scanned.scanner.put_entries(found);
    }

    fn chunks(self) -> scan::Chunks {
        scan::Chunks { chunk: self.chunk as usize, k: self.k as usize }
    }
}

impl Part for ChunkTopK {
    const KIND: &'static str = "chunk_topk";

    fn read(options: &Options) -> Result<Self> {
        // The tile, where the columns of the matrix are known; without them it is cut into chunks.
        let sides = options.get::<Option<[u32; 2]>>("tile")?;
        let width = options.get::<Option<u32>>("columns")?;
        Ok(Self {
            chunk: options.get("chunk")?,
            k: options.get("k")?,
            tile: sides.zip(width).map(|([rows, columns], width)| Tile { rows, columns, width }),
        })
    }

    fn check(self) -> Result<()> {
        let most = pack::Chunks::MAX_SIZE;
        if !(1..=most).contains(&self.chunk) {
            let chunk = self.chunk;
            return Err(Error::argument(format!("chunk must be 1 to {most}, got {chunk}")));
        }
        if self.k == 0 {
            return Err(Error::argument("k must be at least 1, got 0"));
        }
        if let Some(tile) = self.tile
            && (tile.rows == 0 || tile.columns == 0 || tile.width == 0)
        {
            return Err(Error::argument("tiles and matrices need at least one row and one column"));
        }
        Ok(())
    }

    fn sized_as(self, other: Self) -> Self {
        Self { chunk: other.chunk, k: other.k, ..self }
    }

    fn examples() -> Vec<Self> {
        let tile = Tile { rows: 8, columns: 16, width: 1 };
        let chunks = [(100, 1), (7, 1), (4096, 64), (300, 100)];
        let plain = chunks.map(|(chunk, k)| Self { chunk, k, tile: None });
        plain.into_iter().chain([Self { chunk: 128, k: 3, tile: Some(tile) }]).collect()
    }
}

impl Sparsify for ChunkTopK {
    fn facts(self) -> Facts {
        // Equally many in each chunk, unless zeros are among them.
        let positions = match pack::Chunks::new(self.chunk, self.k) {
            Some(chunks) if self.tile.is_none() => Positions::Chunks(chunks),
            _ => Positions::Any,
        };
        Facts { positions, ..Facts::SELECTED }
    }

    fn check_numel(self, numel: usize) -> Result<()> {
        match self.tile {
            Some(Tile { width, .. }) if !numel.is_multiple_of(width as usize) => {
                Err(Error::argument(format!(
                    "a tensor of {numel} elements has no rows of {width}: ask the codec for another \
                     one with for_shape"
                )))
            }
            _ => Ok(()),
        }
    }

    fn max_count(self, numel: usize) -> u64 {
        let k = u64::from(self.k);
        if let Some(tile) = self.tile {
            return Grid::new(tile, numel).max_count(k);
        }
        let (numel, chunk) = (numel as u64, u64::from(self.chunk));
        numel / chunk * k.min(chunk) + (numel % chunk).min(k)
    }

    fn asks_for_all(self, numel: usize) -> bool {
        self.max_count(numel) == numel as u64
    }

    fn wanted(self, _: &mut Unread<'_>) -> Wanted {
        let early = self.tile.is_none() && self.chunk as usize <= LONGEST_CHUNK;
        Request::of(if early { Entries::Chunks(self.chunks()) } else { Entries::None }).into()
    }

    fn select(self, _: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        let numel = scanned.numel();
        let target = Some(self.max_count(numel));
        let selected = Selected::wanted(target);
        if scanned.totals.complete {
            // Picked while the tensor was read.
            return selected;
        }
        if self.tile.is_none() && (self.chunk as usize).min(numel) > LONG {
            self.search_long(scanned);
            return selected;
        }
        let (tensor, scanner, k) = (scanned.tensor, &mut *scanned.scanner, self.k as usize);
        if let Some(tile) = self.tile {
            let grid = Grid::new(tile, numel);
            scanner.find(numel, grid.band(), |share| grid.search(&tensor, k, share));
        } else {
            scanner.search_chunks(tensor, self.chunks());
        }
        selected
    }
}
