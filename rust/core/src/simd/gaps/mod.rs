//! How far floats are from others, in the order of floats; and these distances as fields of their own lengths.
//!
//! The bits of floats are whole numbers in that order: those of a negative one inverted, and of others with
//! the highest bit set.

use super::codes::word;
use super::parts::Word;
use super::stamp::stamp;

/// Fields that are read before floats are moved by them, many at a time.
const CHUNK: usize = 512;

/// The highest bit of a float.
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

/// The bit lengths of distances; and the bits below the highest, under one that is set where a float is below
/// the other.
#[inline(always)]
fn gaps<T: Word>(values: &[T], base: &[T], lengths: &mut [u16], fields: &mut [u32]) {
    let out = lengths.iter_mut().zip(fields);
    for ((value, base), (length, field)) in values.iter().zip(base).zip(out) {
        let (new, old) = (order(*value), order(*base));
        let size = new.abs_diff(old);
        // All bits from the highest on, and so one less than a power of two, whose exponent float32 tells:
        // that is the same for all entries of a vector, where the number of leading zeros is not.
        let filled = [1, 2, 4, 8, 16].iter().fold(size, |bits, by| bits | bits >> by);
        let exponent = ((u64::from(filled) + 1) as f32).to_bits() >> 23;
        let half = filled ^ filled >> 1;
        *length = (exponent - 127) as u16;
        *field = size ^ half | if new < old { half } else { 0 };
    }
}

/// Fields of so many bits one after another; `out` is as long as all, and eight bytes.
#[inline(always)]
fn put_body(lengths: &[u16], fields: &[u32], out: &mut [u8]) {
    let (mut pending, mut filled, mut at) = (0_u64, 0, 0);
    for (length, field) in lengths.iter().zip(fields) {
        pending |= u64::from(*field) << (filled & 0x3F);
        filled += u32::from(*length);
        out[at..at + 8].copy_from_slice(&pending.to_le_bytes());
        at += filled as usize / 8;
        pending >>= filled & 0x38;
        filled &= 7;
    }
}

/// Moves floats by distances whose fields are in `bytes` from bit `at` on. Returns where the next field is, and
/// whether all floats stayed in their order.
#[inline(always)]
fn apply<T: Word>(lengths: &[u16], bytes: &[u8], mut at: usize, out: &mut [T]) -> (usize, bool) {
    let (mut fields, mut within) = ([0; CHUNK], true);
    for (out, lengths) in out.chunks_mut(CHUNK).zip(lengths.chunks(CHUNK)) {
        let fields = &mut fields[..out.len()];
        for (field, length) in fields.iter_mut().zip(lengths) {
            let length = u32::from(*length) & 0x3F;
            *field = (word(bytes, at) & ((1 << length) - 1)) as u32;
            at += length as usize;
        }
        within &= move_by(lengths, fields, out);
    }
    (at, within)
}

#[inline(always)]
fn move_by<T: Word>(lengths: &[u16], fields: &[u32], out: &mut [T]) -> bool {
    let (mut beyond, all) = (0, top::<T>() | (top::<T>() - 1));
    for ((out, length), field) in out.iter_mut().zip(lengths).zip(fields) {
        let half = (1_u64 << (length & 0x3F) >> 1) as u32;
        // The highest bit for the sign that is there instead.
        let (size, old) = (field | half, order(*out));
        let (new, wrong) = if field & half == 0 {
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
    stamp!(fn(lengths: &[u16], fields: &[u32], out: &mut [u8]) => put_body);
}

macro_rules! stamped {
    ($($width:ident: $float:ty),*) => {
        pub(in crate::simd) mod find {
            $(pub(in crate::simd) mod $width {
                use super::super::{gaps, stamp};
                stamp!(fn(values: &[$float], base: &[$float], lengths: &mut [u16], fields: &mut [u32]) => gaps);
            })*
        }
        pub(in crate::simd) mod close {
            $(pub(in crate::simd) mod $width {
                use super::super::{apply, stamp};
                stamp!(fn(lengths: &[u16], bytes: &[u8], at: usize, out: &mut [$float]) -> (usize, bool) => apply);
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
            let (mut lengths, mut fields) = (vec![0; x.len()], vec![0; x.len()]);
            kernels.single_gaps(&values, &base, &mut lengths, &mut fields);
            for (i, (length, field)) in lengths.iter().zip(&fields).enumerate() {
                let gap = i64::from(order(values[i])) - i64::from(order(base[i]));
                assert_eq!(u32::from(*length), 64 - gap.unsigned_abs().leading_zeros());
                let half = 1_u64 << length >> 1;
                let expected = gap.unsigned_abs() - half + if gap < 0 { half } else { 0 };
                assert_eq!(u64::from(*field), expected);
            }
            let bits: usize = lengths.iter().map(|length| usize::from(*length)).sum();
            let mut out = vec![0; bits.div_ceil(8) + 8];
            kernels.put_fields(&lengths, &fields, &mut out);
            let mut found = base.clone();
            assert_eq!(kernels.single_close(&lengths, &out, 0, &mut found), (bits, true));
            assert_eq!(found, values);
        });
    }
}
