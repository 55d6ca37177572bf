//! What a steady exact top-k encode costs with each memory, in copies of the tensor: one thread.
//!
//! `cargo run --release -p gradwire-core --example memory_cost [elements] [rounds]`
//!
//! Each round copies the tensor to other memory and encodes it once with every memory. The figures
//! are the least time of an encode over the least time of the copy, and the median of the ratios
//! within a round. Then the same codecs, which have seen no gradient but zeros for 2000 steps in all
//! but one of 64 entries, as rows of a table that nobody looks up: the least time of an encode over that
//! of a new state.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gradwire_core::codec::{Codec, State, Workspace};
use gradwire_core::memory::{
    AdamCorrection, LowPass, Memory, MomentumCorrection, Residual, Storage,
};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::Quantizer;
use gradwire_core::rng::Key;
use gradwire_core::simd::Kernels;
use gradwire_core::sparsify::{Amount, Sparsifier, TopK};
use gradwire_core::{Input, Result};

fn memories() -> Vec<(&'static str, Memory)> {
    let plain = MomentumCorrection { momentum: 0.9, nesterov: false, masking: true, clip: None };
    let adam = AdamCorrection { beta2: 0.999, eps: 1e-8, storage: Storage::Float32 };
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

/// The least of a few encodes of a state.
fn least(codec: &Codec, state: &mut State, x: &[f32], workspace: &mut Workspace) -> Result<f64> {
    let (mut frame, mut least) = (Vec::new(), f64::INFINITY);
    for _ in 0..9 {
        let start = Instant::now();
        codec.encode_into(Input::F32(x), state, None, workspace, &mut frame)?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// What an encode of a state takes that decayed, in those of a new one.
fn decayed(memory: Memory, numel: usize, workspace: &mut Workspace) -> Result<f64> {
    let sparsifier = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.001) });
    let codec = Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto)?;
    let mut seldom = tensor(numel);
    let (mut old, mut new) = (codec.init_state(numel)?, codec.init_state(numel)?);
    let mut frame = Vec::new();
    codec.encode_into(Input::F32(&seldom), &mut old, None, workspace, &mut frame)?;
    seldom.iter_mut().enumerate().filter(|(i, _)| i % 64 != 0).for_each(|(_, x)| *x = 0.0);
    for _ in 0..2000 {
        codec.encode_into(Input::F32(&seldom), &mut old, None, workspace, &mut frame)?;
    }
    let fresh = least(&codec, &mut new, &seldom, workspace)?;
    Ok(least(&codec, &mut old, &seldom, workspace)? / fresh)
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
    let numel = numel.min(1_000_000);
    println!(
        "{numel} elements, after 2000 steps without a gradient for most, in encodes of a new state"
    );
    let fading = Memory::Residual(Residual { decay: 0.9, ..Residual::PLAIN });
    let adam = AdamCorrection { beta2: 0.95, eps: 1e-8, storage: Storage::Float32 };
    let decaying =
        [("residual of 0.9", fading), ("Adam, beta2 of 0.95", Memory::AdamCorrection(adam))];
    for (name, memory) in memories().into_iter().chain(decaying) {
        println!("{name:20} {:5.2}", decayed(memory, numel, &mut workspace)?);
    }
    Ok(())
}
