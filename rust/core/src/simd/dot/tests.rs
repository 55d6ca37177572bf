//! Every level against one entry at a time, for all widths and few and many of everything.

use super::{LONGEST_RUN, Rounded, Rows, Vectors};
use crate::simd::testing::tensor;
use crate::simd::{Kernels, LANES, available_levels};

fn levels() -> impl Iterator<Item = &'static Kernels> {
    available_levels().into_iter().filter_map(Kernels::of)
}

/// Under Miri, which is slow, the first and the last of a list.
fn some<T: Copy>(all: &[T]) -> Vec<T> {
    if cfg!(miri) { vec![all[0], all[all.len() - 1]] } else { all.to_vec() }
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    tensor(len, seed).iter().map(|x| (x.to_bits().wrapping_mul(0x9E37_79B9) >> 24) as u8).collect()
}

/// Steps and bases as frames have them: eleven significant bits.
fn scales(len: usize) -> Vec<[f32; 2]> {
    let half = |x: f32| f32::from_bits(x.to_bits() & !0x1FFF);
    let pair = |i: usize| [half(0.01 + i as f32 * 0.003), half(0.5 - i as f32 * 0.07)];
    (0..len).map(pair).collect()
}

fn code(codes: &[u8], width: usize, i: usize) -> u8 {
    codes[i * width / 8] >> (i * width % 8) & (0xFF >> (8 - width))
}

fn value(rows: Rows<'_>, row: usize, i: usize) -> f32 {
    if rows.width == 32 {
        let at = row * rows.stride + 4 * i;
        return f32::from_le_bytes(rows.codes[at..at + 4].try_into().unwrap());
    }
    let code = code(&rows.codes[row * rows.stride..], rows.width as usize, i);
    let [step, base] = rows.scales[row * rows.scale_stride + i / rows.block];
    base + step * f32::from(code)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn codes_are_decoded_as_one_by_one_on_every_level() {
    for kernels in levels() {
        for width in [2, 4, 8] {
            for (block, skip, len) in
                [(16, 0, 0), (16, 0, 16), (16, 0, 80), (32, 16, 64), (64, 48, 208), (4096, 64, 512)]
            {
                let (codes, scales) =
                    (bytes(len * width / 8, 1), scales((skip + len).div_ceil(block)));
                let rows = Rows {
                    codes: &codes,
                    stride: codes.len(),
                    width: width as u32,
                    scales: &scales,
                    scale_stride: scales.len(),
                    block,
                };
                let mut out = vec![f32::NAN; len];
                kernels.decode_codes(rows, skip, &mut out);
                let expected = (0..len).map(|i| {
                    let [step, base] = scales[(skip + i) / block];
                    base + step * f32::from(code(&codes, width, i))
                });
                assert_eq!(bits(&out), bits(&expected.collect::<Vec<_>>()), "{kernels:?} {width}");
            }
        }
    }
}

/// Numbers of eleven significant bits, down to the smallest: their products with codes are exact, so a level may
/// fuse product and sum.
#[test]
fn a_value_is_rounded_once_on_every_level() {
    let codes: Vec<u8> = (0..=255).collect();
    let units = [0, 20, 126, 149, 227].map(|down| libm::ldexpf(1.0, 100 - down));
    for (i, unit) in (0..2048).zip(units.into_iter().cycle()) {
        let number = |bits: u16| f32::from(bits % 2048) * unit;
        let scales = [[number(i), number(i.wrapping_mul(977)) - number(1024)]];
        let rows = Rows {
            codes: &codes,
            stride: 0,
            width: 8,
            scales: &scales,
            scale_stride: 0,
            block: 256,
        };
        let expected = bits(&(0..256).map(|i| value(rows, 0, i)).collect::<Vec<_>>());
        for kernels in levels() {
            let mut out = [f32::NAN; 256];
            kernels.decode_codes(rows, 0, &mut out);
            assert_eq!(bits(&out), expected, "{kernels:?} {scales:?}");
        }
    }
}

#[test]
fn products_are_those_of_sixteen_sums_on_every_level() {
    for kernels in levels() {
        for width in [2, 4, 8, 32] {
            for (block, len) in
                some(&[(16, 16), (16, 48), (32, 96), (64, 64), (64, 320), (80, 400), (1024, 1024)])
            {
                for (count, vectors) in some(&[
                    (0, 1),
                    (1, 0),
                    (1, 1),
                    (2, 1),
                    (5, 1),
                    (3, 2),
                    (5, 3),
                    (4, 4),
                    (2, 7),
                    (3, 8),
                    (9, 13),
                    (2, 17),
                ]) {
                    holds(kernels, width, (block, len), (count, vectors));
                }
            }
        }
    }
}

/// Adds the products of `count` rows and so many vectors to lanes that are not zero.
fn holds(
    kernels: &Kernels,
    width: u32,
    (block, len): (usize, usize),
    (count, vectors): (usize, usize),
) {
    // There is something between rows and between vectors.
    let (row, apart) = (len * width as usize / 8, len + 16);
    let stride = row + if width == 32 { 64 } else { 6 };
    let (mut codes, scales) = (bytes(stride * count, 3), scales(count * (len / block + 1)));
    if width == 32 {
        let values = tensor(stride / 4 * count, 5);
        codes = values.iter().flat_map(|x| (x * 1e-8).to_le_bytes()).collect();
    }
    let scale_stride = len / block + 1;
    let rows = Rows { codes: &codes, stride, width, scales: &scales, scale_stride, block };
    let plain: Vec<f32> = tensor(apart * vectors, 7).iter().map(|x| x * 1e-8).collect();
    let mut x = vec![0.0; plain.len()];
    for (plain, x) in plain.chunks(apart).zip(x.chunks_mut(apart)) {
        kernels.arrange(&plain[..len], width, &mut x[..len]);
    }
    let start = |pair: usize| std::array::from_fn(|lane| (pair * LANES + lane) as f32);
    let mut lanes: Vec<[f32; LANES]> = (0..count * vectors).map(start).collect();
    kernels.dot(rows, Vectors { x: &x, stride: apart, len, count: vectors }, &mut lanes);
    for (pair, lanes) in lanes.iter().enumerate() {
        let (row, vector) = (pair / vectors, pair % vectors);
        let mut expected: [f32; LANES] = start(pair);
        for i in 0..len {
            expected[i % LANES] += value(rows, row, i) * plain[vector * apart + i];
        }
        let told =
            format!("{kernels:?} {width} {block} {len}: {row}, {vector} of {count}, {vectors}");
        assert_eq!(bits(lanes), bits(&expected), "{told}");
    }
}

#[test]
fn what_is_arranged_ends_with_zeros() {
    for kernels in levels() {
        for (width, len) in [2, 4, 8, 32].into_iter().flat_map(|w| (1..=40).map(move |n| (w, n))) {
            let mut out = vec![f32::NAN; 48];
            kernels.arrange(&vec![1.0; len], width, &mut out);
            let padded: usize = len.next_multiple_of(LANES);
            assert_eq!(out[..padded].iter().sum::<f32>(), len as f32, "{kernels:?} {width} {len}");
            assert!(out[padded..].iter().all(|x| x.is_nan()));
        }
    }
}

#[test]
fn sums_of_runs_are_exact_on_every_level() {
    for kernels in levels() {
        for (width, run) in [2, 4, 8].into_iter().flat_map(|w| [(w, 32), (w, 64)]) {
            for (runs, count) in
                some(&[(1, 1), (0, 3), (3, 2), (4, 1), (5, 3), (8, 4), (9, 5), (128, 1)])
            {
                let entries = runs * run;
                // Among others the largest of all.
                for codes in [
                    bytes(entries * width as usize / 8, 9),
                    vec![0xFF; entries * width as usize / 8],
                ] {
                    let stride = entries + 5;
                    let x: Vec<i8> = (0..stride * count)
                        .map(|i| if i % 3 == 0 { -127 } else { (i as i32 % 250 - 125) as i8 })
                        .collect();
                    let largest = vec![127; x.len()];
                    for x in [x, largest] {
                        let mut sums = vec![7; runs * count];
                        let vectors = Rounded { codes: &x, stride, count };
                        kernels.dot_sums(&codes, width, vectors, run, &mut sums);
                        let expected = (0..count).flat_map(|m| {
                            let (codes, x) = (&codes, &x[m * stride..]);
                            (0..runs).map(move |k| {
                                let products = (k * run..(k + 1) * run).map(|i| {
                                    i32::from(code(codes, width as usize, i)) * i32::from(x[i])
                                });
                                products.sum::<i32>()
                            })
                        });
                        assert!(
                            sums.iter().copied().eq(expected),
                            "{kernels:?} {width} {run} {runs} {count}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn vectors_are_rounded_run_by_run() {
    for kernels in levels() {
        for (block, run, stride, len) in
            [(64, 64, 64, 192), (32, 32, 32, 96), (100, 64, 64, 200), (7, 7, 32, 21), (1, 1, 32, 3)]
        {
            for scale in [1.0, 1e-30, 1e-38, 1e-45, 0.0, 1e30] {
                let x: Vec<f32> =
                    (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) * scale).collect();
                let runs: Vec<&[f32]> =
                    x.chunks(block).flat_map(|block| block.chunks(run)).collect();
                let (mut codes, mut steps, mut offsets) = (
                    vec![99; runs.len() * stride],
                    vec![f32::NAN; runs.len()],
                    vec![f32::NAN; runs.len()],
                );
                assert!(kernels.round_runs(&x, block, run, &mut codes, [&mut steps, &mut offsets]));
                for (k, x) in runs.iter().enumerate() {
                    let (codes, step) = (&codes[k * stride..(k + 1) * stride], f64::from(steps[k]));
                    let peak = x.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
                    assert!(
                        (step * 127.0 - f64::from(peak)).abs() <= f64::from(peak) * 1e-6 + 1e-43
                    );
                    assert!(codes[x.len()..].iter().all(|code| *code == 0), "{kernels:?}");
                    for (x, code) in x.iter().zip(codes) {
                        let error = (f64::from(*x) - step * f64::from(*code)).abs();
                        assert!(
                            error <= f64::from(peak) / 127.0 * 0.500_01 + 1e-43,
                            "{kernels:?} {x} {code}"
                        );
                    }
                    let sum: i32 = codes.iter().map(|code| i32::from(*code)).sum();
                    assert_eq!(offsets[k], steps[k] * sum as f32);
                }
            }
        }
    }
}

#[test]
fn a_vector_that_is_not_finite_is_not_rounded() {
    for kernels in levels() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 63, 64, 99] {
                let mut x = [1.0; 100];
                x[at] = bad;
                let (mut codes, mut steps, mut offsets) =
                    ([0; 2 * LONGEST_RUN], [0.0; 2], [0.0; 2]);
                let scales = [&mut steps[..], &mut offsets[..]];
                assert!(!kernels.round_runs(&x, 100, 64, &mut codes, scales));
            }
        }
    }
}
