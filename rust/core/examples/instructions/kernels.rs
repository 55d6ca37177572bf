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

/// What kernels read and write, of a block each.
struct Room {
    x: Vec<f32>,
    residual: Vec<f32>,
    out: Vec<f32>,
    indices: Vec<u32>,
    values: Vec<f32>,
    halves: Vec<f16>,
    codes: Vec<[u8; 2]>,
    bytes: Vec<u8>,
    packed: Vec<u8>,
}

impl Room {
    fn new() -> Self {
        let x = laplace(BLOCK, 1);
        Self {
            residual: laplace(BLOCK, 2),
            out: vec![0.0; BLOCK],
            indices: (0..(BLOCK + SLACK) as u32).collect(),
            values: vec![0.0; BLOCK + SLACK],
            halves: x.iter().map(|x| f16::from_f32(*x)).collect(),
            codes: vec![[0; 2]; BLOCK],
            bytes: (0..BLOCK).map(|i| i as u8 % 16).collect(),
            packed: vec![0; BLOCK / 2],
            x,
        }
    }
}

/// A kernel over one block in the first-level cache.
fn kernel(run: impl Fn(&'static Kernels, &mut Room) + Copy + 'static) -> Prepare {
    Box::new(move || {
        let mut room = Room::new();
        let work = move || {
            run(Kernels::current(), black_box(&mut room));
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

fn sweep(bound: f32, wanted: bool) -> Prepare {
    kernel(move |kernels, Room { x, residual, out, indices, values, .. }| {
        let mut lanes = moments::Lanes::default();
        let feedback = Feedback { residual, decay: 1.0, sum: out, streams: None };
        let moments = wanted.then_some((1.0, &mut lanes));
        let gather = Gather { moments, bound, base: 0, indices, values };
        black_box(kernels.sweep(Input::F32(x), Addend::Residual(feedback), gather));
    })
}

fn refine(bound: f32) -> Prepare {
    kernel(move |kernels, Room { x, indices, values, .. }| {
        let (indices, values) = (&mut indices[..BLOCK], &mut values[..BLOCK]);
        values.copy_from_slice(x);
        black_box(kernels.refine(indices, values, bound));
    })
}

fn bins(bin: usize) -> Prepare {
    kernel(move |kernels, Room { x, residual, out, indices, .. }| {
        let peaks = &mut indices[..BLOCK.div_ceil(bin)];
        kernels.bins(x, residual, 1.0, bin, peaks, out);
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

pub fn all() -> Works {
    let e4m3 = float8::Format::E4M3;
    let key = || Key::new(1, 2, 3, 4);
    let mut all: Works = vec![
        ("add".into(), kernel(|k, r| k.add(&mut r.out, &r.x, &r.x, 1.0))),
        ("peak".into(), kernel(|k, r| _ = black_box(k.peak(&r.x)))),
        ("stream".into(), kernel(|k, r| k.streaming(|k| k.stream(&mut r.out, &r.x)))),
        (
            "moments".into(),
            kernel(|k, r| {
                let mut lanes = moments::Lanes::default();
                k.moments(&r.x, 1.0, &mut lanes);
                black_box(lanes);
            }),
        ),
        (
            "log_sum".into(),
            kernel(|k, r| {
                let mut lanes = log_sum::Lanes::default();
                k.log_sum(&r.x, &mut lanes);
                black_box(lanes);
            }),
        ),
        (
            "total".into(),
            kernel(|k, r| {
                let mut lanes = total::Lanes::default();
                k.total(&r.x, &mut lanes);
                black_box(lanes);
            }),
        ),
        ("widen from float16".into(), kernel(|k, r| k.widen_f16(&r.halves, &mut r.out))),
        ("bins of 500".into(), bins(500)),
        ("bins of 50".into(), bins(50)),
        ("narrow to bfloat16".into(), kernel(|k, r| k.narrow_bf16(&r.x, &mut r.codes))),
        ("narrow to float16".into(), kernel(|k, r| k.narrow_f16(&r.x, 1.0, &mut r.codes))),
        (
            "float8, nearest".into(),
            kernel(move |k, r| k.float8_nearest(&r.x, e4m3, [&LIFT, &ONES], &mut r.bytes)),
        ),
        (
            "float8, stochastic".into(),
            kernel(move |k, r| {
                k.float8_stochastic(&r.x, e4m3, [&LIFT, &ONES], key(), 0, &mut r.bytes);
            }),
        ),
        (
            "exponent".into(),
            kernel(move |k, r| k.exponent_encode(&r.x, &ONES, key(), 0, &mut r.bytes)),
        ),
        ("sign bits".into(), kernel(|k, r| k.sign_bits(&r.x, &mut r.bytes[..BLOCK / 8]))),
        ("pack 4 bits".into(), kernel(|k, r| k.pack(&r.bytes, 4, &mut r.packed))),
        ("unpack 4 bits".into(), kernel(|k, r| k.unpack(&r.packed, 4, &mut r.bytes))),
        ("dot of 4 bits, float32".into(), dot(1, false)),
        ("dot of 4 bits, float32, 8 vectors".into(), dot(8, false)),
        ("dot of 4 bits, int8".into(), dot(1, true)),
        ("dot of 4 bits, int8, 8 vectors".into(), dot(8, true)),
    ];
    for (share, bound) in BOUNDS {
        all.push((
            format!("above, {share}"),
            kernel(move |k, r| {
                black_box(k.above(&r.x, bound, 0, &mut r.indices, &mut r.values));
            }),
        ));
        all.push((format!("refine, {share}"), refine(bound)));
        all.push((format!("sweep, {share}"), sweep(bound, false)));
        all.push((format!("sweep with moments, {share}"), sweep(bound, true)));
    }
    all
}
