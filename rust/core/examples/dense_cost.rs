//! What dense encodes cost, in copies of the tensor: one thread, frames and states used again.
//!
//! `cargo run --release -p gradwire-core --example dense_cost [elements] [rounds]`
//!
//! Each round copies the tensor to other memory and encodes it once with every codec; the figure is
//! the least time of a codec over the least time of the copy, and in brackets the median of the
//! ratios within a round.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gradwire_core::codec::{Codec, State, Workspace};
use gradwire_core::memory::Memory;
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::{Format, Magnitude, Norm, Quantizer, Rounding};
use gradwire_core::rng::Key;
use gradwire_core::simd::Kernels;
use gradwire_core::sparsify::Sparsifier;
use gradwire_core::{Input, Result};

struct Case {
    name: &'static str,
    codec: Codec,
    state: State,
    frame: Vec<u8>,
    times: Vec<Duration>,
}

fn case(name: &'static str, quantizer: Quantizer, residual: bool, numel: usize) -> Result<Case> {
    let feedback = Memory::Residual { decay: 1.0, low_memory: false };
    let memory = if residual { feedback } else { Memory::None };
    let codec = Codec::new(Sparsifier::All, quantizer, memory, IndexCoding::Auto)?;
    let state = codec.init_state(numel)?;
    Ok(Case { name, codec, state, frame: Vec::new(), times: Vec::new() })
}

fn cases(numel: usize) -> Result<Vec<Case>> {
    let sign = |magnitude| Quantizer::SignScale { magnitude };
    let uniform = |bits, norm| Quantizer::Uniform { bits, block: 512, norm, seed: 0 };
    let float8 =
        |format, rounding| Quantizer::Float8 { format, rounding, block: Some(256), seed: 0 };
    Ok(vec![
        case("float32", Quantizer::Float32, false, numel)?,
        case("bfloat16", Quantizer::BFloat16, false, numel)?,
        case("bfloat16, residual", Quantizer::BFloat16, true, numel)?,
        case("float16, residual", Quantizer::Float16 { scaled: false }, true, numel)?,
        case("float16 scaled, residual", Quantizer::Float16 { scaled: true }, true, numel)?,
        case("sign, mean, residual", sign(Magnitude::Mean), true, numel)?,
        case("sign, rms, residual", sign(Magnitude::RootMeanSquare), true, numel)?,
        case(
            "two means of 1024, residual",
            Quantizer::TwoMeans { column: Some(1024) },
            true,
            numel,
        )?,
        case("two means of all, residual", Quantizer::TwoMeans { column: None }, true, numel)?,
        case("ternary", Quantizer::Ternary { clip: Some(2.5), seed: 0 }, false, numel)?,
        case("uniform 4 bits, l2", uniform(4, Norm::L2), false, numel)?,
        case("uniform 4 bits, max", uniform(4, Norm::Max), false, numel)?,
        case("uniform 8 bits, max", uniform(8, Norm::Max), false, numel)?,
        case("uniform 8 bits, max, residual", uniform(8, Norm::Max), true, numel)?,
        case("e4m3", float8(Format::E4M3, Rounding::Nearest), false, numel)?,
        case("e4m3, residual", float8(Format::E4M3, Rounding::Nearest), true, numel)?,
        case("e5m2 by chance", float8(Format::E5M2, Rounding::Stochastic), false, numel)?,
        case("e5m2 by chance, residual", float8(Format::E5M2, Rounding::Stochastic), true, numel)?,
        case("exponent", Quantizer::Exponent { seed: 0 }, false, numel)?,
        case("exponent, residual", Quantizer::Exponent { seed: 0 }, true, numel)?,
        case("codebook 2 bits, residual", Quantizer::Codebook { bits: 2 }, true, numel)?,
    ])
}

/// Sums of four uniform numbers around zero: a bell, near enough.
fn tensor(numel: usize) -> Vec<f32> {
    let key = Key::new(1, 0, 0, 0);
    let unit = |i: usize| {
        (0..4).map(|part| key.unit((i as u32).wrapping_mul(4) + part)).sum::<f32>() - 2.0
    };
    (0..numel).map(unit).collect()
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let numel = arguments.next().unwrap_or(25_000_000);
    let rounds = arguments.next().unwrap_or(9);
    let x = tensor(numel);
    let mut target = vec![0.0_f32; numel];
    let mut workspace = Workspace::with(Kernels::current(), 1);
    let mut cases = cases(numel)?;
    let mut copies = Vec::new();
    for round in 0..=rounds {
        let copy = {
            let begin = Instant::now();
            black_box(&mut target).copy_from_slice(black_box(&x));
            begin.elapsed()
        };
        for case in &mut cases {
            let begin = Instant::now();
            let input = Input::F32(&x);
            case.codec.encode_into(
                input,
                &mut case.state,
                None,
                &mut workspace,
                &mut case.frame,
            )?;
            if round > 0 {
                case.times.push(begin.elapsed());
            }
        }
        if round > 0 {
            copies.push(copy);
        }
    }
    let least = |times: &[Duration]| times.iter().min().map_or(0.0, Duration::as_secs_f64);
    println!("{numel} elements, {rounds} rounds, {:?}", Kernels::current().level);
    println!("copy: {:.2} ms", 1e3 * least(&copies));
    for case in &cases {
        let mut ratios: Vec<f64> = case
            .times
            .iter()
            .zip(&copies)
            .map(|(time, copy)| time.as_secs_f64() / copy.as_secs_f64())
            .collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = least(&case.times) / least(&copies);
        println!("{:<32} {ratio:5.2} ({:.2})", case.name, ratios[ratios.len() / 2]);
    }
    Ok(())
}
