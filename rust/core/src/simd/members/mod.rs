//! Classes of floats as masks: which of 64 bytes lie in a range, and where members of a class are by their numbers.
//!
//! A mask has bit `i` set where byte `i` of its 64 is in the range: of 3, 9, 4 and the range 3 to 4, it is `0b101`.
//! Members of a class are counted through a block. With masks `0b0110` and `0b1001` of two groups, of which
//! positions start at 64, members 0, 1, 2 and 3 are at 65, 66, 128 and 131.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::parts::Word;
use super::stamp::stamp;

/// Floats in a group, which a mask has bits for.
pub const GROUP: usize = 64;

/// Bits of each float from bit `from` on, of which `mask` are taken: its exponent.
#[inline(always)]
fn keys_body<T: Word>(values: &[T], from: u32, mask: u8, out: &mut [u8]) {
    for (out, value) in out.iter_mut().zip(values) {
        *out = value.key(from, mask);
    }
}

/// One where a float differs from another, else zero.
#[inline(always)]
fn changed_body<T: Word + PartialEq>(values: &[T], base: &[T], out: &mut [u8]) {
    for (out, (value, base)) in out.iter_mut().zip(values.iter().zip(base)) {
        *out = u8::from(value != base);
    }
}

/// The masks of bytes from `first` to `last`.
pub(in crate::simd) mod masks {
    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) use super::x86::{avx2::masks as avx2, avx512::masks as avx512};
    #[cfg(target_arch = "aarch64")]
    pub(in crate::simd) use scalar as neon;

    pub(in crate::simd) fn scalar(bytes: &[u8], first: u8, last: u8, out: &mut [u64]) {
        super::whole_groups(bytes, out, |group| {
            let mut mask = 0;
            for (i, eight) in group.as_chunks::<8>().0.iter().enumerate() {
                let inside = eight.map(|byte| u8::from(byte.wrapping_sub(first) <= last - first));
                // Bit 0 of byte k moves to bit 56 + k; of sums, no two meet.
                let bits = u64::from_le_bytes(inside).wrapping_mul(0x0102_0408_1020_4080) >> 56;
                mask |= bits << (8 * i);
            }
            mask
        });
    }
}

/// Sets masks by groups, the last of which may have fewer bytes.
#[inline(always)]
fn whole_groups(bytes: &[u8], out: &mut [u64], mask: impl Fn(&[u8; GROUP]) -> u64) {
    let (groups, rest) = bytes.as_chunks::<GROUP>();
    for (out, group) in out.iter_mut().zip(groups) {
        *out = mask(group);
    }
    if !rest.is_empty() {
        let mut group = [0; GROUP];
        group[..rest.len()].copy_from_slice(rest);
        out[groups.len()] = mask(&group) & ((1 << rest.len()) - 1);
    }
}

/// Finds members that are marked too: their numbers, and their positions from `at` on.
///
/// `seen` members were before the first group, and it becomes how many there are up to the last. `numbers` and `places`
/// have room for all marked ones. Returns how many were found.
#[inline(always)]
fn find_body(
    members: &[u64],
    marks: &[u64],
    at: u32,
    seen: &mut u32,
    numbers: &mut [u32],
    places: &mut [u32],
) -> usize {
    let (mut found, mut total) = (0, *seen);
    for (i, (members, marks)) in members.iter().zip(marks).enumerate() {
        let mut left = members & marks;
        while left != 0 {
            let bit = left.trailing_zeros();
            numbers[found] = total + (members & ((1 << bit) - 1)).count_ones();
            places[found] = at + (i * GROUP) as u32 + bit;
            found += 1;
            left &= left - 1;
        }
        total += members.count_ones();
    }
    *seen = total;
    found
}

/// Positions of members by their numbers, which ascend: as many as are in these groups, and how many those are.
///
/// The rest is as with `find`. `places` has room for all numbers.
pub(in crate::simd) mod locate {
    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) use super::x86::{avx2::locate as avx2, avx512::locate as avx512};
    #[cfg(target_arch = "aarch64")]
    pub(in crate::simd) use scalar as neon;

    pub(in crate::simd) fn scalar(
        members: &[u64],
        numbers: &[u32],
        at: u32,
        seen: &mut u32,
        places: &mut [u32],
    ) -> usize {
        super::locate_body(members, numbers, at, seen, places, |mut mask, number| {
            for _ in 0..number {
                mask &= mask - 1;
            }
            mask.trailing_zeros()
        })
    }
}

/// `select` is the position of a set bit of a mask by its number.
#[inline(always)]
fn locate_body(
    members: &[u64],
    numbers: &[u32],
    at: u32,
    seen: &mut u32,
    places: &mut [u32],
    select: impl Fn(u64, u32) -> u32,
) -> usize {
    // No block has so many members.
    let number = |i: usize| numbers.get(i).copied().unwrap_or(u32::MAX);
    let (mut located, mut next, mut total) = (0, number(0), *seen);
    for (i, members) in members.iter().enumerate() {
        let end = total + members.count_ones();
        while next < end {
            places[located] = at + (i * GROUP) as u32 + select(*members, next - total);
            located += 1;
            next = number(located);
        }
        total = end;
    }
    *seen = total;
    located
}

pub(in crate::simd) mod find {
    use super::{find_body, stamp};
    stamp!(fn(members: &[u64], marks: &[u64], at: u32, seen: &mut u32, numbers: &mut [u32], places: &mut [u32]) -> usize => find_body);
}

macro_rules! stamped {
    ($($width:ident: $float:ty),*) => {
        pub(in crate::simd) mod keys {
            $(pub(in crate::simd) mod $width {
                use super::super::{keys_body, stamp};
                stamp!(fn(values: &[$float], from: u32, mask: u8, out: &mut [u8]) => keys_body);
            })*
        }
        pub(in crate::simd) mod changed {
            $(pub(in crate::simd) mod $width {
                use super::super::{changed_body, stamp};
                stamp!(fn(values: &[$float], base: &[$float], out: &mut [u8]) => changed_body);
            })*
        }
    };
}

stamped!(half: [u8; 2], single: [u8; 4]);

#[cfg(test)]
mod tests {
    use super::GROUP;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn members_are_found_by_their_masks_and_located_by_their_numbers() {
        levels_and_lengths(|kernels, x| {
            let halves: Vec<[u8; 2]> =
                x.iter().map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
            let singles: Vec<[u8; 4]> = x.iter().map(|x| x.to_le_bytes()).collect();
            let (mut keys, mut same) = (vec![0; x.len()], vec![0; x.len()]);
            kernels.half_keys(&halves, 7, 0xFF, &mut keys);
            kernels.single_keys(&singles, 23, 0x7F, &mut same);
            let mut base = halves.clone();
            base.iter_mut().step_by(3).for_each(|value| value[0] ^= 1);
            let mut marks = vec![9; x.len()];
            kernels.half_changed(&halves, &base, &mut marks);
            for (i, value) in halves.iter().enumerate() {
                assert_eq!(u16::from(keys[i]), u16::from_le_bytes(*value) >> 7 & 0xFF);
                assert_eq!(u32::from(same[i]), u32::from_le_bytes(singles[i]) >> 23 & 0x7F);
                assert_eq!(marks[i], u8::from(i % 3 == 0));
            }
            let groups = x.len().div_ceil(GROUP);
            let (mut members, mut marked) = (vec![0; groups], vec![0; groups]);
            kernels.masks(&marks, 1, 1, &mut marked);
            for (first, last) in [(0, 255), (120, 127), (127, 127), (200, 255), (0, 0)] {
                kernels.masks(&keys, first, last, &mut members);
                let (mut seen, mut numbers, mut expected) = (5, Vec::new(), Vec::new());
                for (i, key) in keys.iter().enumerate() {
                    let member = (first..=last).contains(key);
                    assert_eq!(members[i / GROUP] >> (i % GROUP) & 1, u64::from(member));
                    if member && i % 3 == 0 {
                        numbers.push(seen);
                        expected.push(1000 + i as u32);
                    }
                    seen += u32::from(member);
                }
                let (mut found, mut places) = (vec![0; x.len()], vec![0; x.len()]);
                let mut total = 5;
                let many =
                    kernels.find(&members, &marked, 1000, &mut total, &mut found, &mut places);
                assert_eq!((total, &found[..many], &places[..many]), (seen, &*numbers, &*expected));
                numbers.push(seen);
                places.fill(0);
                places.push(0);
                let mut total = 5;
                let located = kernels.locate(&members, &numbers, 1000, &mut total, &mut places);
                assert_eq!((total, located, &places[..many]), (seen, many, &*expected));
            }
        });
    }
}
