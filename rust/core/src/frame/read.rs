//! Decodes frames to positions, values and tensors.

use super::blocks::expand;
use super::header::{CHECKSUM, HEADER_LEN, Header, MAGIC, VERSION};
use super::outside;
use crate::pack::{self, Blocks, Coding, LONGEST_BLOCK, MAX_NUMEL};
use crate::quantize::{BLOCK, Decoder, LONGEST, Section, ValueCoding};
use crate::simd::{Kernels, in_standard_mode};
use crate::{Error, Result, allocate};

/// CRC-32C of a frame: all its bytes but the four of the checksum.
pub(super) fn checksum(frame: &[u8]) -> u32 {
    let (before, after) = (&frame[..CHECKSUM.start], &frame[CHECKSUM.end..]);
    crc32c::crc32c_append(crc32c::crc32c(before), after)
}

/// A frame that was checked, borrowed from its bytes.
///
/// Magic, version, part ids, lengths, limits and the checksum hold. Whether the sections mean
/// something (positions that ascend, values that are finite) is checked when they are read.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    kernels: &'static Kernels,
    header: Header,
    coding: ValueCoding,
    indices: &'a [u8],
    values: &'a [u8],
}

/// Memory for decoding, to be used again: no call allocates once it has grown.
///
/// It holds a block of positions, a mebibyte at most, of positions drawn from a seed an eighth of
/// a byte for each element of the tensor, and of values in coded blocks two or four bytes for each entry.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    block: Vec<u32>,
    drawn: Vec<u32>,
    codes: Vec<u8>,
}

impl Scratch {
    /// Bytes that are held to be used again.
    pub fn bytes(&self) -> usize {
        size_of::<u32>() * (self.block.capacity() + self.drawn.capacity()) + self.codes.capacity()
    }
}

impl<'a> Frame<'a> {
    /// Checks the bytes of a frame of at most `max_numel` elements. Allocates nothing.
    pub fn parse(bytes: &'a [u8], max_numel: Option<u64>) -> Result<Self> {
        Self::read(bytes, max_numel, true)
    }

    /// As [`Frame::parse`], for bytes that it has accepted before and that have not changed since:
    /// the checksum, which takes a read of the whole frame, is not computed again.
    pub fn parse_again(bytes: &'a [u8], max_numel: Option<u64>) -> Result<Self> {
        Self::read(bytes, max_numel, false)
    }

    fn read(bytes: &'a [u8], max_numel: Option<u64>, sums: bool) -> Result<Self> {
        let (head, sections) = split_header(bytes)?;
        let (index_len, _) = Header::section_lens(head);
        let (need, have) = (section_end(bytes)?, bytes.len() as u64);
        if have < need {
            return Err(Error::Truncated { what: "frame", need, have });
        }
        if have > need {
            let extra = have - need;
            return Err(Error::corrupt(format!("{extra} bytes follow the frame")));
        }
        if sums && checksum(bytes).to_le_bytes() != head[CHECKSUM] {
            return Err(Error::corrupt("the checksum does not match"));
        }
        // The lengths add up to that of `bytes`.
        let (indices, values) = sections.split_at(index_len as usize);
        let header = Header::from_bytes(head, indices)?;
        let limit = max_numel.unwrap_or(MAX_NUMEL).min(MAX_NUMEL);
        if header.numel > limit {
            return Err(Error::TooLarge { numel: header.numel, limit });
        }
        header.check()?;
        let Header { quantizer, exponent, numel, count, .. } = header;
        let coding = if quantizer == outside::QUANTIZER {
            outside::check_section(values, count)?;
            ValueCoding::Empty(quantizer)
        } else {
            ValueCoding::parse(quantizer, exponent, values, numel, count)?
        };
        Ok(Self { kernels: Kernels::current(), header, coding, indices, values })
    }

    /// The same, to be decoded by these kernels instead of [`Kernels::current`].
    #[must_use]
    pub fn with(self, kernels: &'static Kernels) -> Self {
        Self { kernels, ..self }
    }

    /// What the frame says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How values are coded, with the parameters that the value section begins with.
    pub fn value_coding(&self) -> ValueCoding {
        self.coding
    }

    /// Bytes of the index section.
    pub fn index_section(&self) -> &'a [u8] {
        self.indices
    }

    /// Bytes of the value section.
    pub fn value_section(&self) -> &'a [u8] {
        self.values
    }

    /// The positions, strictly ascending and below `numel`, in place of what `out` held.
    pub fn indices_into(&self, out: &mut Vec<u32>) -> Result<()> {
        let Header { coding, numel, count, .. } = self.header;
        // Of a dense frame, too, `count` is bounded by the bytes of the values.
        pack::decode_into(self.kernels, coding, self.indices, numel, count, out)
    }

    /// The values in the order of their positions, in place of what `out` held.
    pub fn values_into(&self, out: &mut Vec<f32>) -> Result<()> {
        in_standard_mode(|| self.decode_values(out))
    }

    fn decode_values(&self, out: &mut Vec<f32>) -> Result<()> {
        let Scratch { codes, block, drawn } = &mut Scratch::default();
        let section = self.checked(codes)?;
        let count = self.header.count as usize;
        if self.is_dense() || !self.coding.needs_positions() {
            allocate::resize(out, count)?;
            self.decoder(section).decode(0, None, out);
            return Ok(());
        }
        let positions = self.positions(block, drawn)?;
        allocate::resize(out, count)?;
        let mut slots = out.chunks_mut(BLOCK);
        self.for_each_block(section, positions, |_, values| {
            if let Some(slots) = slots.next() {
                slots.copy_from_slice(values);
            }
        })
    }

    /// Writes the tensor: values at their positions, zeros elsewhere.
    ///
    /// `out` has `numel` elements. It is not touched if this fails.
    pub fn decode_into(&self, out: &mut [f32], scratch: &mut Scratch) -> Result<()> {
        in_standard_mode(|| self.decode(out, scratch))
    }

    fn decode(&self, out: &mut [f32], scratch: &mut Scratch) -> Result<()> {
        let Scratch { codes, block, drawn } = scratch;
        let section = self.check_all(out.len(), codes)?;
        if self.is_dense() {
            self.decoder(section).decode(0, None, out);
            return Ok(());
        }
        let positions = self.positions(block, drawn)?;
        out.fill(0.0);
        self.for_each_block(section, positions, |positions, values| {
            for (&index, &value) in positions.iter().zip(values) {
                if let Some(out) = out.get_mut(index as usize) {
                    *out = value;
                }
            }
        })
    }

    /// Adds the tensor times `scale`: `out[i] += value * scale`, a float32 product and then a
    /// float32 sum, each rounded.
    ///
    /// `out` has `numel` elements. It is not touched if this fails.
    pub fn decode_add(&self, out: &mut [f32], scale: f32, scratch: &mut Scratch) -> Result<()> {
        in_standard_mode(|| self.add(out, scale, scratch))
    }

    fn add(&self, out: &mut [f32], scale: f32, scratch: &mut Scratch) -> Result<()> {
        let Scratch { codes, block, drawn } = scratch;
        let section = self.check_all(out.len(), codes)?;
        if self.is_dense() {
            let (mut decoder, mut values) = (self.decoder(section), [0.0; LONGEST]);
            for (i, out) in out.chunks_mut(LONGEST).enumerate() {
                let values = &mut values[..out.len()];
                decoder.decode(i * LONGEST, None, values);
                self.kernels.add_scaled(out, values, scale);
            }
            return Ok(());
        }
        let positions = self.positions(block, drawn)?;
        self.for_each_block(section, positions, |positions, values| {
            for (&index, &value) in positions.iter().zip(values) {
                if let Some(out) = out.get_mut(index as usize) {
                    *out += value * scale;
                }
            }
        })
    }

    fn is_dense(&self) -> bool {
        self.header.coding == Coding::None
    }

    /// All that must hold before the first write, but for the positions.
    fn check_all<'s>(&'s self, out_len: usize, codes: &'s mut Vec<u8>) -> Result<Section<'s>> {
        if out_len as u64 != self.header.numel {
            let numel = self.header.numel;
            return Err(Error::argument(format!(
                "out has {out_len} elements, the frame {numel}: give as many"
            )));
        }
        self.checked(codes)
    }

    /// The positions, all of which were read once and found good.
    fn positions<'s>(
        &'s self,
        block: &'s mut Vec<u32>,
        drawn: &'s mut Vec<u32>,
    ) -> Result<Positions<'s>> {
        let Header { coding, numel, count, .. } = self.header;
        let blocks = Blocks::new(coding, self.indices, (numel, count), self.kernels, drawn)?;
        let mut checked = blocks.clone();
        block.clear();
        while checked.next_block(block)? {}
        let read = count <= LONGEST_BLOCK as u64;
        Ok(Positions { blocks: if read { checked } else { blocks }, block, read })
    }

    /// The parts of the value section, all of which may be there. As [`Frame::section`].
    pub(crate) fn checked<'s>(&'s self, codes: &'s mut Vec<u8>) -> Result<Section<'s>> {
        self.check_inside()?;
        let section = self.section(codes)?;
        if self.coding.is_valid(section, self.header.count) {
            return Ok(section);
        }
        Err(Error::corrupt(
            "a value or scale is not finite, or a code is not valid for its quantizer",
        ))
    }

    /// The parts of the value section. Codes that are in blocks are read into `codes`.
    pub(crate) fn section<'s>(&'s self, codes: &'s mut Vec<u8>) -> Result<Section<'s>> {
        let Header { numel, count, .. } = self.header;
        match self.coding.in_blocks() {
            Some(float) => {
                expand(self.kernels, float, self.values, count as usize, codes)?;
                Ok(Section { scales: &[], codes })
            }
            None => Ok(self.coding.section(numel, count, self.values)),
        }
    }

    /// The parts of a value section that has no blocks.
    pub(crate) fn section_of_codes(&self) -> Section<'a> {
        self.coding.section(self.header.numel, self.header.count, self.values)
    }

    /// Decodes the values of its section in any order.
    pub(crate) fn decoder<'s>(&self, section: Section<'s>) -> Decoder<'s> {
        Decoder::new(self.kernels, self.coding, section)
    }

    /// Decodes the values block by block in the cache, with the positions of each.
    fn for_each_block(
        &self,
        section: Section<'_>,
        positions: Positions<'_>,
        mut visit: impl FnMut(&[u32], &[f32]),
    ) -> Result<()> {
        let Positions { mut blocks, block, mut read } = positions;
        let mut decoder = self.decoder(section);
        let mut values = [0.0; BLOCK];
        let mut rank = 0;
        while read || blocks.next_block(block)? {
            for positions in block.chunks(BLOCK) {
                let values = &mut values[..positions.len()];
                decoder.decode(rank, Some(positions), values);
                visit(positions, values);
                rank += positions.len();
            }
            read = false;
        }
        Ok(())
    }
}

/// Bytes of the frame that these begin with, as its header says.
pub(super) fn section_end(bytes: &[u8]) -> Result<u64> {
    let (head, _) = split_header(bytes)?;
    let (index_len, value_len) = Header::section_lens(head);
    let end = (HEADER_LEN as u64).checked_add(index_len).and_then(|n| n.checked_add(value_len));
    end.ok_or_else(|| Error::corrupt("section lengths overflow"))
}

/// The positions of a frame, block by block.
struct Positions<'s> {
    blocks: Blocks<'s>,
    block: &'s mut Vec<u32>,
    /// Whether `block` holds the first one already, which is the only one then.
    read: bool,
}

/// The header and what follows it, once magic, version and flags are those of a known format.
fn split_header(bytes: &[u8]) -> Result<(&[u8; HEADER_LEN], &[u8])> {
    if !bytes.iter().zip(&MAGIC).all(|(byte, magic)| byte == magic) {
        return Err(Error::corrupt("not a frame: the first bytes are not the magic number"));
    }
    let unsupported = |what, found: u8| Error::Unsupported { what, found: u32::from(found) };
    if let Some(&version) = bytes.get(MAGIC.len())
        && version != VERSION
    {
        return Err(unsupported("version", version));
    }
    let Some((head, sections)) = bytes.split_first_chunk() else {
        let (need, have) = (HEADER_LEN as u64, bytes.len() as u64);
        return Err(Error::Truncated { what: "header", need, have });
    };
    // Flags come before the lengths, because a flag may say that there is another section.
    if head[4] != 0 {
        return Err(unsupported("flags", head[4]));
    }
    Ok((head, sections))
}
