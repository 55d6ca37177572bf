//! The positions of a frame without its values, which one rank sends if all use its selection
//! (`ScaleCom`, section 2). A message between processes of the same version, not a stable format.
//!
//! | offset | bytes | content |
//! |---:|---:|---|
//! | 0 | 1 | coding, as in the header of a frame |
//! | 1 | 1 | its parameter |
//! | 2 | 2 | 0 |
//! | 4 | 4 | count |
//! | 8 | 4 | CRC-32C of everything else |
//! | 12 | | the index section of the frame |

use super::read::Frame;
use crate::pack::{self, Coding, MAX_NUMEL};
use crate::simd::Kernels;
use crate::{Error, Result, allocate};

/// Bytes before the index section.
pub const POSITIONS_HEAD: usize = 12;

/// The positions of a frame on their own, in place of what `out` held.
pub fn write_positions(frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<()> {
    let coding = frame.header().coding;
    out.clear();
    allocate::reserve(out, POSITIONS_HEAD + frame.index_section().len())?;
    out.extend([coding.id(), coding.parameter(), 0, 0]);
    out.extend((frame.header().count as u32).to_le_bytes());
    out.extend([0; 4]);
    out.extend(frame.index_section());
    let sum = checksum(out).to_le_bytes();
    out[8..POSITIONS_HEAD].copy_from_slice(&sum);
    Ok(())
}

/// Reads what [`write_positions`] wrote for a tensor of `numel` elements: strictly ascending
/// positions below it, in place of what `out` held.
///
/// Any other bytes are an error, found before anything is allocated in the size they claim.
pub fn read_positions(bytes: &[u8], numel: u64, out: &mut Vec<u32>) -> Result<()> {
    let Some((head, section)) = bytes.split_first_chunk::<POSITIONS_HEAD>() else {
        let (need, have) = (POSITIONS_HEAD as u64, bytes.len() as u64);
        return Err(Error::Truncated { what: "positions", need, have });
    };
    if numel > MAX_NUMEL {
        return Err(Error::TooLarge { numel, limit: MAX_NUMEL });
    }
    let [id, parameter, _, _, a, b, c, d, stored @ ..] = *head;
    if checksum(bytes) != u32::from_le_bytes(stored) {
        return Err(Error::corrupt("the checksum of the positions does not match"));
    }
    let unknown = Error::Unsupported { what: "index coding", found: u32::from(id) };
    let coding = Coding::read(id, parameter, section)?.ok_or(unknown)?;
    let count = u64::from(u32::from_le_bytes([a, b, c, d]));
    pack::decode_into(Kernels::current(), coding, section, numel, count, out)
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..8]), &bytes[POSITIONS_HEAD..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;
    use crate::frame::{Layout, write_into};
    use crate::pack::{IndexCoding, Pattern};
    use crate::quantize::Quantizer;
    use crate::sparsify::TopK;

    const CODINGS: [IndexCoding; 4] =
        [IndexCoding::Auto, IndexCoding::EliasFano, IndexCoding::Rice, IndexCoding::Bitmap];

    fn positions(numel: u64, indices: &[u32], allowed: IndexCoding) -> Vec<u8> {
        let layout = Layout {
            dtype: Dtype::F32,
            sparsifier: TopK::ID,
            quantizer: Quantizer::Float32,
            indices: allowed,
            pattern: Pattern::Any,
        };
        let (mut frame, mut out) = (Vec::new(), vec![1; 3]);
        write_into(&layout, numel, Some(indices), &vec![1.0; indices.len()], &mut frame).unwrap();
        write_positions(&Frame::parse(&frame, None).unwrap(), &mut out).unwrap();
        out
    }

    #[test]
    fn positions_read_as_they_were_written() {
        let mut found = vec![7];
        for (numel, indices) in [
            (0, vec![]),
            (9, vec![]),
            (9, vec![8]),
            (3, vec![0, 1, 2]),
            (500, vec![0, 17, 18, 499]),
        ] {
            for allowed in CODINGS {
                let bytes = positions(numel, &indices, allowed);
                read_positions(&bytes, numel, &mut found).unwrap();
                assert_eq!(found, indices);
            }
        }
    }

    #[test]
    fn no_other_bytes_are_taken() {
        for allowed in CODINGS {
            let bytes = positions(300, &[3, 90, 91, 299], allowed);
            let mut out = Vec::new();
            for len in 0..bytes.len() {
                assert!(read_positions(&bytes[..len], 300, &mut out).is_err());
            }
            for bit in 0..8 * bytes.len() {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(read_positions(&flipped, 300, &mut out).is_err());
            }
            assert!(read_positions(&bytes, 299, &mut out).is_err());
            assert!(read_positions(&bytes, 1 << 32, &mut out).is_err());
        }
    }

    #[test]
    fn a_forged_count_is_refused_before_it_is_allocated() {
        let mut bytes = positions(300, &[3, 90], IndexCoding::Rice);
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let sum = checksum(&bytes).to_le_bytes();
        bytes[8..12].copy_from_slice(&sum);
        let mut out = Vec::new();
        assert!(matches!(read_positions(&bytes, 300, &mut out), Err(Error::Corrupt { .. })));
        assert_eq!(out.capacity(), 0);
    }
}
