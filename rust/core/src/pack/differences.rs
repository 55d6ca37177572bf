//! Floats beside those of a base, without loss: which ones have changed, and by how many [`steps`].
//!
//! How likely a float is to change is told by the exponent of its base: an optimizer moves all weights by about as
//! much, while the spacing of floats grows with them. So floats are divided into classes by that exponent, and
//! each class has codes of its own. A block of at most [`BLOCK`] floats is
//!
//! | bytes | content |
//! |---|---|
//! | 1 | 0: nothing has changed, and nothing follows; 255: all floats follow, 65536 to a block of [`floats`]; otherwise the number of classes, up to 16 |
//! | 1 each | the least exponent of each class but the first, in ascending order |
//! | | the numbers of the members of each class that have changed |
//! | | the [`steps`] of these, class after class |
//!
//! Members of a class are numbered in the order of the floats: with exponents 3, 9, 4, 9 and classes from 0 and from
//! 5, members 0 and 1 of the second class are floats 1 and 3. Their numbers are
//!
//! | bytes | content |
//! |---|---|
//! | 1 | 0: none, and nothing follows; 255: all, and nothing follows; otherwise one more than the low bits of a Rice code |
//! | | how many they are, and the length of the code in bytes, each by seven bits a byte, the lowest first, and 128 in all bytes but the last |
//! | | their [`rice`] code |
//!
//! What a block makes of its base leads back to it: members are where they were but for the few that left their class.

use std::array::from_fn;

use super::floats::{self, Bits, Format};
use super::huffman::split;
use super::{rice, steps};
use crate::simd::gaps::bits_below;
use crate::simd::members::{CLASSES, GROUP, GROUPS};
use crate::simd::{self, Kernels};
use crate::{Error, Result, allocate};

/// Floats of a block at most.
pub const BLOCK: usize = 1 << 20;

/// The first byte of a block without changes, and of one with all floats.
const UNCHANGED: u8 = 0;
pub(super) const WHOLE: u8 = 255;

/// The first byte of the numbers of no members, and of all.
const NONE: u8 = 0;
const ALL: u8 = 255;

/// Floats whose masks are made together.
const CHUNK: usize = simd::BLOCK;

/// Floats that are looked at to choose the classes of a block.
const LOOKED_AT: usize = 1 << 15;

/// What a class takes besides its codes, in bits.
const CLASS_BITS: u64 = 100;

/// From so many floats for one that is looked at, time is worth bits.
const SLOW: usize = 16;

/// Of so many floats more than one changes in a block of many changes.
const MANY: u64 = 8;

/// The part of all bits that may be lost by fewer classes, which are faster.
const SLACK: u64 = 128;

/// Appends a block of at most [`BLOCK`] floats, as they differ from as many of a base. Where that is shorter and it
/// may be `whole`, it is all floats, which do not lead back.
pub fn write<T: Bits>(
    kernels: &Kernels,
    format: Format,
    values: &[T],
    base: &[T],
    whole: bool,
    out: &mut Vec<u8>,
) {
    if T::bytes(values) == T::bytes(base) {
        out.push(UNCHANGED);
        return;
    }
    let start = out.len();
    write_changes(kernels, format, values, base, out);
    // Floats take more than a sixteenth by themselves, unless they repeat.
    let repeat = || values.iter().all(|value| value.word() == values[0].word());
    if !whole || 16 * (out.len() - start) < size_of_val(values) && !repeat() {
        return;
    }
    let middle = out.len();
    out.push(WHOLE);
    for values in values.chunks(floats::BLOCK) {
        floats::write(kernels, format, values, out);
    }
    if middle - start <= out.len() - middle {
        out.truncate(middle);
    } else {
        out.drain(start..middle);
    }
}

fn write_changes<T: Bits>(
    kernels: &Kernels,
    format: Format,
    values: &[T],
    base: &[T],
    out: &mut Vec<u8>,
) {
    let (classes, dense) = Classes::choose(kernels, format, values, base);
    out.push(classes.first.len() as u8);
    out.extend(&classes.first[1..]);
    let members = find(kernels, format, &classes, &dense, values, base);
    for (changes, all) in members.iter().zip(&dense) {
        if *all { out.push(ALL) } else { write_numbers(&changes.numbers, out) }
    }
    for changes in &members {
        steps::write(kernels, &changes.new, &changes.old, out);
    }
}

/// Members of a class that have changed, or all of them.
#[derive(Debug)]
struct Changes<T> {
    numbers: Vec<u32>,
    old: Vec<T>,
    new: Vec<T>,
}

fn write_numbers(numbers: &[u32], out: &mut Vec<u8>) {
    if numbers.is_empty() {
        return out.push(NONE);
    }
    let (low_bits, len) = rice::best(numbers);
    out.push(1 + low_bits);
    write_number(numbers.len(), out);
    write_number(len, out);
    let at = out.len();
    out.resize(at + len, 0);
    rice::encode(low_bits, numbers, &mut out[at..]);
}

/// Numbers of at most so many members, and what follows them; none if those are all.
fn read_numbers(bytes: &[u8], members: usize) -> Result<(Option<Vec<u32>>, &[u8])> {
    let (head, rest) = split(bytes, 1)?;
    let low_bits = match head[0] {
        NONE => return Ok((Some(Vec::new()), rest)),
        ALL => return Ok((None, rest)),
        head => head - 1,
    };
    let (count, rest) = read_number(rest)?;
    let (len, rest) = read_number(rest)?;
    let (code, rest) = split(rest, len)?;
    let (numel, count) = (members as u64, count as u64);
    super::check_len(super::Coding::Rice { bits: low_bits }, numel, count, len as u64)?;
    let mut reader = rice::Reader::new(low_bits, code, numel, count)?;
    let mut numbers = Vec::new();
    allocate::resize(&mut numbers, count as usize)?;
    reader.read(&mut numbers)?;
    Ok((Some(numbers), rest))
}

fn write_number(mut number: usize, out: &mut Vec<u8>) {
    while number > 127 {
        out.push(number as u8 | 128);
        number >>= 7;
    }
    out.push(number as u8);
}

fn read_number(bytes: &[u8]) -> Result<(usize, &[u8])> {
    let mut number = 0;
    for (i, byte) in bytes.iter().enumerate().take(4) {
        number |= usize::from(byte & 127) << (7 * i);
        if *byte < 128 {
            return Ok((number, &bytes[i + 1..]));
        }
    }
    Err(Error::corrupt("a number does not end"))
}

/// Floats that left their class: where they are, and what they were.
pub type Leavers<T> = Vec<(u32, T)>;

/// Reads a block of as many floats as `out` has, and returns what follows it, and what [`undo`] needs. `out` comes with
/// the base.
///
/// After an error `out` is as it was, unless all floats follow.
pub fn read<'a, T: Bits>(
    kernels: &Kernels,
    format: Format,
    bytes: &'a [u8],
    out: &mut [T],
) -> Result<(&'a [u8], Leavers<T>)> {
    let (head, rest) = split(bytes, 1)?;
    if head[0] == WHOLE {
        let mut bytes = rest;
        for out in out.chunks_mut(floats::BLOCK) {
            bytes = floats::read(kernels, format, bytes, out)?;
        }
        return Ok((bytes, Vec::new()));
    }
    let (members, classes, rest) = read_members(kernels, format, bytes, None, out)?;
    let mut leavers = Vec::new();
    let mut keys = Vec::new();
    for (class, (places, new)) in members.iter().enumerate() {
        let [first, last] = classes.range(class);
        keys.resize(new.len(), 0);
        T::keys(kernels, format, new, &mut keys);
        let leaves = keys.iter().zip(places).filter(|(key, _)| !(first..=last).contains(key));
        leavers.extend(leaves.map(|(_, place)| (*place, out[*place as usize])));
    }
    for (places, new) in members {
        for (place, new) in places.into_iter().zip(new) {
            out[place as usize] = new;
        }
    }
    Ok((rest, leavers))
}

/// Makes the base again of what a block made of it, which [`read`] has read.
pub fn undo<T: Bits>(
    kernels: &Kernels,
    format: Format,
    bytes: &[u8],
    leavers: &[(u32, T)],
    out: &mut [T],
) -> Result<()> {
    let (members, ..) = read_members(kernels, format, bytes, Some(leavers), out)?;
    for (places, old) in members {
        for (place, old) in places.into_iter().zip(old) {
            out[place as usize] = old;
        }
    }
    Ok(())
}

fn put<T: Copy>(floats: &[(u32, T)], out: &mut [T]) {
    for (place, float) in floats {
        out[*place as usize] = *float;
    }
}

/// The positions of members that change, and what they become.
type Members<T> = Vec<(Vec<u32>, Vec<T>)>;

/// Those of each class; or what they were, where floats are found in their classes by what `leavers` were.
fn read_members<'a, T: Bits>(
    kernels: &Kernels,
    format: Format,
    bytes: &'a [u8],
    leavers: Option<&[(u32, T)]>,
    floats: &mut [T],
) -> Result<(Members<T>, Classes, &'a [u8])> {
    let (classes, mut bytes) = Classes::read(bytes)?;
    let mut numbers = Vec::new();
    for _ in &classes.first {
        let (of_class, rest) = read_numbers(bytes, floats.len())?;
        numbers.push(of_class);
        bytes = rest;
    }
    let old = leavers.unwrap_or_default();
    let new: Leavers<T> = old.iter().map(|(place, _)| (*place, floats[*place as usize])).collect();
    put(old, floats);
    let places = locate(kernels, format, &classes, &numbers, floats);
    put(&new, floats);
    let mut members = Vec::new();
    for places in places? {
        let mut moved: Vec<T> = places.iter().map(|place| floats[*place as usize]).collect();
        bytes = steps::read(kernels, bytes, leavers.is_some(), &mut moved)?;
        members.push((places, moved));
    }
    Ok((members, classes, bytes))
}

/// Exponents as classes.
#[derive(Debug, PartialEq)]
struct Classes {
    /// The least exponent of each.
    first: Vec<u8>,
}

impl Classes {
    /// Those that a block begins with, none if nothing has changed; and what follows.
    fn read(bytes: &[u8]) -> Result<(Self, &[u8])> {
        let (head, bytes) = split(bytes, 1)?;
        let number = usize::from(head[0]);
        if number == 0 {
            return Ok((Self { first: Vec::new() }, bytes));
        }
        if number > CLASSES {
            return Err(Error::corrupt(format!("{number} classes, of at most {CLASSES}")));
        }
        let (rest, bytes) = split(bytes, number - 1)?;
        let first = [&[0], rest].concat();
        if !first.is_sorted_by(|a, b| a < b) {
            return Err(Error::corrupt("classes are not in order"));
        }
        Ok((Self { first }, bytes))
    }

    /// The least and the largest exponent of a class.
    fn range(&self, class: usize) -> [u8; 2] {
        [self.first[class], self.first.get(class + 1).map_or(u8::MAX, |next| next - 1)]
    }

    /// Those of all exponents.
    fn of_keys(&self) -> [u8; 256] {
        let class = |key| self.first.partition_point(|first| usize::from(*first) <= key);
        from_fn(|key| class(key).saturating_sub(1) as u8)
    }

    /// The masks of one.
    fn masks(&self, kernels: &Kernels, class: usize, keys: &[u8], members: &mut [u64]) {
        let [first, last] = self.range(class);
        kernels.masks(keys, first, last, members);
    }

    /// Classes that are best for these floats, or nearly; and whether codes of all members of each are shorter.
    fn choose<T: Bits>(
        kernels: &Kernels,
        format: Format,
        values: &[T],
        base: &[T],
    ) -> (Self, Vec<bool>) {
        let every = (values.len() / LOOKED_AT).max(1);
        let mut kinds = vec![Kind::default(); 1 << format.exponent];
        let mut keys = [0; GROUP];
        let (mut codes, mut fields) = ([0; GROUP], [0; GROUP]);
        let groups = values.chunks(GROUP).zip(base.chunks(GROUP));
        for (values, base) in groups.step_by(every) {
            let len = values.len();
            T::keys(kernels, format, base, &mut keys);
            T::gaps(kernels, values, base, &mut codes[..len], &mut fields[..len]);
            for (key, code) in keys[..len].iter().zip(&codes) {
                kinds[usize::from(*key)].sizes[size_of_step(*code)] += 1;
            }
        }
        let class_bits = (CLASS_BITS / every as u64) << FRACTION;
        let mut chain: Vec<Kind> = Vec::new();
        for (key, mut kind) in kinds.into_iter().enumerate() {
            if kind.sizes.iter().all(|count| *count == 0) {
                continue;
            }
            kind.first = key as u8;
            kind.bits = kind.cost();
            chain.push(kind);
        }
        let total: u64 = chain.iter().map(|kind| kind.bits).sum();
        // Fewer classes do not matter to the time of a small block.
        let mut slack = if every < SLOW { 0 } else { total / SLACK };
        while chain.len() > 1 {
            // What is lost if one joins the one before, in parts of a bit.
            let lost = |pair: &[Kind]| {
                let more = pair[0].joined(&pair[1]).bits - (pair[0].bits + pair[1].bits);
                more.saturating_sub(class_bits)
            };
            let (least, at) = chain
                .windows(2)
                .enumerate()
                .map(|(i, pair)| (lost(pair), i))
                .min()
                .unwrap_or_default();
            if chain.len() <= CLASSES && least > slack {
                break;
            }
            slack = slack.saturating_sub(least);
            let next = chain.remove(at + 1);
            chain[at] = chain[at].joined(&next);
        }
        // Where many change, codes of all members are a little shorter than Rice codes.
        let changed: u32 = chain.iter().map(Kind::changed).sum();
        let many = u64::from(changed) * MANY > (values.len() / every) as u64;
        let times = if many { MANY } else { 2 };
        let dense = chain.iter().map(|kind| u64::from(kind.changed()) * times > kind.members());
        let dense = dense.collect();
        let mut first: Vec<u8> = chain.iter().map(|kind| kind.first).collect();
        first[0] = 0;
        (Self { first }, dense)
    }
}

/// Bits of fractions of a bit.
const FRACTION: u32 = 16;

/// Kinds of sizes of steps: those below 8, and those of each number of bits.
const SIZES: usize = 8 + 29;

/// Of a step with this code.
fn size_of_step(code: u16) -> usize {
    usize::from(code).min(7 + bits_below(code) as usize)
}

/// Floats of some exponents, as far as they were looked at.
#[derive(Debug, Clone)]
struct Kind {
    first: u8,
    /// How many have steps of each size.
    sizes: [u32; SIZES],
    /// What the sizes take, in parts of a bit.
    bits: u64,
}

impl Default for Kind {
    fn default() -> Self {
        Self { first: 0, sizes: [0; SIZES], bits: 0 }
    }
}

impl Kind {
    fn cost(&self) -> u64 {
        let (mut count, mut bits) = (0, 0);
        for size in self.sizes.iter().filter(|size| **size > 0) {
            count += size;
            bits += u64::from(*size) * log2(*size);
        }
        (u64::from(count) * log2(count)).saturating_sub(bits)
    }

    fn joined(&self, next: &Self) -> Self {
        let mut both = self.clone();
        for (size, other) in both.sizes.iter_mut().zip(&next.sizes) {
            *size += other;
        }
        both.bits = both.cost().max(self.bits + next.bits);
        both
    }

    fn changed(&self) -> u32 {
        self.sizes[1..].iter().sum()
    }

    fn members(&self) -> u64 {
        u64::from(self.changed() + self.sizes[0])
    }
}

/// The logarithm of a number, in parts of a bit: within 0.003, and the same everywhere.
fn log2(number: u32) -> u64 {
    let exponent = number.ilog2();
    let above = (u64::from(number) << FRACTION >> exponent) - (1 << FRACTION);
    let bend = (above * ((1 << FRACTION) - above)) >> FRACTION;
    (u64::from(exponent) << FRACTION) + above + ((bend * 22_544) >> FRACTION)
}

/// The members of each class that have changed, or all.
fn find<T: Bits>(
    kernels: &Kernels,
    format: Format,
    classes: &Classes,
    dense: &[bool],
    values: &[T],
    base: &[T],
) -> Vec<Changes<T>> {
    let mut found = vec![Vec::new(); dense.len()];
    let (class_of, mut seen) = (classes.of_keys(), vec![0; dense.len()]);
    let (mut keys, mut changed) = ([0; CHUNK], [0; CHUNK]);
    let (mut members, mut marks) = ([[0; GROUPS]; CLASSES], [0; GROUPS]);
    let (mut numbers, mut places) = ([0; CHUNK], [0; CHUNK + 3]);
    let members = &mut members[..dense.len()];
    for (i, (values, base)) in values.chunks(CHUNK).zip(base.chunks(CHUNK)).enumerate() {
        T::keys(kernels, format, base, &mut keys);
        T::changed(kernels, values, base, &mut changed);
        kernels.masks(&changed[..base.len()], 1, 1, &mut marks);
        let marks = &mut marks[..base.len().div_ceil(GROUP)];
        for (class, (members, dense)) in members.iter_mut().zip(dense).enumerate() {
            classes.masks(kernels, class, &keys[..base.len()], members);
            if *dense {
                add(members, marks);
            }
        }
        let many = kernels.places(marks, &mut places);
        let places = &places[..many];
        kernels.rank(members, &mut seen, &keys, &class_of, places, &mut numbers);
        for (place, number) in places.iter().zip(&numbers) {
            let class = class_of[usize::from(keys[*place as usize])];
            found[usize::from(class)].push(((i * CHUNK) as u32 + place, *number));
        }
    }
    let changes = |found: Vec<(u32, u32)>| Changes {
        numbers: found.iter().map(|(_, number)| *number).collect(),
        old: found.iter().map(|(place, _)| base[*place as usize]).collect(),
        new: found.iter().map(|(place, _)| values[*place as usize]).collect(),
    };
    found.into_iter().map(changes).collect()
}

fn add(members: &[u64], marks: &mut [u64]) {
    for (marks, members) in marks.iter_mut().zip(members) {
        *marks |= members;
    }
}

/// Where members with these numbers are, or all.
fn locate<T: Bits>(
    kernels: &Kernels,
    format: Format,
    classes: &Classes,
    numbers: &[Option<Vec<u32>>],
    base: &[T],
) -> Result<Vec<Vec<u32>>> {
    let class_of = classes.of_keys();
    let bits: Vec<_> = numbers.iter().map(|numbers| numbers.as_deref().map(bits_of)).collect();
    let (mut found, mut seen) = (vec![Vec::new(); bits.len()], vec![0; bits.len()]);
    let (mut keys, mut members, mut places) = ([0; CHUNK], [0; GROUPS], [0; CHUNK + 3]);
    for (i, base) in base.chunks(CHUNK).enumerate() {
        T::keys(kernels, format, base, &mut keys);
        let (keys, mut marks) = (&keys[..base.len()], [0; GROUPS]);
        let groups = base.len().div_ceil(GROUP);
        let (members, marks) = (&mut members[..groups], &mut marks[..groups]);
        for (class, (bits, seen)) in bits.iter().zip(&mut seen).enumerate() {
            if bits.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            classes.masks(kernels, class, keys, members);
            match bits {
                Some(bits) => kernels.mark(members, bits, seen, marks),
                None => add(members, marks),
            }
        }
        let many = kernels.places(marks, &mut places);
        for place in &places[..many] {
            let class = class_of[usize::from(keys[*place as usize])];
            found[usize::from(class)].push((i * CHUNK) as u32 + place);
        }
    }
    let last = numbers.iter().map(|numbers| numbers.as_ref().and_then(|numbers| numbers.last()));
    if last.zip(seen).any(|(last, seen)| last.is_some_and(|last| *last >= seen)) {
        return Err(Error::corrupt("a class has fewer members"));
    }
    Ok(found)
}

/// Numbers in ascending order as bits: 1 and 64 are `0b10` and `0b1`.
fn bits_of(numbers: &[u32]) -> Vec<u64> {
    let mut bits = vec![0; numbers.last().map_or(0, |last| *last as usize / 64 + 1)];
    for number in numbers {
        bits[*number as usize / 64] |= 1 << (number % 64);
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::floats::tests::{halves, no_change_does_harm, normal, singles};
    use crate::simd::available_levels;
    use crate::simd::gaps::{order, restore};
    use crate::simd::testing::tensor;

    type Half = [u8; 2];
    type Single = [u8; 4];

    fn written<T: Bits>(format: Format, values: &[T], base: &[T]) -> Vec<u8> {
        let mut out = Vec::new();
        write(Kernels::current(), format, values, base, true, &mut out);
        out
    }

    /// Checks that values come back on every level, and returns the bytes they took.
    fn comes_back<T: Bits + PartialEq + std::fmt::Debug>(
        format: Format,
        values: &[T],
        base: &[T],
    ) -> usize {
        let bytes = written(format, values, base);
        for kernels in available_levels().into_iter().filter_map(Kernels::of) {
            let mut out = vec![7];
            write(kernels, format, values, base, true, &mut out);
            assert!(out[1..] == bytes);
            let mut alone = Vec::new();
            for values in values.chunks(floats::BLOCK) {
                floats::write(kernels, format, values, &mut alone);
            }
            assert!(bytes.len() <= alone.len() + 1, "{} {}", bytes.len(), alone.len());
            out.push(9);
            let mut found = base.to_vec();
            assert_eq!(read(kernels, format, &out[1..], &mut found).unwrap().0, [9]);
            assert!(found == values);
            let mut changes = Vec::new();
            write(kernels, format, values, base, false, &mut changes);
            let mut found = base.to_vec();
            let (rest, leavers) = read(kernels, format, &changes, &mut found).unwrap();
            assert!(rest.is_empty() && found == values);
            undo(kernels, format, &changes, &leavers, &mut found).unwrap();
            assert!(found == base);
        }
        bytes.len()
    }

    /// Floats a few steps up or down.
    fn moved(base: &[Single], steps: u32) -> Vec<Single> {
        let step = |i: usize| (i as u32).wrapping_mul(0x9e37_79b1) % (2 * steps + 1);
        let moved = |(i, base): (usize, &Single)| {
            restore(order(*base).saturating_add(step(i)).saturating_sub(steps))
        };
        base.iter().enumerate().map(moved).collect()
    }

    #[test]
    fn any_bits_come_back_beside_any_others() {
        let all: Vec<Half> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
        for shift in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
            let others: Vec<Half> =
                (0..=u16::MAX).map(|bits| bits.wrapping_add(shift).to_le_bytes()).collect();
            comes_back(Format::BFLOAT16, &others, &all);
            comes_back(Format::FLOAT16, &all, &others);
        }
        let turned: Vec<Half> = all.iter().rev().copied().collect();
        comes_back(Format::BFLOAT16, &turned, &all);
        let odd = [f32::NAN, -f32::NAN, 0.0, -0.0, f32::INFINITY, -f32::INFINITY, f32::MAX, 1e-45];
        for value in odd.map(f32::to_le_bytes) {
            for base in odd.map(f32::to_le_bytes) {
                comes_back(Format::FLOAT32, &[value; 3], &[base; 3]);
                comes_back(Format::FLOAT32, &vec![value; 5000], &vec![base; 5000]);
            }
        }
        let extremes = [u32::MAX, 0, 0x7FFF_FFFF, 0x8000_0000].map(u32::to_le_bytes);
        let turned: Vec<Single> = extremes.iter().rev().copied().collect();
        comes_back(Format::FLOAT32, &extremes, &turned);
    }

    #[test]
    fn any_number_of_floats_comes_back() {
        for len in [0, 1, 2, 31, 2047, 2048, 4095, 4097, 9001, 70_001] {
            let base = singles(&tensor(len, 3));
            comes_back(Format::FLOAT32, &base, &singles(&tensor(len, 4)));
            for steps in [0, 1, 3, 1000] {
                comes_back(Format::FLOAT32, &moved(&base, steps), &base);
            }
        }
    }

    #[test]
    fn what_has_not_changed_takes_nothing_and_what_has_moved_little_takes_that() {
        let len = 70_001;
        let base = singles(&tensor(len, 5));
        assert_eq!(comes_back(Format::FLOAT32, &base, &base), 1);
        // One of ten by one step: 0.57 bits each, of which no code of its own can be.
        let mut rarely = base.clone();
        for (new, base) in rarely.iter_mut().zip(moved(&base, 1)).step_by(7) {
            *new = base;
        }
        let bytes = comes_back(Format::FLOAT32, &rarely, &base);
        assert!(8 * bytes < 6 * len / 10, "{bytes}");
        // From -3 to 3: 2.8 bits each.
        let bytes = comes_back(Format::FLOAT32, &moved(&base, 3), &base);
        assert!(8 * bytes < 29 * len / 10, "{bytes}");
    }

    /// The least bits of which floats change and by how much, given the exponents of their base.
    fn entropy(values: &[Half], base: &[Half]) -> f64 {
        let mut counts = std::collections::BTreeMap::new();
        for (value, base) in values.iter().zip(base) {
            let step = i64::from(order(*value)) - i64::from(order(*base));
            let exponent = u16::from_le_bytes(*base) >> 7 & 0xFF;
            *counts
                .entry(exponent)
                .or_insert_with(std::collections::BTreeMap::new)
                .entry(step)
                .or_insert(0.0) += 1.0;
        }
        let of = |steps: &std::collections::BTreeMap<i64, f64>| {
            let total: f64 = steps.values().sum();
            steps.values().map(|count| count * (total / count).log2()).sum::<f64>()
        };
        counts.values().map(of).sum()
    }

    #[test]
    fn steps_of_an_optimizer_take_little_more_than_their_entropy_by_exponent() {
        let masters: Vec<f32> = normal(BLOCK, 7).iter().map(|x| 0.02 * x).collect();
        let base = halves(&masters);
        for rate in [1e-6, 3e-6, 1e-5] {
            let signs = normal(BLOCK, 8);
            let stepped: Vec<f32> =
                masters.iter().zip(&signs).map(|(x, sign)| x + rate * sign).collect();
            let values = halves(&stepped);
            let bits = 8.0 * written(Format::BFLOAT16, &values, &base).len() as f64;
            let least = entropy(&values, &base);
            assert!(bits < 1.05 * least, "{rate}: {bits} for {least}");
        }
    }

    #[test]
    fn no_change_of_the_bytes_does_any_harm() {
        let kernels = Kernels::current();
        for (len, steps) in [(60, 40), (2100, 40), (2101, 1)] {
            let base = singles(&tensor(len, 5));
            let mut values = moved(&base, steps);
            if steps == 1 {
                values[..1900].copy_from_slice(&base[..1900]);
            }
            let bytes = written(Format::FLOAT32, &values, &base);
            no_change_does_harm(&bytes, |bytes| {
                let mut out = base.clone();
                let read = read(kernels, Format::FLOAT32, bytes, &mut out);
                if bytes.first() != Some(&WHOLE) {
                    if let Ok((_, leavers)) = &read {
                        undo(kernels, Format::FLOAT32, bytes, leavers, &mut out).unwrap();
                    }
                    assert!(out == base);
                }
                read.map(drop)
            });
        }
    }

    #[test]
    fn blocks_that_nobody_writes_are_errors() {
        let base = [0x7FFF_FFFF_u32.to_le_bytes(); 9];
        for (bytes, message) in [
            (&[17_u8][..], "17 classes"),
            (&[3, 9, 9], "not in order"),
            // Member 9 of nine, by a step; and one of a class that has none.
            (&[1, 1, 1, 2, 0, 2, 1, 0, 1, 0, 0], "beyond"),
            (&[2, 1, 1, 1, 1, 1, NONE, 1, 0, 1, 0, 0], "fewer members"),
            // All by a step up, beyond all floats.
            (&[1, ALL, 1, 0, 1, 0, 0, 0], "beyond"),
        ] {
            let mut out = base;
            let error = read(Kernels::current(), Format::FLOAT32, bytes, &mut out).unwrap_err();
            assert!(error.to_string().contains(message), "{bytes:?}: {error}");
            assert_eq!(out, base);
        }
    }
}
