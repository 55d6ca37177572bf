//! Prints how close SIDCo's thresholds come to the number of entries asked for.
//!
//! ```text
//! cargo run --release -p gradwire-core --example achieved_ratio [TEXT]
//! ```
//!
//! With a text, only for the gradients whose name has it.
//!
//! For every case, law and ratio it encodes 150 steps of a million entries through the real codec
//! and looks at the last 60: entries above the fitted threshold over entries asked for, before any
//! correction, as mean [lowest, highest]; then, where it is not 0, the share of steps in which that
//! was outside the band of 0.8 to 1.25, so that the codec selected the exact number instead, or was
//! not looked at because the last ones had missed.

#[path = "../tests/laws/mod.rs"]
mod laws;

use gradwire_core::codec::{Codec, State, Workspace};
use gradwire_core::fit::{Distribution, Mode};
use gradwire_core::memory::{Memory, Residual};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::Quantizer;
use gradwire_core::sparsify::{Sid, Sparsifier};
use gradwire_core::{Input, Result};
use laws::{Case, Source};

const NUMEL: usize = 1_000_000;
const STEPS: usize = 150;
const LOOKED_AT: usize = 60;
const RATIOS: [f64; 4] = [0.1, 0.01, 0.001, 0.0001];
const BAND: (f64, f64) = (0.8, 1.25);

fn main() -> Result<()> {
    let mut all = Case::stationary();
    all.extend(Case::moving(STEPS));
    all.extend(Case::hard());
    let only = std::env::args().nth(1).unwrap_or_default();
    all.retain(|case| case.name.contains(&only));
    for (title, mode, band) in [
        ("adaptive (the default)", Mode::Adaptive, Some(BAND)),
        ("tracking", Mode::Tracking, Some(BAND)),
        ("as published, uncorrected", Mode::Paper, None),
    ] {
        for distribution in
            [Distribution::GeneralizedPareto, Distribution::Gamma, Distribution::Exponential]
        {
            println!("\n{distribution:?}, {title}\n");
            println!("| gradient | 0.1 | 0.01 | 0.001 | 0.0001 |");
            println!("|---|---|---|---|---|");
            for case in &all {
                let sids = RATIOS.map(|r| Sid { distribution, mode, band, ..Sid::new(r) });
                let cells =
                    sids.into_iter().map(|sid| run(*case, sid)).collect::<Result<Vec<_>>>()?;
                println!("| {} | {} |", case.name, cells.join(" | "));
            }
        }
    }
    Ok(())
}

/// Runs a case and returns a cell of the table.
fn run(case: Case, sid: Sid) -> Result<String> {
    let memory = if case.feedback { Memory::Residual(Residual::PLAIN) } else { Memory::None };
    let codec = Codec::new(Sparsifier::Sid(sid), Quantizer::Float32, memory, IndexCoding::Auto)?;
    let mut state = codec.init_state(NUMEL)?;
    let mut source = Source::new(case, NUMEL);
    let (mut workspace, mut gradient, mut frame) = (Workspace::default(), Vec::new(), Vec::new());
    let mut raw = Vec::new();
    for _ in 0..STEPS {
        source.next_into(&mut gradient);
        let input = Input::F32(&gradient);
        let rests = scalar(&state, "controller.rest") > 0.0;
        codec.encode_into(input, &mut state, None, &mut workspace, &mut frame)?;
        raw.push((!rests).then(|| scalar(&state, "controller.last")));
    }
    Ok(cell(&raw[STEPS - LOOKED_AT..], sid.band.is_some()))
}

/// A number of the state.
fn scalar(state: &State, name: &str) -> f64 {
    state.scalars().iter().find(|(have, _)| have == name).map_or(f64::NAN, |&(_, value)| value)
}

/// `ratios` are entries above the fitted threshold over entries asked for; none where there was no
/// fit.
fn cell(ratios: &[Option<f64>], corrected: bool) -> String {
    let inside = |ratio: &&Option<f64>| ratio.is_some_and(|r| (BAND.0..=BAND.1).contains(&r));
    let outside = ratios.len() - ratios.iter().filter(inside).count();
    let share = if corrected && outside > 0 {
        format!(" {:.0} %", 100.0 * outside as f64 / ratios.len() as f64)
    } else {
        String::new()
    };
    let fits: Vec<f64> = ratios.iter().copied().flatten().collect();
    if fits.is_empty() {
        return format!("no fit{share}");
    }
    let mean = fits.iter().sum::<f64>() / fits.len() as f64;
    let lowest = fits.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = fits.iter().copied().fold(0.0, f64::max);
    format!("{mean:.2} [{lowest:.2}, {highest:.2}]{share}")
}
