//! Steady steps on a large tensor, in plain copies: `cargo bench -p gradwire-core --bench steady`.
//!
//! Each round copies the tensor once and then lets every contestant encode once, with a state that
//! has seen the same law before. What one thread does is measured in its processor time, so that
//! others on the machine disturb it little; two threads by the clock on the wall. Printed are
//! medians over the rounds, with the least in brackets. Arguments: words of the names to run, and
//! `elements=N` or `rounds=N`.

use std::time::{Duration, Instant};

use gradwire_core::codec::{Codec, State, Workspace};
use gradwire_core::fit::Mode;
use gradwire_core::memory::Memory;
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::Quantizer;
use gradwire_core::simd::{Kernels, Level, available_levels};
use gradwire_core::sparsify::{Amount, Sid, Sparsifier};
use gradwire_core::{Input, Result};
use rustix::time::{ClockId, clock_gettime};

/// Steps of each state before it is measured: a tracked bound has settled by then.
const WARM_UP: usize = 8;

/// Student's t with three degrees of freedom, the same in every run: R. Bailey, "Polar Generation
/// of Random Variates with the t-Distribution", Math. Comp. 1994.
fn student(len: usize, seed: u64) -> Vec<f32> {
    let uniform = |i: u64| {
        let mut x = (i ^ seed << 40).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x >> 40) as f32 + 0.5) / (1 << 24) as f32
    };
    let radius = |u: f32| (3.0 * (u.powf(-2.0 / 3.0) - 1.0)).sqrt();
    let angle = |v: f32| (v * std::f32::consts::TAU).cos();
    (0..len as u64).map(|i| 1e-3 * radius(uniform(2 * i)) * angle(uniform(2 * i + 1))).collect()
}

/// What is encoded, at a ratio.
fn works(ratio: f64) -> Vec<(&'static str, Sparsifier, Quantizer)> {
    let top_k = Sparsifier::TopK { amount: Amount::Ratio(ratio) };
    let sid = |mode| Sparsifier::Sid(Sid { mode, ..Sid::new(ratio) });
    vec![
        ("top-k", top_k, Quantizer::Float32),
        ("top-k-bf16", top_k, Quantizer::BFloat16),
        ("sid-tracking", sid(Mode::Tracking), Quantizer::Float32),
        ("sid-adaptive", sid(Mode::Adaptive), Quantizer::Float32),
    ]
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
    for ratio in [0.001, 0.01, 0.1] {
        for (work, sparsifier, quantizer) in works(ratio) {
            let memory = Memory::Residual { decay: 1.0, low_memory: false };
            let codec = Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto)?;
            let mut contestants = Vec::new();
            for level in available_levels().into_iter().rev() {
                for threads in [1, 2] {
                    if wanted(&format!("{work} {ratio} {} {threads}", level.name())) {
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
                    "{work:13} {ratio:5} {name:10} {middle:6.2} ({least:.2}) of {:5.2} ms, {bytes} bytes",
                    1e3 * copy
                );
            }
        }
    }
    Ok(())
}
