//! Codes of one to eight bits, from one per byte to packed and back, least significant bit first.
//!
//! Eight codes of `w` bits are `w` bytes. x86-64 has an instruction for either way; the plain form
//! brings neighbours together in three steps.

mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Bytes to fields: codes below `2^width`. `out` is as long as they take; its last byte is padded
/// with zeros.
pub(in crate::simd) mod pack {
    #[cfg(target_arch = "aarch64")]
    pub(in crate::simd) use super::plain::pack as neon;
    pub(in crate::simd) use super::plain::pack as scalar;
    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) use super::x86::{pack as avx2, pack as avx512};
}

/// Fields to bytes: as many codes as there is room for. `bytes` is as long as they take.
pub(in crate::simd) mod unpack {
    #[cfg(target_arch = "aarch64")]
    pub(in crate::simd) use super::plain::unpack as neon;
    pub(in crate::simd) use super::plain::unpack as scalar;
    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) use super::x86::{unpack as avx2, unpack as avx512};
}

/// Whether the bits after the last of `count` codes are zero.
pub(crate) fn is_padded(bytes: &[u8], width: u32, count: u64) -> bool {
    let used = (count * u64::from(width)) % 8;
    used == 0 || bytes.last().is_none_or(|last| last >> used == 0)
}

/// Packs by `gather`, which moves the lowest `W` bits of eight bytes together.
#[inline(always)]
fn pack_by<const W: usize>(codes: &[u8], out: &mut [u8], gather: impl Fn(u64) -> u64) {
    let (groups, rest) = codes.as_chunks::<8>();
    let (whole, tail) = out.split_at_mut(groups.len() * W);
    for (group, out) in groups.iter().zip(whole.as_chunks_mut::<W>().0) {
        out.copy_from_slice(&gather(u64::from_le_bytes(*group)).to_le_bytes()[..W]);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let last = gather(u64::from_le_bytes(last)).to_le_bytes();
    tail.copy_from_slice(&last[..tail.len()]);
}

/// Unpacks by `scatter`, the inverse of `gather`.
#[inline(always)]
fn unpack_by<const W: usize>(bytes: &[u8], codes: &mut [u8], scatter: impl Fn(u64) -> u64) {
    let (groups, rest) = codes.as_chunks_mut::<8>();
    let tail = &bytes[groups.len() * W..];
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        scatter(u64::from_le_bytes(word)).to_le_bytes()
    };
    // Whole words, of which what follows the fields does not count, as long as there are any.
    let whole = groups.len().min((bytes.len() + W).saturating_sub(8) / W);
    let (groups, last) = groups.split_at_mut(whole);
    for (group, bytes) in groups.iter_mut().zip(bytes.windows(8).step_by(W)) {
        *group = word(bytes);
    }
    for (group, bytes) in last.iter_mut().zip(bytes[whole * W..].as_chunks::<W>().0) {
        *group = word(bytes);
    }
    let len = rest.len();
    rest.copy_from_slice(&word(tail)[..len]);
}

/// Calls `$run::<W>` for a width that is not known before; eight bits are a copy.
macro_rules! for_width {
    ($width:expr, $from:expr, $to:expr, $run:ident) => {
        match $width {
            1 => $run::<1>($from, $to),
            2 => $run::<2>($from, $to),
            3 => $run::<3>($from, $to),
            4 => $run::<4>($from, $to),
            5 => $run::<5>($from, $to),
            6 => $run::<6>($from, $to),
            7 => $run::<7>($from, $to),
            _ => $to.copy_from_slice($from),
        }
    };
}

use for_width;

#[cfg(test)]
mod tests {
    use super::is_padded;
    use crate::simd::{Kernels, available_levels};

    #[test]
    fn packed_codes_are_those_of_a_bit_by_bit_writer_and_come_back() {
        for kernels in available_levels().into_iter().filter_map(Kernels::of) {
            for (width, len) in
                (1..=8_u32).flat_map(|w| (0..=70).chain([255, 256, 2048]).map(move |n| (w, n)))
            {
                let mask = 0xFF >> (8 - width);
                let codes: Vec<u8> = (0..len).map(|i| ((i * 0x9E37) >> 3) as u8 & mask).collect();
                let bits = len * width as usize;
                let mut bytes = vec![0xAA; bits.div_ceil(8)];
                kernels.pack(&codes, width, &mut bytes);
                let mut expected = vec![0; bytes.len()];
                for at in 0..bits {
                    let one = codes[at / width as usize] >> (at % width as usize) & 1;
                    expected[at / 8] |= one << (at % 8);
                }
                assert_eq!(bytes, expected, "{:?} {width} {len}", kernels.level());
                let mut back = vec![0xFF; len];
                kernels.unpack(&bytes, width, &mut back);
                assert_eq!(back, codes, "{:?} {width} {len}", kernels.level());
                assert!(is_padded(&bytes, width, len as u64));
                if !bits.is_multiple_of(8) {
                    *bytes.last_mut().unwrap() |= 0x80;
                    assert!(!is_padded(&bytes, width, len as u64));
                }
            }
        }
    }
}
