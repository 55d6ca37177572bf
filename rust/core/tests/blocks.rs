//! Dense frames of blocks of every size, against a reference that takes one block and one entry at a
//! time, with the scalar kernels: the same bytes, residual and tensor on every level and on any
//! number of threads.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::disallowed_methods, reason = "powers of two are exact, and bounds need not be")]

use gradwire_core::Input;
use gradwire_core::codec::{Codec, Workspace};
use gradwire_core::frame::{Frame, Scratch};
use gradwire_core::memory::{Memory, Residual};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::{Float8, Format, Norm, Quantizer, Rounding, TwoMeans, Uniform};
use gradwire_core::reference::kept as normal;
use gradwire_core::rng::Key;
use gradwire_core::simd::grid::Grid;
use gradwire_core::simd::{Kernels, Level, available_levels, reduce};
use gradwire_core::sparsify::Sparsifier;

const SEED: u64 = 4;
const LANES: usize = 16;

fn quantizers(block: u32) -> Vec<Quantizer> {
    let float8 = |format, rounding| {
        Quantizer::Float8(Float8 { format, rounding, block: Some(block), seed: SEED })
    };
    let uniform = |bits, norm| Quantizer::Uniform(Uniform { bits, block, norm, seed: SEED });
    vec![
        float8(Format::E4M3, Rounding::Nearest),
        float8(Format::E5M2, Rounding::Nearest),
        float8(Format::E4M3, Rounding::Stochastic),
        uniform(8, Norm::Max),
        uniform(3, Norm::L2),
        Quantizer::TwoMeans(TwoMeans { column: Some(block) }),
    ]
}

/// Stretches of entries of very different size: zeros, ties, subnormals, far beyond what float8 and
/// the grid's factors hold without a second factor.
fn tensor(numel: usize, seed: u64) -> Vec<f32> {
    let key = Key::new(seed, 0, 0, 0);
    let entry = |i: u32| {
        let unit = key.unit(2 * i) - 0.5;
        let word = key.bits(2 * i + 1);
        match i / 37 % 13 {
            0 => 0.0,
            1 => unit * 1e-22,
            2 => unit * 1e-40,
            3 => unit * 1e25,
            4 => [0.0, -0.0, 0.25, -0.25][word as usize % 4],
            5 => unit * 1e-37,
            _ => unit * (1 + word % 7) as f32,
        }
    };
    (0..numel as u32).map(entry).collect()
}

/// The sum of what `of` says, in the order that every level keeps to.
fn sum(block: &[f32], of: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    for (i, &x) in block.iter().enumerate() {
        lanes[i % LANES] += of(f64::from(x));
    }
    reduce(&lanes)
}

/// The scales of a block.
fn scales(quantizer: Quantizer, block: &[f32]) -> Vec<f32> {
    let peak = block.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
    match quantizer {
        Quantizer::Float8(Float8 { .. }) if peak == 0.0 => vec![0.0],
        Quantizer::Float8(Float8 { format, .. }) => {
            let (largest, highest) = match format {
                Format::E5M2 => (57344.0, 112),
                Format::E4M3 => (448.0, 119),
            };
            let fits = |e: &i32| f64::from(peak) <= largest * 2.0_f64.powi(*e);
            vec![2.0_f64.powi((-149..highest).find(fits).unwrap_or(highest)) as f32]
        }
        Quantizer::Uniform(Uniform { norm: Norm::Max, .. }) => vec![peak],
        Quantizer::Uniform(Uniform { .. }) => {
            vec![(sum(block, |x| x * x).sqrt() as f32).max(peak).min(f32::MAX)]
        }
        _ => {
            let below = block.iter().filter(|x| **x < 0.0).count();
            let mean = |sum: f64, count: usize| (sum / count.max(1) as f64) as f32;
            let above = sum(block, |x| if x < 0.0 { 0.0 } else { x });
            let under = sum(block, |x| if x < 0.0 { x } else { 0.0 });
            vec![mean(under, below), mean(above, block.len() - below)]
        }
    }
}

/// The code of one entry, and what it stands for.
fn code(quantizer: Quantizer, x: f32, scales: &[f32], key: Key, at: u32) -> (u8, f32) {
    let kernels = Kernels::of(Level::Scalar).unwrap();
    let (mut code, mut value, scale) = ([0], [0.0], scales[0]);
    match quantizer {
        Quantizer::Float8(Float8 { format, rounding, .. }) => {
            // Exact in float64, and rounded as a float32 product is.
            let inverse = if scale > 0.0 { 1.0 / f64::from(scale) } else { 0.0 };
            let lifted = [(f64::from(x) * inverse) as f32];
            if rounding == Rounding::Nearest {
                kernels.float8_nearest(&lifted, format, [&[1.0]; 2], &mut code);
            } else {
                kernels.float8_stochastic(&lifted, format, [&[1.0]; 2], key, at, &mut code);
            }
            kernels.float8_decode(&code, format, &[scale], &mut value);
        }
        Quantizer::Uniform(Uniform { bits, .. }) => {
            let grid = Grid::new(bits);
            let [factor, shift] = grid.factors(scale);
            kernels.to_levels(&[x], grid, [&[factor], &[shift]], key, at, &mut code);
            kernels.from_levels(&code, grid, &[scale], &mut value);
        }
        _ => {
            code = [u8::from(x >= 0.0)];
            value = [scales[usize::from(code[0])]];
        }
    }
    (code[0], value[0])
}

/// The value section without its prologue, and the values that it stands for.
fn reference(quantizer: Quantizer, x: &[f32], block: usize, key: Key) -> (Vec<u8>, Vec<f32>) {
    let bits = quantizer.coding(x.len() as u64, 0.0).code_bits() as usize;
    let (mut bytes, mut codes, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (i, group) in x.chunks(block).enumerate() {
        let scales = scales(quantizer, group);
        bytes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
        for (j, &x) in group.iter().enumerate() {
            let (code, value) = code(quantizer, x, &scales, key, (i * block + j) as u32);
            codes.push(code);
            values.push(value);
        }
    }
    let mut packed = vec![0; (x.len() * bits).div_ceil(8)];
    for (i, code) in codes.iter().enumerate() {
        for bit in 0..bits {
            packed[(i * bits + bit) / 8] |= (code >> bit & 1) << ((i * bits + bit) % 8);
        }
    }
    bytes.extend(packed);
    (bytes, values)
}

/// Encodes two steps on every level, each with one of these numbers of threads, from `shift` on;
/// frames, residual and decoded tensors are the reference's.
fn holds_to_the_reference(
    quantizer: Quantizer,
    block: usize,
    numel: usize,
    widths: &[usize],
    shift: usize,
) {
    let steps = [tensor(numel, 1), tensor(numel, 2)];
    let kept = Memory::Residual(Residual::PLAIN);
    for memory in [Memory::None, kept] {
        let codec = Codec::new(Sparsifier::All, quantizer, memory, IndexCoding::Auto).unwrap();
        let mut residual = vec![0.0_f32; numel];
        let mut expected = Vec::new();
        for (step, x) in steps.iter().enumerate() {
            let sum: Vec<f32> = x.iter().zip(&residual).map(|(x, r)| normal(x + r)).collect();
            let x = if memory == kept { &sum } else { x };
            let key = Key::new(SEED, 0, step as u64, !0);
            let (bytes, values) = reference(quantizer, x, block, key);
            residual = x.iter().zip(&values).map(|(x, sent)| normal(x - sent)).collect();
            expected.push((bytes, values, residual.clone()));
        }
        for (at, level) in available_levels().into_iter().enumerate() {
            let width = widths[(at + shift) % widths.len()];
            let kernels = Kernels::of(level).unwrap();
            let mut workspace = Workspace::with(kernels, width);
            let (mut state, mut frame) = (codec.init_state(numel).unwrap(), Vec::new());
            for (x, (bytes, values, residual)) in steps.iter().zip(&expected) {
                let told = format!("{quantizer:?} {memory:?} of {numel}, {level:?}, {width}");
                let input = Input::F32(x);
                codec.encode_into(input, &mut state, None, &mut workspace, &mut frame).unwrap();
                let parsed = Frame::parse(&frame, None).unwrap().with(kernels);
                let section = parsed.value_section();
                assert!(section.ends_with(bytes), "{told}");
                assert!(section.len() - bytes.len() <= 8, "{told}");
                let mut out = vec![0.0; numel];
                parsed.decode_into(&mut out, &mut Scratch::default()).unwrap();
                assert!(same(&out, values), "{told}");
                let mut total = x.clone();
                parsed.decode_add(&mut total, 0.5, &mut Scratch::default()).unwrap();
                let added: Vec<f32> = x.iter().zip(values).map(|(x, v)| x + v * 0.5).collect();
                assert!(same(&total, &added), "{told}");
                if memory == kept {
                    assert!(same(state.residual().unwrap(), residual), "{told}");
                }
            }
        }
    }
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits()))
}

#[test]
fn blocks_of_every_size_are_coded_as_one_by_one() {
    for block in (1..=300).chain([511, 512, 513, 1000]) {
        for quantizer in quantizers(block) {
            // Two whole steps and some, the last block ragged but for the divisors of this.
            holds_to_the_reference(quantizer, block as usize, 1201, &[1], 0);
        }
    }
}

#[test]
fn threads_change_nothing() {
    // All pairs of a level and a number of threads occur for every block.
    for block in [1, 32, 33, 300, 65_537, 300_000] {
        for (shift, quantizer) in quantizers(block).into_iter().enumerate() {
            holds_to_the_reference(quantizer, block as usize, 400_003, &[1, 2, 3], shift);
        }
    }
}

#[test]
fn large_frames_of_exact_values_are_those_values_wherever_they_begin() {
    // Long enough to be written past the caches; whole vectors begin elsewhere in each.
    let x = tensor((1 << 21) + 77, 1);
    let codec =
        Codec::new(Sparsifier::All, Quantizer::Float32, Memory::None, IndexCoding::Auto).unwrap();
    let mut out = vec![0_u8; codec.max_encoded_len(x.len()) + 80];
    for level in available_levels() {
        for (start, width) in [(0, 1), (1, 2), (4, 1), (8, 3), (64, 2)] {
            let mut workspace = Workspace::with(Kernels::of(level).unwrap(), width);
            let mut state = codec.init_state(x.len()).unwrap();
            let room = &mut out[start..];
            let encoded = codec
                .encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut *room)
                .unwrap();
            let frame = Frame::parse(&room[..encoded.nbytes], None).unwrap();
            let codes = frame.value_section().as_chunks().0.iter();
            let sent: Vec<f32> = codes.map(|code| f32::from_le_bytes(*code)).collect();
            assert!(same(&sent, &x), "{level:?} from {start} on, {width}");
        }
    }
}
