//! Codes of one to eight bits, from one a byte to packed and back, least significant bit first.

/// Eight codes of `width` bits, one a byte of `word`, moved together into its lowest bits.
#[inline(always)]
fn gather(word: u64, width: u32) -> u64 {
    let mask = |fields: u64| fields * ((1 << width) - 1);
    let word = (word & mask(0x0001_0001_0001_0001))
        | (word >> (8 - width) & mask(0x0001_0001_0001_0001) << width);
    let width = 2 * width;
    let mask = |fields: u64| fields * ((1 << width) - 1);
    let word = (word & mask(0x0000_0001_0000_0001))
        | (word >> (16 - width) & mask(0x0000_0001_0000_0001) << width);
    let width = 2 * width;
    let mask = (1_u64 << width) - 1;
    (word & mask) | (word >> (32 - width) & mask << width)
}

/// The inverse of [`gather`].
#[inline(always)]
fn scatter(word: u64, width: u32) -> u64 {
    let half = |word: u64, width: u32, to: u32, fields: u64| {
        let mask = fields.wrapping_mul((1_u64 << width) - 1);
        (word & mask) | (word << (to - width) & mask << to)
    };
    let word = half(word, 4 * width, 32, 1);
    let word = half(word, 2 * width, 16, 0x0000_0001_0000_0001);
    half(word, width, 8, 0x0001_0001_0001_0001)
}

/// Packs codes below `2^width`; pads the last byte with zeros. `out` is as long as they take.
pub(crate) fn pack(codes: &[u8], width: u32, out: &mut [u8]) {
    if width == 8 {
        out.copy_from_slice(codes);
        return;
    }
    let (groups, rest) = codes.as_chunks::<8>();
    let (whole, tail) = out.split_at_mut(groups.len() * width as usize);
    for (group, out) in groups.iter().zip(whole.chunks_exact_mut(width as usize)) {
        out.copy_from_slice(
            &gather(u64::from_le_bytes(*group), width).to_le_bytes()[..width as usize],
        );
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let word = gather(u64::from_le_bytes(last), width).to_le_bytes();
    tail.copy_from_slice(&word[..tail.len()]);
}

/// Unpacks as many codes as `codes` has room for. `bytes` is as long as they take.
pub(crate) fn unpack(bytes: &[u8], width: u32, codes: &mut [u8]) {
    if width == 8 {
        codes.copy_from_slice(bytes);
        return;
    }
    let (groups, rest) = codes.as_chunks_mut::<8>();
    let (whole, tail) = bytes.split_at(groups.len() * width as usize);
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        scatter(u64::from_le_bytes(word), width).to_le_bytes()
    };
    for (group, bytes) in groups.iter_mut().zip(whole.chunks_exact(width as usize)) {
        *group = word(bytes);
    }
    let len = rest.len();
    rest.copy_from_slice(&word(tail)[..len]);
}

/// Whether the bits after the last of `count` codes are zero.
pub(crate) fn is_padded(bytes: &[u8], width: u32, count: u64) -> bool {
    let used = (count * u64::from(width)) % 8;
    used == 0 || bytes.last().is_none_or(|last| last >> used == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_codes_are_those_of_a_bit_by_bit_writer_and_come_back() {
        for width in 1..=8_u32 {
            for len in (0..=70).chain([255, 256, 2048]) {
                let codes: Vec<u8> =
                    (0..len).map(|i| ((i * 0x9E37) >> 3) as u8 & (0xFF >> (8 - width))).collect();
                let mut bytes = vec![0xAA; (len * width as usize).div_ceil(8)];
                pack(&codes, width, &mut bytes);
                let mut expected = vec![0; bytes.len()];
                for (bit, at) in (0..len * width as usize).enumerate() {
                    let one = codes[at / width as usize] >> (at % width as usize) & 1;
                    expected[bit / 8] |= one << (bit % 8);
                }
                assert_eq!(bytes, expected, "{width} {len}");
                let mut back = vec![0xFF; len];
                unpack(&bytes, width, &mut back);
                assert_eq!(back, codes, "{width} {len}");
                assert!(is_padded(&bytes, width, len as u64));
                if !(len * width as usize).is_multiple_of(8) {
                    *bytes.last_mut().unwrap() |= 0x80;
                    assert!(!is_padded(&bytes, width, len as u64));
                }
            }
        }
    }
}
