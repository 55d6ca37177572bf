//! How far floats are from others, in the order of floats; and these distances as fields of their own lengths.
//!
//! The bits of floats are whole numbers in that order: those of a negative one inverted, and of others with
//! the highest bit set.

use super::codes::word;
use super::parts::Word;
use super::stamp::stamp;

/// The highest bit of a float.
const fn top<T>() -> u32 {
    1 << (8 * size_of::<T>() - 1)
}

/// As a number in the order of floats.
#[inline(always)]
pub(crate) fn order<T: Word>(value: T) -> u32 {
    let (bits, top) = (value.get(), top::<T>());
    let all = top | (top - 1);
    if bits & top == 0 { bits | top } else { !bits & all }
}

/// The float of such a number.
#[inline(always)]
pub(crate) fn restore<T: Word>(order: u32) -> T {
    let top = top::<T>();
    T::of(if order & top == 0 { !order } else { order ^ top })
}

/// The bit lengths of distances; and the bits below the highest, under one that is set where a float is below
/// the other.
#[inline(always)]
fn gaps<T: Word>(values: &[T], base: &[T], lengths: &mut [u16], fields: &mut [u32]) {
    let out = lengths.iter_mut().zip(fields);
    for ((value, base), (length, field)) in values.iter().zip(base).zip(out) {
        let (new, old) = (order(*value), order(*base));
        let size = new.abs_diff(old);
        let bits = u32::BITS - size.leading_zeros();
        let half = (1_u64 << bits >> 1) as u32;
        *length = bits as u16;
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
    // As many fields as one load has for sure.
    let run = if size_of::<T>() == 2 { 3 } else { 1 };
    let mut beyond = 0;
    for (out, lengths) in out.chunks_mut(run).zip(lengths.chunks(run)) {
        let mut word = word(bytes, at);
        for (out, length) in out.iter_mut().zip(lengths) {
            let length = u32::from(*length) & 0x3F;
            let half = 1_u64 << length >> 1;
            let field = word & ((1 << length) - 1);
            word >>= length;
            at += length as usize;
            let size = (field | half) as i64;
            let gap = if field & half == 0 { size } else { -size };
            let new = i64::from(order(*out)) + gap;
            beyond |= new >> (8 * size_of::<T>());
            *out = restore(new as u32);
        }
    }
    (at, beyond == 0)
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
