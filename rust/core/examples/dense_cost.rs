//! What dense encodes and decodes cost, in copies of the tensor: one thread, frames and states used
//! again.
//!
//! `cargo run --release -p gradwire-core --example dense_cost -- [elements] [rounds] [words]`
//!
//! Words choose the cases that have one of them in their names. Each round copies the tensor to other
//! memory, encodes it once with every codec and adds every frame to a tensor once, all in processor
//! time. The figures are medians over the rounds of the ratio to the copy of the round, in brackets
//! the least time over the least time of the copy.

use std::hint::black_box;
use std::time::Duration;

use gradwire_core::codec::{Codec, State, Workspace};
use gradwire_core::frame::{Frame, Scratch};
use gradwire_core::memory::{Memory, Residual};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::{
    Codebook, Exponent, Float8, Float16, Format, Magnitude, Norm, Quantizer, Rounding, SignScale,
    Ternary, TwoMeans, Uniform,
};
use gradwire_core::rng::Key;
use gradwire_core::simd::Kernels;
use gradwire_core::sparsify::Sparsifier;
use gradwire_core::{Input, Result};
use rustix::time::{ClockId, clock_gettime};

struct Case {
    name: &'static str,
    codec: Codec,
    state: State,
    frame: Vec<u8>,
    encodes: Vec<Duration>,
    decodes: Vec<Duration>,
}

fn case(name: &'static str, quantizer: Quantizer, residual: bool, numel: usize) -> Result<Case> {
    let feedback = Memory::Residual(Residual::PLAIN);
    let memory = if residual { feedback } else { Memory::None };
    let codec = Codec::new(Sparsifier::All, quantizer, memory, IndexCoding::Auto)?;
    let state = codec.init_state(numel)?;
    Ok(Case { name, codec, state, frame: Vec::new(), encodes: Vec::new(), decodes: Vec::new() })
}

fn cases(numel: usize) -> Result<Vec<Case>> {
    let sign = |magnitude| Quantizer::SignScale(SignScale { magnitude });
    let uniform = |bits, norm| Quantizer::Uniform(Uniform { bits, block: 512, norm, seed: 0 });
    let uniform_of = |block, norm| Quantizer::Uniform(Uniform { bits: 4, block, norm, seed: 0 });
    let float8 = |format, rounding| {
        Quantizer::Float8(Float8 { format, rounding, block: Some(256), seed: 0 })
    };
    let float8_of = |block| {
        Quantizer::Float8(Float8 {
            format: Format::E4M3,
            rounding: Rounding::Nearest,
            block: Some(block),
            seed: 0,
        })
    };
    let columns = |column| Quantizer::TwoMeans(TwoMeans { column: Some(column) });
    let mut all = vec![
        case("float32", Quantizer::Float32, false, numel)?,
        case("bfloat16", Quantizer::BFloat16, false, numel)?,
        case("bfloat16, residual", Quantizer::BFloat16, true, numel)?,
        case("float16, residual", Quantizer::Float16(Float16 { scaled: false }), true, numel)?,
        case(
            "float16 scaled, residual",
            Quantizer::Float16(Float16 { scaled: true }),
            true,
            numel,
        )?,
        case("sign, mean, residual", sign(Magnitude::Mean), true, numel)?,
        case("sign, rms, residual", sign(Magnitude::RootMeanSquare), true, numel)?,
        case(
            "two means of 1024, residual",
            Quantizer::TwoMeans(TwoMeans { column: Some(1024) }),
            true,
            numel,
        )?,
        case(
            "two means of all, residual",
            Quantizer::TwoMeans(TwoMeans { column: None }),
            true,
            numel,
        )?,
        case("ternary", Quantizer::Ternary(Ternary { clip: Some(2.5), seed: 0 }), false, numel)?,
        case("uniform 4 bits, l2", uniform(4, Norm::L2), false, numel)?,
        case("uniform 4 bits, max", uniform(4, Norm::Max), false, numel)?,
        case("uniform 8 bits, max", uniform(8, Norm::Max), false, numel)?,
        case("uniform 8 bits, max, residual", uniform(8, Norm::Max), true, numel)?,
        case("e4m3", float8(Format::E4M3, Rounding::Nearest), false, numel)?,
        case("e4m3, residual", float8(Format::E4M3, Rounding::Nearest), true, numel)?,
        case("e5m2 stochastic", float8(Format::E5M2, Rounding::Stochastic), false, numel)?,
        case("e5m2 stochastic, residual", float8(Format::E5M2, Rounding::Stochastic), true, numel)?,
        case("exponent", Quantizer::Exponent(Exponent { seed: 0 }), false, numel)?,
        case("exponent, residual", Quantizer::Exponent(Exponent { seed: 0 }), true, numel)?,
        case("e4m3, blocks of 32", float8_of(32), false, numel)?,
        case("e4m3, blocks of 32, residual", float8_of(32), true, numel)?,
        case("e4m3, blocks of 64", float8_of(64), false, numel)?,
        case("e4m3, blocks of 128", float8_of(128), false, numel)?,
        case("uniform 4 bits, max, blocks of 32", uniform_of(32, Norm::Max), false, numel)?,
        case("uniform 4 bits, l2, blocks of 32", uniform_of(32, Norm::L2), false, numel)?,
        case("two means of 32, residual", columns(32), true, numel)?,
        case("two means of 128, residual", columns(128), true, numel)?,
        case("codebook 2 bits, residual", Quantizer::Codebook(Codebook { bits: 2 }), true, numel)?,
    ];
    let chosen: Vec<_> = all.iter().map(|case| case.codec.quantizer()).collect();
    for quantizer in Quantizer::examples_besides(&chosen) {
        all.push(case(quantizer.kind(), quantizer, true, numel)?);
    }
    Ok(all)
}

/// Sums of four uniform numbers around zero: a bell, near enough.
fn tensor(numel: usize) -> Vec<f32> {
    let key = Key::new(1, 0, 0, 0);
    let unit = |i: usize| {
        (0..4).map(|part| key.unit((i as u32).wrapping_mul(4) + part)).sum::<f32>() - 2.0
    };
    (0..numel).map(unit).collect()
}

/// Processor time of this thread.
fn processor() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let begin = processor();
    work()?;
    Ok(processor().saturating_sub(begin))
}

/// The median of ratios within a round, and the ratio of the least times.
fn copies(times: &[Duration], copies: &[Duration]) -> (f64, f64) {
    let least = |times: &[Duration]| times.iter().min().map_or(0.0, Duration::as_secs_f64);
    let pairs = times.iter().zip(copies);
    let mut ratios: Vec<f64> = pairs.map(|(a, b)| a.as_secs_f64() / b.as_secs_f64()).collect();
    ratios.sort_by(f64::total_cmp);
    (ratios[ratios.len() / 2], least(times) / least(copies))
}

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let mut numbers = given.iter().filter_map(|word| word.parse::<usize>().ok());
    let (numel, rounds) = (numbers.next().unwrap_or(25_000_000), numbers.next().unwrap_or(9));
    let words: Vec<_> = given.iter().filter(|word| word.parse::<usize>().is_err()).collect();
    let x = tensor(numel);
    let (mut target, mut sum) = (vec![0.0_f32; numel], vec![0.0_f32; numel]);
    let (mut workspace, mut scratch) = (Workspace::with(Kernels::current(), 1), Scratch::default());
    let mut cases = cases(numel)?;
    cases.retain(|case| words.is_empty() || words.iter().any(|word| case.name.contains(*word)));
    let mut plain = Vec::new();
    for round in 0..=rounds {
        let copy = timed(|| {
            black_box(&mut target).copy_from_slice(black_box(&x));
            Ok(())
        })?;
        for Case { codec, state, frame, encodes, decodes, .. } in &mut cases {
            let encode = timed(|| {
                let input = Input::F32(&x);
                codec.encode_into(input, state, None, &mut workspace, &mut *frame).map(|_| ())
            })?;
            let decode =
                timed(|| Frame::parse(frame, None)?.decode_add(&mut sum, 0.5, &mut scratch))?;
            if round > 0 {
                encodes.push(encode);
                decodes.push(decode);
            }
        }
        if round > 0 {
            plain.push(copy);
        }
    }
    let least = plain.iter().min().map_or(0.0, Duration::as_secs_f64);
    println!("{numel} elements, {rounds} rounds, {:?}", Kernels::current().level());
    println!("copy: {:.2} ms", 1e3 * least);
    println!("{:<36} {:>13} {:>18}", "", "encode", "decode and add");
    for case in &cases {
        let (encode, decode) = (copies(&case.encodes, &plain), copies(&case.decodes, &plain));
        let name = case.name;
        println!(
            "{name:<36} {:6.2} ({:.2}) {:11.2} ({:.2})",
            encode.0, encode.1, decode.0, decode.1
        );
    }
    Ok(())
}
