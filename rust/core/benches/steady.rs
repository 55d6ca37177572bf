//! Steady steps on a large tensor, in plain copies: `cargo bench -p gradwire-core --bench steady`.
//!
//! Each round copies the tensor once and then lets every contestant encode once, with a state that
//! has seen the same law before. What one thread does is measured in its processor time, so that
//! others on the machine disturb it little; two threads by the clock on the wall. Printed are
//! medians over the rounds, with the least in brackets. Arguments: words that the names to run all
//! have, such as `top-k 0.1 avx512 1` or `bins-of-50 1`, and `elements=N` (a multiple of 5000 for
//! tiles) or `rounds=N`.

use std::time::{Duration, Instant};

use gradwire_core::codec::{Codec, State, Workspace};
use gradwire_core::fit::Mode;
use gradwire_core::memory::{
    AdamCorrection, LowPass, Memory, MomentumCorrection, Residual, Storage,
};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::{Magnitude, Quantizer, SignScale};
use gradwire_core::simd::{Kernels, Level, available_levels};
use gradwire_core::sparsify::{
    Amount, BinMax, ChunkTopK, RandomK, SampledTopK, Sid, Sparsifier, Tile, TopK,
};
use gradwire_core::{Input, Result};
use rustix::time::{ClockId, clock_gettime};

#[path = "../tests/tensors/mod.rs"]
mod tensors;
use tensors::student;

/// Steps of each state before it is measured: a tracked bound has settled by then, and a controller has the
/// stages that training reaches. SIDCo's second one begins at about the 24th.
const WARM_UP: usize = 40;

/// What is encoded: its name, with a ratio if it has one, and its codec.
type Work = (String, Codec);

const RESIDUAL: Memory = Memory::Residual(Residual::PLAIN);

fn work(name: &str, sparsifier: Sparsifier, quantizer: Quantizer, memory: Memory) -> Result<Work> {
    Ok((name.to_owned(), Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto)?))
}

/// What works at a ratio.
fn at_ratio(ratio: f64) -> Result<Vec<Work>> {
    let amount = Amount::Ratio(ratio);
    let sid = |mode| Sparsifier::Sid(Sid { mode, ..Sid::new(ratio) });
    let random = RandomK { amount, block: false, seed: 1, scaled: false };
    let sampled = SampledTopK {
        ratio,
        sample_ratio: 0.01,
        strided: true,
        resample: true,
        upper: 1.3,
        lower: 0.8,
        seed: 1,
    };
    let momentum = Memory::MomentumCorrection(MomentumCorrection {
        momentum: 0.9,
        nesterov: false,
        masking: true,
        clip: None,
    });
    let adam = Memory::AdamCorrection(AdamCorrection {
        beta2: 0.999,
        eps: 1e-8,
        storage: Storage::Float32,
    });
    [
        ("top-k", Sparsifier::TopK(TopK { amount }), Quantizer::Float32, RESIDUAL),
        ("top-k-bf16", Sparsifier::TopK(TopK { amount }), Quantizer::BFloat16, RESIDUAL),
        ("sid-tracking", sid(Mode::Tracking), Quantizer::Float32, RESIDUAL),
        ("sid-adaptive", sid(Mode::Adaptive), Quantizer::Float32, RESIDUAL),
        ("random-k", Sparsifier::RandomK(random), Quantizer::Float32, RESIDUAL),
        ("dgc", Sparsifier::SampledTopK(sampled), Quantizer::Float32, momentum),
        ("adam", Sparsifier::TopK(TopK { amount }), Quantizer::BFloat16, adam),
    ]
    .into_iter()
    .map(|(name, sparsifier, quantizer, memory)| {
        work(&format!("{name} {ratio}"), sparsifier, quantizer, memory)
    })
    .collect()
}

/// What has bins, chunks or tiles instead.
fn in_parts() -> Result<Vec<Work>> {
    let bins = |bin| Sparsifier::BinMax(BinMax { bin, soft: 2.0 });
    let chunks = |chunk, k| Sparsifier::ChunkTopK(ChunkTopK { chunk, k, tile: None });
    let tile = Some(Tile { rows: 64, columns: 64, width: 5000 });
    let tiles = Sparsifier::ChunkTopK(ChunkTopK { chunk: 4096, k: 64, tile });
    let sign = Quantizer::SignScale(SignScale { magnitude: Magnitude::Selector });
    let low_pass = Memory::LowPass(LowPass { beta: 0.1, ..LowPass::PLAIN });
    [
        ("bins-of-50", bins(50), sign, RESIDUAL),
        ("bins-of-500", bins(500), sign, RESIDUAL),
        ("chunks-100-1", chunks(100, 1), Quantizer::Float32, RESIDUAL),
        ("scalecom-100-1", chunks(100, 1), Quantizer::Float32, low_pass),
        ("chunks-4096-64", chunks(4096, 64), Quantizer::Float32, RESIDUAL),
        ("tiles-64x64-64", tiles, Quantizer::Float32, RESIDUAL),
    ]
    .into_iter()
    .map(|(name, sparsifier, quantizer, memory)| work(name, sparsifier, quantizer, memory))
    .collect()
}

/// One way to run one work.
struct Contestant {
    name: String,
    threads: usize,
    codec: Codec,
    state: State,
    workspace: Workspace,
    out: Vec<u8>,
    copies: Vec<f64>,
}

impl Contestant {
    fn new(numel: usize, codec: Codec, level: Level, threads: usize) -> Result<Option<Self>> {
        let Some(kernels) = Kernels::of(level) else { return Ok(None) };
        Ok(Some(Self {
            name: format!("{} {threads}", level.name()),
            threads,
            codec,
            state: codec.init_state(numel)?,
            workspace: Workspace::with(kernels, threads),
            out: Vec::new(),
            copies: Vec::new(),
        }))
    }

    fn step(&mut self, gradient: &[f32]) -> Result<()> {
        let Self { codec, state, workspace, out, .. } = self;
        codec.encode_into(Input::F32(gradient), state, None, workspace, out).map(|_| ())
    }
}

/// Processor time of this thread.
fn processor() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Time on the wall and of the processor.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    let (wall, cpu) = (Instant::now(), processor());
    work()?;
    let cpu = processor().saturating_sub(cpu);
    Ok((wall.elapsed().as_secs_f64(), cpu.as_secs_f64()))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn run(gradients: &[Vec<f32>], rounds: usize, contestants: &mut [Contestant]) -> Result<f64> {
    let mut target = vec![0.0; gradients[0].len()];
    let mut copies = Vec::new();
    for (round, gradient) in (0..WARM_UP + rounds).zip(gradients.iter().cycle()) {
        let copy = timed(|| {
            target.copy_from_slice(std::hint::black_box(gradient));
            Ok(())
        })?;
        for contestant in &mut *contestants {
            let (wall, cpu) = timed(|| contestant.step(gradient))?;
            if round >= WARM_UP {
                let one = contestant.threads == 1;
                contestant.copies.push(if one { cpu / copy.1 } else { wall / copy.0 });
            }
        }
        copies.push(copy.1);
    }
    Ok(median(&mut copies))
}

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let number = |name: &str, default: usize| {
        let value = given.iter().find_map(|a| a.strip_prefix(name)?.parse().ok());
        value.unwrap_or(default)
    };
    let (numel, rounds) = (number("elements=", 25_000_000), number("rounds=", 21));
    let words: Vec<_> = given.iter().filter(|a| !a.contains('=')).collect();
    let wanted = |name: &str| words.iter().all(|word| name.split(' ').any(|part| part == *word));
    let gradients = [student(numel, 1), student(numel, 2)];
    println!("{numel} float32, t(3), {rounds} rounds; copies: median (least)");
    let mut works = Vec::new();
    for ratio in [0.001, 0.01, 0.1] {
        works.extend(at_ratio(ratio)?);
    }
    works.extend(in_parts()?);
    for (work, codec) in works {
        let mut contestants = Vec::new();
        for level in available_levels().into_iter().rev() {
            for threads in [1, 2] {
                if wanted(&format!("{work} {} {threads}", level.name())) {
                    contestants.extend(Contestant::new(numel, codec, level, threads)?);
                }
            }
        }
        if contestants.is_empty() {
            continue;
        }
        let copy = run(&gradients, rounds, &mut contestants)?;
        for contestant in &mut contestants {
            let (name, bytes) = (&contestant.name, contestant.out.len());
            let middle = median(&mut contestant.copies);
            let least = contestant.copies[0];
            println!(
                "{work:18} {name:10} {middle:6.2} ({least:.2}) of {:5.2} ms, {bytes} bytes",
                1e3 * copy
            );
        }
    }
    Ok(())
}
