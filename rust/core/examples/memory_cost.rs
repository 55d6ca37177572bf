//! What a steady exact top-k encode costs with each memory, in copies of the tensor: one thread.
//!
//! `cargo run --release -p gradwire-core --example memory_cost [elements] [rounds]`
//!
//! Each round copies the tensor to other memory and encodes it once with every memory. The figures
//! are the least time of an encode over the least time of the copy, and the median of the ratios
//! within a round.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gradwire_core::codec::{Codec, Workspace};
use gradwire_core::memory::{AdamCorrection, LowPass, Memory, MomentumCorrection, Residual};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::Quantizer;
use gradwire_core::rng::Key;
use gradwire_core::simd::Kernels;
use gradwire_core::sparsify::{Amount, Sparsifier, TopK};
use gradwire_core::{Input, Result};

fn memories() -> Vec<(&'static str, Memory)> {
    let plain = MomentumCorrection { momentum: 0.9, nesterov: false, masking: true, clip: None };
    let adam = AdamCorrection { beta2: 0.999, eps: 1e-8, low_memory: false };
    let mut all = vec![
        ("residual", Memory::Residual(Residual::PLAIN)),
        ("low pass", Memory::LowPass(LowPass { beta: 0.1, ..LowPass::PLAIN })),
        ("momentum correction", Memory::MomentumCorrection(plain)),
        ("Adam correction", Memory::AdamCorrection(adam)),
        ("with Nesterov's", {
            Memory::MomentumCorrection(MomentumCorrection { nesterov: true, ..plain })
        }),
        ("with a clipped norm", {
            Memory::MomentumCorrection(MomentumCorrection { clip: Some(1.0), ..plain })
        }),
    ];
    let chosen: Vec<_> = all.iter().map(|&(_, memory)| memory).collect();
    let others = Memory::examples_besides(&chosen).into_iter().filter(|&m| m != Memory::None);
    all.extend(others.map(|memory| (memory.kind(), memory)));
    all
}

/// Values with the tails of a Laplace distribution.
fn tensor(numel: usize) -> Vec<f32> {
    let key = Key::new(0, 0, 0, 0);
    let value = |i: u32| {
        let unit = key.unit(i) - 0.5;
        -libm::logf((1.0 - 2.0 * unit.abs()).max(1e-7)).copysign(unit)
    };
    (0..numel as u32).map(value).collect()
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse().ok());
    let numel = arguments.next().flatten().unwrap_or(25_000_000);
    let rounds = arguments.next().flatten().unwrap_or(15);
    let (x, mut copy) = (tensor(numel), vec![0.0f32; numel]);
    let mut workspace = Workspace::with(Kernels::current(), 1);
    println!("{numel} elements, top-k, ratio 0.001, {rounds} rounds");
    for (name, memory) in memories() {
        let sparsifier = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.001) });
        let codec = Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto)?;
        let (mut state, mut frame) = (codec.init_state(numel)?, Vec::new());
        let (mut copies, mut encodes) = (Vec::new(), Vec::new());
        for round in 0..rounds + 3 {
            let start = Instant::now();
            black_box(&mut copy).copy_from_slice(black_box(&x));
            let copied = start.elapsed();
            let start = Instant::now();
            codec.encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut frame)?;
            let encoded = start.elapsed();
            // The first steps are not steady ones: bounds are tracked from the second on.
            if round >= 3 {
                copies.push(copied);
                encodes.push(encoded);
            }
        }
        let ratio = |a: &Duration, b: &Duration| a.as_secs_f64() / b.as_secs_f64();
        let mut ratios: Vec<f64> =
            encodes.iter().zip(&copies).map(|(encode, copy)| ratio(encode, copy)).collect();
        ratios.sort_by(f64::total_cmp);
        if let (Some(least), Some(copy)) = (encodes.iter().min(), copies.iter().min()) {
            let (best, median) = (ratio(least, copy), ratios[ratios.len() / 2]);
            println!("{name:20} {best:5.2} copies ({median:.2})");
        }
    }
    Ok(())
}
