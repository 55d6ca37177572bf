//! Kernels, each over one block in the first-level cache.

use std::hint::black_box;

use gradwire_core::Input;
use gradwire_core::rng::Key;
use gradwire_core::simd::above::SLACK;
use gradwire_core::simd::dot::{Rounded, Rows, Vectors};
use gradwire_core::simd::sweep::{Addend, Feedback, Gather};
use gradwire_core::simd::{BLOCK, Kernels, LANES, float8, log_sum, moments, total};
use half::f16;

use crate::tensors::laplace;
use crate::{Prepare, Works};

/// Bounds that 0.1 %, 1 % and 10 % of Laplace magnitudes are above.
const BOUNDS: [(&str, f32); 3] = [("0.001", 6.9), ("0.01", 4.6), ("0.1", 2.3)];

/// Factors of the entries of a block.
static LIFT: [f32; BLOCK] = [64.0; BLOCK];
static ONES: [f32; BLOCK] = [1.0; BLOCK];

/// A kernel over one block in the first-level cache; `run` gets the block and a place to write.
fn kernel(run: impl Fn(&'static Kernels, &[f32], &mut [f32]) + Copy + 'static) -> Prepare {
    Box::new(move || {
        let (x, mut out) = (laplace(BLOCK, 1), vec![0.0; BLOCK + SLACK]);
        let work = move || {
            run(Kernels::current(), black_box(&x), &mut out);
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

fn sweep(bound: f32, wanted: bool) -> Prepare {
    Box::new(move || {
        let (x, residual) = (laplace(BLOCK, 1), laplace(BLOCK, 2));
        let mut sum = vec![0.0; BLOCK];
        let (mut indices, mut values) = (vec![0; BLOCK + SLACK], vec![0.0; BLOCK + SLACK]);
        let mut lanes = moments::Lanes::default();
        let work = move || {
            let residual = &residual[..];
            let feedback = Feedback { residual, decay: 1.0, sum: &mut sum, streams: None };
            let moments = wanted.then_some((1.0, &mut lanes));
            let (indices, values) = (&mut indices[..], &mut values[..]);
            let gather = Gather { moments, bound, base: 0, indices, values };
            black_box(Kernels::current().sweep(
                Input::F32(black_box(&x)),
                Addend::Residual(feedback),
                gather,
            ));
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

fn above(bound: f32) -> Prepare {
    Box::new(move || {
        let x = laplace(BLOCK, 1);
        let (mut indices, mut values) = (vec![0; BLOCK + SLACK], vec![0.0; BLOCK + SLACK]);
        let work = move || {
            black_box(Kernels::current().above(black_box(&x), bound, 0, &mut indices, &mut values));
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

fn refine(bound: f32) -> Prepare {
    Box::new(move || {
        let x = laplace(BLOCK, 1);
        let (mut indices, mut values) = ((0..BLOCK as u32).collect::<Vec<_>>(), x.clone());
        let work = move || {
            values.copy_from_slice(&x);
            black_box(Kernels::current().refine(&mut indices, &mut values, bound));
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

fn narrow(to_f16: bool) -> Prepare {
    Box::new(move || {
        let (x, mut codes) = (laplace(BLOCK, 1), vec![[0; 2]; BLOCK]);
        let work = move || {
            let kernels = Kernels::current();
            if to_f16 {
                kernels.narrow_f16(black_box(&x), 1.0, &mut codes);
            } else {
                kernels.narrow_bf16(black_box(&x), &mut codes);
            }
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

fn widen() -> Prepare {
    Box::new(move || {
        let x: Vec<_> = laplace(BLOCK, 1).into_iter().map(f16::from_f32).collect();
        let mut out = vec![0.0; BLOCK];
        let work = move || {
            Kernels::current().widen_f16(black_box(&x), &mut out);
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

/// A kernel that makes a byte of every entry.
fn codes(run: impl Fn(&'static Kernels, &[f32], &mut [u8]) + Copy + 'static) -> Prepare {
    Box::new(move || {
        let (x, mut out) = (laplace(BLOCK, 1), vec![0; BLOCK]);
        let work = move || {
            run(Kernels::current(), black_box(&x), &mut out);
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

/// Codes of four bits to fields, or back.
fn fields(packed: bool) -> Prepare {
    const WIDTH: u32 = 4;
    Box::new(move || {
        let mut codes: Vec<u8> = (0..BLOCK).map(|i| i as u8 % (1 << WIDTH)).collect();
        let mut bytes = vec![0; BLOCK * WIDTH as usize / 8];
        let work = move || {
            let kernels = Kernels::current();
            if packed {
                kernels.unpack(black_box(&bytes), WIDTH, &mut codes);
            } else {
                kernels.pack(black_box(&codes), WIDTH, &mut bytes);
            }
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

/// Rows of four bits in blocks of 64, times so many vectors: per code and vector.
fn dot(count: usize, rounded: bool) -> Prepare {
    const ROWS: usize = 4;
    const RUN: usize = 64;
    Box::new(move || {
        let codes: Vec<u8> = (0..ROWS * BLOCK / 2).map(|i| (i * 89) as u8).collect();
        let scales = vec![[0.1, -0.75]; ROWS * BLOCK / RUN];
        let (x, mut lanes) = (laplace(BLOCK * count, 1), vec![[0.0; LANES]; ROWS * count]);
        let bytes: Vec<i8> = (0..BLOCK * count).map(|i| (i * 37 % 255) as u8 as i8).collect();
        let mut sums = vec![0; BLOCK / RUN * count];
        let work = move || {
            let kernels = Kernels::current();
            if rounded {
                let x = Rounded { codes: black_box(&bytes), stride: BLOCK, count };
                for codes in codes.chunks(BLOCK / 2) {
                    kernels.dot_sums(codes, 4, x, RUN, &mut sums);
                    black_box(&sums);
                }
                return Ok(());
            }
            let rows = Rows {
                codes: black_box(&codes),
                stride: BLOCK / 2,
                width: 4,
                scales: &scales,
                scale_stride: BLOCK / RUN,
                block: RUN,
            };
            kernels.dot(rows, Vectors { x: &x, stride: BLOCK, len: BLOCK, count }, &mut lanes);
            Ok(())
        };
        Ok((ROWS * BLOCK * count, Box::new(work)))
    })
}

fn bins(bin: usize) -> Prepare {
    Box::new(move || {
        let (x, sums) = (laplace(BLOCK, 1), laplace(BLOCK, 2));
        let (mut peaks, mut picked) = (vec![0; BLOCK.div_ceil(bin)], vec![0.0; BLOCK]);
        let work = move || {
            Kernels::current().bins(black_box(&x), &sums, 1.0, bin, &mut peaks, &mut picked);
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

pub fn all() -> Works {
    let mut all: Works = vec![
        ("add".into(), kernel(|k, x, out| k.add(&mut out[..BLOCK], x, x, 1.0))),
        ("peak".into(), kernel(|k, x, _| _ = black_box(k.peak(x)))),
        ("stream".into(), kernel(|k, x, out| k.streaming(|k| k.stream(&mut out[..BLOCK], x)))),
        (
            "moments".into(),
            kernel(|k, x, _| {
                let mut lanes = moments::Lanes::default();
                k.moments(x, 1.0, &mut lanes);
                black_box(lanes);
            }),
        ),
        (
            "log_sum".into(),
            kernel(|k, x, _| {
                let mut lanes = log_sum::Lanes::default();
                k.log_sum(x, &mut lanes);
                black_box(lanes);
            }),
        ),
        (
            "total".into(),
            kernel(|k, x, _| {
                let mut lanes = total::Lanes::default();
                k.total(x, &mut lanes);
                black_box(lanes);
            }),
        ),
        ("widen from float16".into(), widen()),
        ("bins of 500".into(), bins(500)),
        ("bins of 50".into(), bins(50)),
        ("narrow to bfloat16".into(), narrow(false)),
        ("narrow to float16".into(), narrow(true)),
        (
            "float8, nearest".into(),
            codes(|k, x, out| k.float8_nearest(x, float8::Format::E4M3, [&LIFT, &ONES], out)),
        ),
        (
            "float8, stochastic".into(),
            codes(|k, x, out| {
                let (format, key) = (float8::Format::E4M3, Key::new(1, 2, 3, 4));
                k.float8_stochastic(x, format, [&LIFT, &ONES], key, 0, out);
            }),
        ),
        (
            "exponent".into(),
            codes(|k, x, out| k.exponent_encode(x, &ONES, Key::new(1, 2, 3, 4), 0, out)),
        ),
        ("sign bits".into(), codes(|k, x, out| k.sign_bits(x, &mut out[..BLOCK / 8]))),
        ("pack 4 bits".into(), fields(false)),
        ("unpack 4 bits".into(), fields(true)),
        ("dot of 4 bits, float32".into(), dot(1, false)),
        ("dot of 4 bits, float32, 8 vectors".into(), dot(8, false)),
        ("dot of 4 bits, int8".into(), dot(1, true)),
        ("dot of 4 bits, int8, 8 vectors".into(), dot(8, true)),
    ];
    for (share, bound) in BOUNDS {
        all.push((format!("above, {share}"), above(bound)));
        all.push((format!("refine, {share}"), refine(bound)));
        all.push((format!("sweep, {share}"), sweep(bound, false)));
        all.push((format!("sweep with moments, {share}"), sweep(bound, true)));
    }
    all
}
