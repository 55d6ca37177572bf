//! Index coding and frames, by entry: `cargo bench -p gradwire-core --bench wire`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gradwire_core::frame::{self, Frame, Layout, Scratch};
use gradwire_core::pack::{self, IndexCoding, Pattern};
use gradwire_core::simd::Kernels;
use gradwire_core::sparsify::TopK;
use gradwire_core::{
    Dtype,
    quantize::{Float16, Quantizer},
};

#[path = "../tests/tensors/mod.rs"]
mod tensors;
use tensors::hash;

const NUMEL: u64 = 10_000_000;
const DENSITIES: [f64; 3] = [1e-3, 1e-2, 1e-1];
const QUANTIZERS: [Quantizer; 3] =
    [Quantizer::Float32, Quantizer::BFloat16, Quantizer::Float16(Float16 { scaled: true })];
const CODINGS: [IndexCoding; 3] = [IndexCoding::EliasFano, IndexCoding::Rice, IndexCoding::Bitmap];

/// Independent picks with this probability, the same in every run.
fn support(density: f64) -> Vec<u32> {
    let below = (libm::ldexp(density, 64)) as u64;
    (0..NUMEL).filter(|&i| hash(i, 0) < below).map(|i| i as u32).collect()
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 1021) as f32 * 1e-3 - 0.5).collect()
}

fn codings(c: &mut Criterion) {
    for density in DENSITIES {
        let indices = support(density);
        let count = indices.len() as u64;
        let mut group = c.benchmark_group(format!("pack/{density}"));
        group.throughput(Throughput::Elements(count));
        for allowed in CODINGS {
            let name = format!("{allowed:?}");
            let (coding, len) = pack::choose(allowed, Pattern::Any, &indices, NUMEL);
            group.bench_function(BenchmarkId::new("choose", &name), |b| {
                b.iter(|| pack::choose(allowed, Pattern::Any, black_box(&indices), NUMEL));
            });
            let mut bytes = vec![0; len];
            group.bench_function(BenchmarkId::new("encode", &name), |b| {
                b.iter(|| pack::encode_into(coding, black_box(&indices), NUMEL, &mut bytes));
            });
            let mut out = Vec::new();
            group.bench_function(BenchmarkId::new("decode", &name), |b| {
                b.iter(|| {
                    pack::decode_into(
                        Kernels::current(),
                        coding,
                        black_box(&bytes),
                        NUMEL,
                        count,
                        &mut out,
                    )
                });
            });
        }
        group.finish();
    }
}

fn frames(c: &mut Criterion) {
    let mut target = vec![0.0; NUMEL as usize];
    let mut scratch = Scratch::default();
    for density in [1e-3, 1e-2, 1e-1, 1.0] {
        let indices = support(density);
        let indices = (density < 1.0).then_some(indices);
        let values = values(indices.as_ref().map_or(NUMEL as usize, Vec::len));
        let mut group = c.benchmark_group(format!("frame/{density}"));
        group.throughput(Throughput::Elements(values.len() as u64));
        for quantizer in QUANTIZERS {
            let layout = Layout {
                dtype: Dtype::F32,
                sparsifier: TopK::ID,
                quantizer,
                indices: IndexCoding::Auto,
                pattern: Pattern::Any,
            };
            let name = format!("{quantizer:?}");
            let mut bytes = Vec::new();
            group.bench_function(BenchmarkId::new("write", &name), |b| {
                b.iter(|| {
                    let indices = black_box(indices.as_deref());
                    frame::write_into(&layout, NUMEL, indices, &values, &mut bytes)
                });
            });
            group.bench_function(BenchmarkId::new("parse", &name), |b| {
                b.iter(|| Frame::parse(black_box(&bytes), None).map(|f| *f.header()));
            });
            group.bench_function(BenchmarkId::new("decode_add", &name), |b| {
                b.iter(|| Frame::parse(&bytes, None)?.decode_add(&mut target, 0.5, &mut scratch));
            });
        }
        group.finish();
    }
}

/// Ten entries of a thousand: what a frame costs before its size matters.
fn small(c: &mut Criterion) {
    let indices: Vec<u32> = (0..10).map(|i| i * 97 + 5).collect();
    let values = values(10);
    let layout = Layout {
        dtype: Dtype::F32,
        sparsifier: TopK::ID,
        quantizer: Quantizer::Float32,
        indices: IndexCoding::Auto,
        pattern: Pattern::Any,
    };
    let (mut bytes, mut scratch, mut target) = (Vec::new(), Scratch::default(), vec![0.0; 1000]);
    let mut group = c.benchmark_group("frame/small");
    group.throughput(Throughput::Elements(10));
    group.bench_function("write", |b| {
        b.iter(|| frame::write_into(&layout, 1000, black_box(Some(&indices)), &values, &mut bytes));
    });
    group.bench_function("decode_add", |b| {
        b.iter(|| Frame::parse(&bytes, None)?.decode_add(&mut target, 0.5, &mut scratch));
    });
    group.finish();
}

criterion_group!(benches, codings, frames, small);
criterion_main!(benches);
