//! One piece of work, for a profiler to count: `make bench-instructions` runs it under callgrind.
//!
//! Without an argument it lists the works, a line each. With a name it prepares that work, does it a few times, and then once in [`measured`],
//! which is where counting is switched on. One thread; kernels are those of the level in use.

use std::hint::black_box;

use gradwire_core::codec::{Codec, Workspace};
use gradwire_core::fit::Mode;
use gradwire_core::frame::{Frame, Scratch};
use gradwire_core::memory::Memory;
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::Quantizer;
use gradwire_core::simd::above::SLACK;
use gradwire_core::simd::sweep::{Feedback, Gather};
use gradwire_core::simd::{BLOCK, Kernels, log_sum, moments};
use gradwire_core::sparsify::{Amount, Sid, Sparsifier};
use gradwire_core::{Input, Result, pool};

/// Long enough for the work that does not grow with the tensor to vanish.
const NUMEL: usize = 1 << 20;
const WARM_UP: usize = 4;

/// Bounds that 0.1 %, 1 % and 10 % of Laplace magnitudes are above.
const BOUNDS: [(&str, f32); 3] = [("0.001", 6.9), ("0.01", 4.6), ("0.1", 2.3)];

/// A work: what it is spread over, and the thing to do.
type Work = (usize, Box<dyn FnMut() -> Result<()>>);

/// A way to prepare a work.
type Prepare = Box<dyn Fn() -> Result<Work>>;

#[inline(never)]
fn measured(work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    work()
}

/// Laplace magnitudes with random signs, the same in every run (`SplitMix64`).
fn laplace(len: usize, seed: u64) -> Vec<f32> {
    let hash = |i: u64| {
        let mut x = (i ^ seed << 40).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    };
    (0..len as u64)
        .map(|i| {
            let uniform = ((hash(i) >> 40) as f32 + 0.5) / (1 << 24) as f32;
            if hash(i) & 1 == 0 { uniform.ln() } else { -uniform.ln() }
        })
        .collect()
}

/// A kernel over one block in the first-level cache; `run` gets the block and a place to write.
fn kernel(run: impl Fn(&'static Kernels, &[f32], &mut [f32]) + Copy + 'static) -> Prepare {
    Box::new(move || {
        let (x, mut out) = (laplace(BLOCK, 1), vec![0.0; BLOCK + SLACK]);
        let work = move || {
            run(Kernels::current(), black_box(&x), &mut out);
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

fn sweep(bound: f32, wanted: bool) -> Prepare {
    Box::new(move || {
        let (x, residual) = (laplace(BLOCK, 1), laplace(BLOCK, 2));
        let mut sum = vec![0.0; BLOCK];
        let (mut indices, mut values) = (vec![0; BLOCK + SLACK], vec![0.0; BLOCK + SLACK]);
        let mut lanes = moments::Lanes::default();
        let work = move || {
            let residual = Some(&residual[..]);
            let feedback = Feedback { residual, decay: 1.0, sum: &mut sum, streams: false };
            let moments = wanted.then_some((1.0, &mut lanes));
            let (indices, values) = (&mut indices[..], &mut values[..]);
            let gather = Gather { moments, bound, base: 0, indices, values };
            black_box((Kernels::current().sweep)(black_box(&x), Some(feedback), gather));
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

fn above(bound: f32) -> Prepare {
    Box::new(move || {
        let x = laplace(BLOCK, 1);
        let (mut indices, mut values) = (vec![0; BLOCK + SLACK], vec![0.0; BLOCK + SLACK]);
        let work = move || {
            black_box((Kernels::current().above)(
                black_box(&x),
                bound,
                0,
                &mut indices,
                &mut values,
            ));
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

fn refine(bound: f32) -> Prepare {
    Box::new(move || {
        let x = laplace(BLOCK, 1);
        let (mut indices, mut values) = ((0..BLOCK as u32).collect::<Vec<_>>(), x.clone());
        let work = move || {
            values.copy_from_slice(&x);
            black_box((Kernels::current().refine)(&mut indices, &mut values, bound));
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

fn narrow(to_f16: bool) -> Prepare {
    Box::new(move || {
        let (x, mut codes) = (laplace(BLOCK, 1), vec![[0; 2]; BLOCK]);
        let work = move || {
            let kernels = Kernels::current();
            if to_f16 {
                (kernels.narrow_f16)(black_box(&x), 1.0, &mut codes);
            } else {
                (kernels.narrow_bf16)(black_box(&x), &mut codes);
            }
            Ok(())
        };
        Ok((BLOCK, Box::new(work)))
    })
}

/// A step of a codec on a tensor that its state has seen before.
fn encode(sparsifier: Sparsifier, quantizer: Quantizer, memory: Memory) -> Prepare {
    Box::new(move || {
        let codec = Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto)?;
        let mut state = codec.init_state(NUMEL)?;
        let (mut workspace, mut out) = (Workspace::default(), Vec::new());
        let gradients: Vec<_> = (0..2).map(|seed| laplace(NUMEL, seed)).collect();
        let mut turn = 0;
        let work = move || {
            let input = Input::F32(&gradients[turn % 2]);
            turn += 1;
            codec.encode_into(input, &mut state, None, &mut workspace, &mut out).map(|_| ())
        };
        Ok((NUMEL, Box::new(work)))
    })
}

/// Reads a frame of exact top-k and adds it to a tensor.
fn decode_add(ratio: f64) -> Prepare {
    Box::new(move || {
        let top = Sparsifier::TopK { amount: Amount::Ratio(ratio) };
        let codec = Codec::new(top, Quantizer::Float32, Memory::None, IndexCoding::Auto)?;
        let mut state = codec.init_state(NUMEL)?;
        let (mut workspace, mut bytes) = (Workspace::default(), Vec::new());
        let x = laplace(NUMEL, 1);
        codec.encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut bytes)?;
        let (mut out, mut scratch) = (x, Scratch::default());
        let work = move || {
            let frame = Frame::parse(&bytes, None)?;
            frame.decode_add(&mut out, 0.5, &mut scratch)
        };
        Ok((NUMEL, Box::new(work)))
    })
}

fn kernels() -> Vec<(String, Prepare)> {
    let mut all: Vec<(String, Prepare)> = vec![
        ("add".into(), kernel(|k, x, out| (k.add)(&mut out[..BLOCK], x, x, 1.0))),
        ("peak".into(), kernel(|k, x, _| _ = black_box((k.peak)(x)))),
        ("stream".into(), kernel(|k, x, out| (k.stream)(&mut out[..BLOCK], x))),
        (
            "moments".into(),
            kernel(|k, x, _| {
                let mut lanes = moments::Lanes::default();
                (k.moments)(x, 1.0, &mut lanes);
                black_box(lanes);
            }),
        ),
        (
            "log_sum".into(),
            kernel(|k, x, _| {
                let mut lanes = log_sum::Lanes::default();
                (k.log_sum)(x, &mut lanes);
                black_box(lanes);
            }),
        ),
        ("narrow to bfloat16".into(), narrow(false)),
        ("narrow to float16".into(), narrow(true)),
    ];
    for (share, bound) in BOUNDS {
        all.push((format!("above, {share}"), above(bound)));
        all.push((format!("refine, {share}"), refine(bound)));
        all.push((format!("sweep, {share}"), sweep(bound, false)));
        all.push((format!("sweep with moments, {share}"), sweep(bound, true)));
    }
    all
}

fn encodes() -> Vec<(String, Prepare)> {
    let keep = Memory::Residual { decay: 1.0, low_memory: false };
    let in_place = Memory::Residual { decay: 1.0, low_memory: true };
    let mut all: Vec<(String, Prepare)> = Vec::new();
    for ratio in [0.001, 0.01, 0.1] {
        let top = Sparsifier::TopK { amount: Amount::Ratio(ratio) };
        let sid = |mode| Sparsifier::Sid(Sid { mode, ..Sid::new(ratio) });
        for (name, sparsifier, memory) in [
            ("topk", top, keep),
            ("topk, low memory", top, in_place),
            ("sidco", sid(Mode::Adaptive), keep),
            ("sidco tracking", sid(Mode::Tracking), keep),
            ("sidco, 2 stages", sid(Mode::Fixed(2)), keep),
        ] {
            all.push((format!("{name}, {ratio}"), encode(sparsifier, Quantizer::Float32, memory)));
        }
        all.push((format!("decode and add, {ratio}"), decode_add(ratio)));
    }
    for (name, quantizer) in
        [("bf16", Quantizer::BFloat16), ("f16", Quantizer::Float16 { scaled: false })]
    {
        all.push((format!("dense {name}"), encode(Sparsifier::All, quantizer, Memory::None)));
        let name = format!("dense {name} with residual");
        all.push((name, encode(Sparsifier::All, quantizer, keep)));
    }
    all
}

fn main() -> Result<()> {
    pool::set_num_threads(1);
    let all: Vec<_> = kernels().into_iter().chain(encodes()).collect();
    let Some(wanted) = std::env::args().nth(1) else {
        for (name, _) in all {
            println!("{name}");
        }
        return Ok(());
    };
    let Some((_, prepare)) = all.iter().find(|(name, _)| *name == wanted) else {
        eprintln!("no work is called {wanted:?}");
        std::process::exit(2);
    };
    let (elements, mut work) = prepare()?;
    for _ in 0..WARM_UP {
        work()?;
    }
    measured(&mut *work)?;
    println!("{elements} {}", Kernels::current().level.name());
    Ok(())
}
