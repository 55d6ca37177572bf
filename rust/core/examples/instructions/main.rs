//! One piece of work, for a profiler to count: `make bench-instructions` runs it under callgrind.
//!
//! Without an argument it lists the works, a line each, kernels first and then an empty line. With a
//! name it prepares that work, does it a few times, and then once in [`measured`], which is where
//! counting is switched on; with a number too, so many times, for profilers that count whole runs.
//! One thread; kernels are those of the level in use.

mod encodes;
mod kernels;
#[path = "../../tests/tensors/mod.rs"]
mod tensors;

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

fn main() -> Result<()> {
    pool::set_num_threads(1);
    let (kernels, encodes) = (kernels::all(), encodes::all());
    let mut arguments = std::env::args().skip(1);
    let Some(wanted) = arguments.next() else {
        for works in [kernels, encodes] {
            for (name, _) in works {
                println!("{name}");
            }
            println!();
        }
        return Ok(());
    };
    let Some((_, prepare)) = kernels.iter().chain(&encodes).find(|(name, _)| *name == wanted)
    else {
        eprintln!("no work is called {wanted:?}");
        std::process::exit(2);
    };
    let (elements, mut work) = prepare()?;
    for _ in 0..WARM_UP {
        work()?;
    }
    let times = arguments.next().and_then(|times| times.parse().ok()).unwrap_or(1);
    for _ in 0..times {
        measured(&mut *work)?;
    }
    println!("{elements} {}", Kernels::current().level().name());
    Ok(())
}
