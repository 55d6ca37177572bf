//! Parts of floats: the exponent with the highest bits of the mantissa, and the rest with the sign above it.

use super::stamp::stamp;

/// Where the parts of a float are.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Bits of the mantissa in the rest.
    pub below: u32,
    /// Which bit the sign is.
    pub sign: u32,
}

/// The bits of a float, the lowest byte first.
pub(crate) trait Word: Copy {
    fn get(self) -> u32;
    /// Eight bits from bit `from` on, of which `mask` are taken.
    fn key(self, from: u32, mask: u8) -> u8;
    fn of(bits: u32) -> Self;
    fn join(symbol: u16, rest: u32, cut: Cut) -> Self;
}

impl Word for [u8; 2] {
    #[inline(always)]
    fn get(self) -> u32 {
        u16::from_le_bytes(self).into()
    }
    #[inline(always)]
    fn key(self, from: u32, mask: u8) -> u8 {
        (u16::from_le_bytes(self) >> from) as u8 & mask
    }
    #[inline(always)]
    fn of(bits: u32) -> Self {
        (bits as u16).to_le_bytes()
    }
    #[inline(always)]
    fn join(symbol: u16, rest: u32, Cut { below, sign }: Cut) -> Self {
        let rest = rest as u16;
        (symbol << below | rest & ((1 << below) - 1) | rest >> below << sign).to_le_bytes()
    }
}

impl Word for [u8; 4] {
    #[inline(always)]
    fn get(self) -> u32 {
        u32::from_le_bytes(self)
    }
    #[inline(always)]
    fn key(self, from: u32, mask: u8) -> u8 {
        (u32::from_le_bytes(self) >> from) as u8 & mask
    }
    #[inline(always)]
    fn of(bits: u32) -> Self {
        bits.to_le_bytes()
    }
    #[inline(always)]
    fn join(symbol: u16, rest: u32, Cut { below, sign }: Cut) -> Self {
        let symbol = u32::from(symbol);
        (symbol << below | rest & ((1 << below) - 1) | rest >> below << sign).to_le_bytes()
    }
}

#[inline(always)]
fn symbols<T: Word>(values: &[T], cut: Cut, out: &mut [u16]) {
    let mask = (1 << (cut.sign - cut.below)) - 1;
    for (out, value) in out.iter_mut().zip(values) {
        *out = (value.get() >> cut.below & mask) as u16;
    }
}

/// Eight bits of each rest.
#[inline(always)]
fn rests<T: Word>(values: &[T], cut: Cut, from: u32, out: &mut [u8]) {
    let mask = (1 << cut.below) - 1;
    for (out, value) in out.iter_mut().zip(values) {
        let bits = value.get();
        *out = ((bits & mask | bits >> cut.sign << cut.below) >> from) as u8;
    }
}

/// The floats of parts: `planes` have eight bits of each rest, the lowest first, and are of the length of `out`.
#[inline(always)]
fn join<T: Word>(symbols: &[u16], planes: &[&[u8]], cut: Cut, out: &mut [T]) {
    match *planes {
        [a] => join_planes(symbols, [a], cut, out),
        [a, b] => join_planes(symbols, [a, b], cut, out),
        [a, b, c] => join_planes(symbols, [a, b, c], cut, out),
        _ => join_planes(symbols, [], cut, out),
    }
}

#[inline(always)]
fn join_planes<T: Word, const N: usize>(
    symbols: &[u16],
    planes: [&[u8]; N],
    cut: Cut,
    out: &mut [T],
) {
    let len = out.len();
    let (symbols, planes) = (&symbols[..len], planes.map(|plane| &plane[..len]));
    for i in 0..len {
        let mut rest = 0;
        for (at, plane) in planes.iter().enumerate() {
            rest |= u32::from(plane[i]) << (8 * at);
        }
        out[i] = T::join(symbols[i], rest, cut);
    }
}

macro_rules! stamped {
    ($($width:ident: $float:ty),*) => {
        pub(in crate::simd) mod symbols {
            $(pub(in crate::simd) mod $width {
                use super::super::{Cut, stamp, symbols};
                stamp!(fn(values: &[$float], cut: Cut, out: &mut [u16]) => symbols);
            })*
        }
        pub(in crate::simd) mod rests {
            $(pub(in crate::simd) mod $width {
                use super::super::{Cut, stamp, rests};
                stamp!(fn(values: &[$float], cut: Cut, from: u32, out: &mut [u8]) => rests);
            })*
        }
        pub(in crate::simd) mod join {
            $(pub(in crate::simd) mod $width {
                use super::super::{Cut, join, stamp};
                stamp!(fn(symbols: &[u16], planes: &[&[u8]], cut: Cut, out: &mut [$float]) => join);
            })*
        }
    };
}

stamped!(half: [u8; 2], single: [u8; 4]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn the_parts_of_a_float_are_its_bits_and_become_it() {
        levels_and_lengths(|kernels, x| {
            for below in [4, 7, 20, 23] {
                let cut = Cut { below, sign: 31 };
                let values: Vec<[u8; 4]> = x.iter().map(|x| x.to_le_bytes()).collect();
                let mut symbols = vec![0; x.len()];
                kernels.single_symbols(&values, cut, &mut symbols);
                let mut planes = vec![vec![0; x.len()]; 3];
                for (i, plane) in planes.iter_mut().enumerate() {
                    kernels.single_rests(&values, cut, 8 * i as u32, plane);
                }
                for (i, x) in x.iter().enumerate() {
                    let bits = x.to_bits();
                    assert_eq!(
                        symbols[i],
                        (bits >> below) as u16 & ((1 << (31 - below)) - 1) as u16
                    );
                    let rest = (bits % (1 << below)) | (bits >> 31 << below);
                    let found = [0, 1, 2].map(|byte: usize| planes[byte][i]);
                    assert_eq!(found, rest.to_le_bytes()[..3]);
                }
                if below < 20 {
                    continue;
                }
                let mut out = vec![[0; 4]; x.len()];
                let planes: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
                kernels.single_join(&symbols, &planes, cut, &mut out);
                assert_eq!(out, values);
            }
        });
    }

    #[test]
    fn the_parts_of_halves_are_those_of_floats_with_as_many_bits() {
        levels_and_lengths(|kernels, x| {
            for below in [4, 6, 7] {
                let values: Vec<[u8; 2]> =
                    x.iter().map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
                let cut = Cut { below, sign: 15 };
                let (mut symbols, mut rests) = (vec![0; x.len()], vec![0; x.len()]);
                kernels.half_symbols(&values, cut, &mut symbols);
                kernels.half_rests(&values, cut, 0, &mut rests);
                let wide: Vec<[u8; 4]> = values.iter().map(|v| [0, 0, v[0], v[1]]).collect();
                let cut_wide = Cut { below: below + 16, sign: 31 };
                let (mut expected, mut bits) = (vec![0; x.len()], vec![0; x.len()]);
                kernels.single_symbols(&wide, cut_wide, &mut expected);
                kernels.single_rests(&wide, cut_wide, 16, &mut bits);
                assert_eq!((&symbols, &rests), (&expected, &bits));
                let mut out = vec![[0; 2]; x.len()];
                kernels.half_join(&symbols, &[&rests], cut, &mut out);
                assert_eq!(out, values);
            }
        });
    }
}
