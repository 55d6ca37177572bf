//! Kernels in the L1 cache at every level, and whole encodes: `cargo bench -p gradwire-core --bench
//! encode`. An encode is a steady step: the state has seen gradients of the same law before.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gradwire_core::Input;
use gradwire_core::codec::{Codec, Workspace};
use gradwire_core::fit::Mode;
use gradwire_core::memory::{Memory, Residual, Storage};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::Quantizer;
use gradwire_core::simd::above::SLACK;
use gradwire_core::simd::sweep::{Addend, Feedback, Gather};
use gradwire_core::simd::{BLOCK, Kernels, available_levels, log_sum, moments};
use gradwire_core::sparsify::{Amount, Sid, Sparsifier, TopK};

#[path = "../tests/tensors/mod.rs"]
mod tensors;
use tensors::laplace;

fn kernels(c: &mut Criterion) {
    let (x, residual) = (laplace(BLOCK, 1), laplace(BLOCK, 2));
    let mut sum = vec![0.0; BLOCK];
    let (mut indices, mut values) = (vec![0; BLOCK + SLACK], vec![0.0; BLOCK + SLACK]);
    let mut group = c.benchmark_group("kernel");
    group.throughput(Throughput::Elements(BLOCK as u64));
    for level in available_levels() {
        let Some(kernels) = Kernels::of(level) else { continue };
        let name = |kernel: &str| BenchmarkId::new(kernel, level.name());
        group.bench_function(name("add"), |b| {
            b.iter(|| kernels.add(&mut sum, black_box(&x), &residual, 1.0));
        });
        group.bench_function(name("peak"), |b| b.iter(|| kernels.peak(black_box(&x))));
        let mut lanes = moments::Lanes::default();
        group.bench_function(name("moments"), |b| {
            b.iter(|| kernels.moments(black_box(&x), 1.0, &mut lanes));
        });
        let mut logs = log_sum::Lanes::default();
        group.bench_function(name("log_sum"), |b| {
            b.iter(|| kernels.log_sum(black_box(&x), &mut logs));
        });
        for (share, bound) in [("0.1 %", 6.9_f32), ("1 %", 4.6), ("10 %", 2.3)] {
            group.bench_function(name(&format!("above {share}")), |b| {
                b.iter(|| kernels.above(black_box(&x), bound, 0, &mut indices, &mut values));
            });
        }
        for wanted in [false, true] {
            group.bench_function(name(if wanted { "sweep moments" } else { "sweep" }), |b| {
                b.iter(|| {
                    let (decay, streams) = (1.0, None);
                    let feedback = Feedback { residual: &residual, decay, sum: &mut sum, streams };
                    let moments = wanted.then_some((1.0, &mut lanes));
                    let (indices, values) = (&mut indices[..], &mut values[..]);
                    let gather = Gather { moments, bound: 6.9, base: 0, indices, values };
                    kernels.sweep(Input::F32(black_box(&x)), Addend::Residual(feedback), gather)
                });
            });
        }
    }
    group.finish();
}

fn sparsifiers(ratio: f64) -> [(&'static str, Sparsifier); 4] {
    let sid = |mode| Sparsifier::Sid(Sid { mode, ..Sid::new(ratio) });
    [
        ("top-k", Sparsifier::TopK(TopK { amount: Amount::Ratio(ratio) })),
        ("sid adaptive", sid(Mode::Adaptive)),
        ("sid tracking", sid(Mode::Tracking)),
        ("sid fixed 2", sid(Mode::Fixed(2))),
    ]
}

fn encodes(c: &mut Criterion) {
    let (plain, rounded) = (Storage::Float32, Storage::BFloat16 { seed: 0 });
    for (len, storage) in [(1000, plain), (1 << 20, plain), (1 << 20, rounded)] {
        let memory = Memory::Residual(Residual { decay: 1.0, storage });
        let kind = if storage == plain { "encode" } else { "encode in bfloat16" };
        let gradients: Vec<_> = (0..4).map(|seed| laplace(len, seed)).collect();
        let mut group = c.benchmark_group(format!("{kind}/{len}"));
        group.throughput(Throughput::Elements(len as u64));
        for (name, sparsifier) in sparsifiers(0.01) {
            let codec = Codec::new(sparsifier, Quantizer::BFloat16, memory, IndexCoding::Auto);
            let Ok(codec) = codec else { continue };
            let Ok(mut state) = codec.init_state(len) else { continue };
            let (mut workspace, mut out) = (Workspace::default(), Vec::new());
            let mut steps = gradients.iter().cycle();
            group.bench_function(name, |b| {
                b.iter(|| {
                    let x = steps.next().map_or(&[][..], |x| x);
                    codec.encode_into(Input::F32(x), &mut state, None, &mut workspace, &mut out)
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, kernels, encodes);
criterion_main!(benches);
