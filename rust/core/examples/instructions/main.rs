//! One piece of work, for a profiler to count: `make bench-instructions` runs it under callgrind.
//!
//! Without an argument it lists the works, a line each. With a name it prepares that work, does
//! it a few times, and then once in [`measured`], which is where counting is switched on. One
//! thread; kernels are those of the level in use.

mod encodes;
mod kernels;

use gradwire_core::simd::Kernels;
use gradwire_core::{Result, pool};

const WARM_UP: usize = 4;

/// A work: what its cost is spread over, and the thing to do.
type Work = (usize, Box<dyn FnMut() -> Result<()>>);

/// A way to prepare a work.
type Prepare = Box<dyn Fn() -> Result<Work>>;

/// Works by name.
type Works = Vec<(String, Prepare)>;

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

fn main() -> Result<()> {
    pool::set_num_threads(1);
    let all: Vec<_> = kernels::all().into_iter().chain(encodes::all()).collect();
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
    println!("{elements} {}", Kernels::current().level().name());
    Ok(())
}
