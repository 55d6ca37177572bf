//! How far floats are from others, in the order of floats: codes of distances, and fields of the rest.
//!
//! The bits of floats are whole numbers in that order: those of a negative one inverted, and of others with
//! the highest bit set. A distance of `n` bits has a code: itself below 8; else its highest three bits, and 4 for each of
//! the `n - 3` bits below them, which are a field with the direction above. A float 11 = `0b1011` below the other has
//! the code `0b101 + 4 = 9` and the field `0b11`.

use super::codes::word;
use super::parts::Word;
use super::stamp::stamp;

/// Fields that are read before floats are moved by them, many at a time.
const CHUNK: usize = 512;

/// The highest bit of a float.
#[inline(always)]
const fn top<T>() -> u32 {
    1 << (8 * size_of::<T>() - 1)
}

/// All bits of a float if it is negative, otherwise none: without a branch, which nobody could predict.
#[inline(always)]
fn sign<T>(bits: u32) -> u32 {
    let below = (bits << (32 - 8 * size_of::<T>())) as i32 >> 31;
    below as u32 & (top::<T>() | (top::<T>() - 1))
}

/// As a number in the order of floats.
#[inline(always)]
pub(crate) fn order<T: Word>(value: T) -> u32 {
    let bits = value.get();
    bits ^ (top::<T>() | sign::<T>(bits))
}

/// The float of such a number.
#[inline(always)]
pub(crate) fn restore<T: Word>(order: u32) -> T {
    let top = top::<T>();
    T::of(order ^ (top | !sign::<T>(order) & (top - 1)))
}

/// Bits of a distance that its code has, from the highest on.
const HIGHEST: u32 = 3;

/// Bits of a distance of this code that are below those of the code: 0 of 7, the largest one of 3 bits, and 1 of 8,
/// which is 8 or 9.
#[inline(always)]
pub(crate) fn bits_below(code: u16) -> u32 {
    (u32::from(code) >> (HIGHEST - 1)).saturating_sub(1)
}

/// Bits of its field: those below, and one that is set where a float is below the other; none of no distance.
#[inline(always)]
pub(crate) fn bits_of_field(code: u16) -> u32 {
    bits_below(code) + u32::from(code > 0)
}

/// Codes of distances, and the fields of the rest: see the module.
#[inline(always)]
fn gaps<T: Word>(values: &[T], base: &[T], codes: &mut [u16], fields: &mut [u32]) {
    let out = codes.iter_mut().zip(fields);
    for ((value, base), (code, field)) in values.iter().zip(base).zip(out) {
        let (new, old) = (order(*value), order(*base));
        let size = new.abs_diff(old);
        // All bits from the highest on, and so one less than a power of two, whose exponent float32 tells:
        // that is the same for all entries of a vector, where the number of leading zeros is not.
        let filled = [1, 2, 4, 8, 16].iter().fold(size, |bits, by| bits | bits >> by);
        let exponent = ((u64::from(filled) + 1) as f32).to_bits() >> 23;
        let below = exponent.saturating_sub(127 + HIGHEST);
        *code = ((size >> below) + (below << (HIGHEST - 1))) as u16;
        *field = size & ((1 << below) - 1) | u32::from(new < old) << below;
    }
}

/// Fields of so many bits one after another; `out` is as long as all, and eight bytes.
#[inline(always)]
fn put_body(codes: &[u16], fields: &[u32], out: &mut [u8]) {
    let (mut pending, mut filled, mut at) = (0_u64, 0, 0);
    for (code, field) in codes.iter().zip(fields) {
        pending |= u64::from(*field) << (filled & 0x3F);
        filled += bits_of_field(*code);
        out[at..at + 8].copy_from_slice(&pending.to_le_bytes());
        at += filled as usize / 8;
        pending >>= filled & 0x38;
        filled &= 7;
    }
}

/// Moves floats by distances whose fields are in `bytes` from bit `at` on, or `back` by these. Returns where the next
/// field is, and whether all floats stayed in their order.
#[inline(always)]
fn apply<T: Word>(
    codes: &[u16],
    bytes: &[u8],
    mut at: usize,
    back: bool,
    out: &mut [T],
) -> (usize, bool) {
    let (mut fields, mut within) = ([0; CHUNK], true);
    for (out, codes) in out.chunks_mut(CHUNK).zip(codes.chunks(CHUNK)) {
        let fields = &mut fields[..out.len()];
        for (field, code) in fields.iter_mut().zip(codes) {
            let bits = bits_of_field(*code) & 0x1F;
            *field = (word(bytes, at) & ((1 << bits) - 1)) as u32;
            at += bits as usize;
        }
        within &= move_by(codes, fields, back, out);
    }
    (at, within)
}

#[inline(always)]
fn move_by<T: Word>(codes: &[u16], fields: &[u32], back: bool, out: &mut [T]) -> bool {
    let (mut beyond, all) = (0, top::<T>() | (top::<T>() - 1));
    for ((out, code), field) in out.iter_mut().zip(codes).zip(fields) {
        let below = bits_below(*code) & 0x1F;
        let highest = u32::from(*code).wrapping_sub(below << (HIGHEST - 1)) << below;
        let (size, old) = (highest | field & ((1 << below) - 1), order(*out));
        let down = field >> below & 1 > 0;
        let (new, wrong) = if down == back {
            (old.wrapping_add(size), all - old < size)
        } else {
            (old.wrapping_sub(size), old < size)
        };
        beyond |= u32::from(wrong);
        *out = restore(new);
    }
    beyond == 0
}

pub(in crate::simd) mod put {
    use super::{put_body, stamp};
    stamp!(fn(codes: &[u16], fields: &[u32], out: &mut [u8]) => put_body);
}

macro_rules! stamped {
    ($($width:ident: $float:ty),*) => {
        pub(in crate::simd) mod find {
            $(pub(in crate::simd) mod $width {
                use super::super::{gaps, stamp};
                stamp!(fn(values: &[$float], base: &[$float], codes: &mut [u16], fields: &mut [u32]) => gaps);
            })*
        }
        pub(in crate::simd) mod close {
            $(pub(in crate::simd) mod $width {
                use super::super::{apply, stamp};
                stamp!(fn(codes: &[u16], bytes: &[u8], at: usize, back: bool, out: &mut [$float]) -> (usize, bool) => apply);
            })*
        }
    };
}

stamped!(half: [u8; 2], single: [u8; 4]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::{levels_and_lengths, tensor};

    #[test]
    fn floats_are_ordered_as_numbers_are() {
        let ordered = [f32::NEG_INFINITY, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, f32::INFINITY];
        let numbers = ordered.map(|x| order(x.to_le_bytes()));
        assert!(numbers.is_sorted_by(|a, b| a < b));
        assert_eq!(numbers[4] - numbers[3], 1);
        for bits in 0..=u16::MAX {
            assert_eq!(restore::<[u8; 2]>(order(bits.to_le_bytes())), bits.to_le_bytes());
        }
        assert_eq!(numbers.map(restore::<[u8; 4]>), ordered.map(f32::to_le_bytes));
    }

    #[test]
    fn distances_lead_from_the_others_to_the_floats() {
        levels_and_lengths(|kernels, x| {
            let values: Vec<[u8; 4]> = x.iter().map(|x| x.to_le_bytes()).collect();
            let base: Vec<[u8; 4]> = tensor(x.len(), 99).iter().map(|x| x.to_le_bytes()).collect();
            let (mut codes, mut fields) = (vec![0; x.len()], vec![0; x.len()]);
            kernels.single_gaps(&values, &base, &mut codes, &mut fields);
            let mut bits = 0;
            for (i, (code, field)) in codes.iter().zip(&fields).enumerate() {
                let gap = i64::from(order(values[i])) - i64::from(order(base[i]));
                let below = u64::from(61 - gap.unsigned_abs().leading_zeros().min(61));
                assert_eq!(u64::from(*code), (gap.unsigned_abs() >> below) + 4 * below);
                let down = u64::from(gap < 0) << below;
                assert_eq!(u64::from(*field), (gap.unsigned_abs() % (1 << below)) | down);
                bits += below as usize + usize::from(gap != 0);
            }
            let mut out = vec![0; bits.div_ceil(8) + 8];
            kernels.put_fields(&codes, &fields, &mut out);
            let mut found = base.clone();
            assert_eq!(kernels.single_close(&codes, &out, 0, false, &mut found), (bits, true));
            assert_eq!(found, values);
            assert_eq!(kernels.single_close(&codes, &out, 0, true, &mut found), (bits, true));
            assert_eq!(found, base);
        });
    }
}
