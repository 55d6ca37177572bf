//! Classes of floats as masks: which of 64 bytes lie in a range, and the numbers of members.
//!
//! A mask has bit `i` set where byte `i` of its 64 is in the range: of 3, 9, 4 and the range 3 to 4, it is `0b101`.
//! Members of a class are counted through a block. With masks `0b0110` and `0b1001` of two groups, of which
//! positions start at 64, members 0, 1, 2 and 3 are at 65, 66, 128 and 131.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::BLOCK;
use super::codes::alone;
use super::parts::Word;
use super::stamp::stamp;

/// Floats in a group, which a mask has bits for.
pub const GROUP: usize = 64;

/// Groups of a block of the kernels.
pub const GROUPS: usize = BLOCK / GROUP;

/// The masks of a class in such a block.
pub type Masks = [u64; GROUPS];

/// Classes at most.
pub const CLASSES: usize = 16;

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

/// The positions of marks in groups; `out` has room for them and three more. Returns how many there are.
#[inline(always)]
fn places_body(marks: &[u64], out: &mut [u32]) -> usize {
    let mut found = 0;
    for (i, marks) in marks.iter().enumerate() {
        let (mut left, end) = (*marks, found + marks.count_ones() as usize);
        // Four at a time, as it is hard to foretell how many there are: after the last one, anything.
        for out in out[found..].chunks_exact_mut(4).take((end - found).div_ceil(4)) {
            for place in out {
                *place = (i * GROUP) as u32 + left.trailing_zeros();
                left &= left.wrapping_sub(1);
            }
        }
        found = end;
    }
    found
}

/// The numbers that floats at some places have in their classes. `classes` are those of all keys, and `members` has the
/// masks of each class, of which `seen` were before.
#[inline(always)]
fn rank_body(
    members: &[Masks],
    seen: &mut [u32],
    keys: &[u8; BLOCK],
    classes: &[u8; 256],
    places: &[u32],
    numbers: &mut [u32],
) {
    let mut before = [[0; GROUPS]; CLASSES];
    for (before, (members, seen)) in before.iter_mut().zip(members.iter().zip(seen)) {
        for (before, members) in before.iter_mut().zip(members) {
            *before = *seen;
            *seen += alone(*members).count_ones();
        }
    }
    for (place, number) in places.iter().zip(numbers) {
        let place = *place as usize % BLOCK;
        let (class, group) = (usize::from(classes[usize::from(keys[place])]), place / GROUP);
        let below = members[class][group] & ((1 << (place % GROUP)) - 1);
        *number = before[class][group] + below.count_ones();
    }
}

/// Marks the members whose numbers are set in `bits`, of which `seen` were before.
pub(in crate::simd) mod mark {
    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) use super::x86::{avx2::mark as avx2, avx512::mark as avx512};
    #[cfg(target_arch = "aarch64")]
    pub(in crate::simd) use scalar as neon;

    pub(in crate::simd) fn scalar(
        members: &[u64],
        bits: &[u64],
        seen: &mut u32,
        marks: &mut [u64],
    ) {
        super::mark_body(members, bits, seen, marks, |bits, mask| {
            let (mut left, mut bits, mut marked) = (mask, bits, 0);
            while bits != 0 && left != 0 {
                marked |= (left & left.wrapping_neg()) * (bits & 1);
                left &= left - 1;
                bits >>= 1;
            }
            marked
        });
    }
}

/// `deposit` puts the lowest bits of one number where another has ones.
#[inline(always)]
fn mark_body(
    members: &[u64],
    bits: &[u64],
    seen: &mut u32,
    marks: &mut [u64],
    deposit: impl Fn(u64, u64) -> u64,
) {
    let word = |i: usize| bits.get(i).copied().unwrap_or(0);
    for (members, marks) in members.iter().zip(marks) {
        let (at, shift) = (*seen as usize / 64, *seen % 64);
        let next = word(at) >> shift | word(at + 1) << 1 << (63 - shift);
        *marks |= deposit(next, *members);
        *seen += members.count_ones();
    }
}

pub(in crate::simd) mod places {
    use super::{places_body, stamp};
    stamp!(fn(marks: &[u64], out: &mut [u32]) -> usize => places_body);
}

pub(in crate::simd) mod rank {
    use super::{BLOCK, Masks, rank_body, stamp};
    stamp!(fn(members: &[Masks], seen: &mut [u32], keys: &[u8; BLOCK], classes: &[u8; 256], places: &[u32], numbers: &mut [u32]) => rank_body);
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
    use super::{BLOCK, GROUP, GROUPS};
    use crate::simd::Kernels;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn members_have_masks_and_numbers_which_lead_back_to_them() {
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
            for (keys, marks) in keys.chunks(BLOCK).zip(marks.chunks(BLOCK)) {
                members_come_back(kernels, keys, marks);
            }
        });
    }

    /// Checks the places of the marked ones, their numbers in classes, and that these lead back to them.
    fn members_come_back(kernels: &Kernels, keys: &[u8], marked: &[u8]) {
        let groups = keys.len().div_ceil(GROUP);
        let mut marks = [0; GROUPS];
        kernels.masks(marked, 1, 1, &mut marks);
        let expected: Vec<u32> =
            (0..keys.len() as u32).filter(|i| marked[*i as usize] == 1).collect();
        let mut places = [0; BLOCK + 3];
        let found = kernels.places(&marks[..groups], &mut places);
        let places = &places[..found];
        assert_eq!(places, expected);

        let ranges = [(0, 119), (120, 126), (127, 127), (128, 255)];
        let class_of = |key: u8| ranges.iter().position(|(_, last)| key <= *last).unwrap();
        let classes: [u8; 256] = std::array::from_fn(|key| class_of(key as u8) as u8);
        let (mut members, mut padded) = ([[0; GROUPS]; 4], [0; BLOCK]);
        for (members, (first, last)) in members.iter_mut().zip(ranges) {
            kernels.masks(keys, first, last, members);
        }
        padded[..keys.len()].copy_from_slice(keys);
        let (mut seen, mut numbers) = ([5, 0, 70, 1], vec![0; found]);
        kernels.rank(&members, &mut seen, &padded, &classes, places, &mut numbers);
        let mut totals = [5, 0, 70, 1];
        let mut bits = [const { [0_u64; GROUPS + 4] }; 4];
        let mut next = places.iter().zip(&numbers).peekable();
        for (i, key) in keys.iter().enumerate() {
            let class = class_of(*key);
            assert_eq!(members[class][i / GROUP] >> (i % GROUP) & 1, 1);
            if let Some((_, number)) = next.next_if(|(place, _)| **place == i as u32) {
                assert_eq!(*number, totals[class]);
                bits[class][*number as usize / 64] |= 1 << (number % 64);
            }
            totals[class] += 1;
        }
        assert_eq!(seen, totals);

        let (mut back, mut seen) = ([0; GROUPS], [5, 0, 70, 1]);
        for ((members, bits), seen) in members.iter().zip(&bits).zip(&mut seen) {
            kernels.mark(&members[..groups], bits, seen, &mut back);
        }
        assert_eq!((back, seen), (marks, totals));
    }
}
