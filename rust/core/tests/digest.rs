//! Whole encodes over random codecs, tensors and limits give what they always gave: at every SIMD
//! level, and with 1, 2 and 3 threads, long ones with one of these.
//!
//! `digest/expected.txt` has a line for each family, the combinations of a sparsifier, a memory and a
//! quantizer: the digest of its short tensors, and that of these and a long one. A change that is
//! not meant to change any byte leaves all lines as they are. A new part adds lines, with
//! `GRADWIRE_WRITE_DIGEST=1`, and changes none.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers outside of #[test] functions, too")]

#[path = "digest/run.rs"]
mod run;
#[path = "digest/tensors.rs"]
mod tensors;

mod drawn;
#[allow(dead_code, reason = "the cases are for another test")]
mod laws;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use drawn::{Family, Numbers};
use gradwire_core::codec::Workspace;
use gradwire_core::simd::Kernels;
use laws::Rng;
use run::{Digest, Run};
use tensors::Pool;

/// Short tensors of a family.
const SHORT: u64 = 6;

/// One family in so many has a long tensor, too.
const LONG_ONE_IN: u64 = 3;

const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/digest/expected.txt");

/// The digests of a family: of its short tensors, and of all.
fn digests(family: &Family, pool: &Pool, workspace: &mut Workspace, long: bool) -> [u64; 2] {
    // By its name: what is drawn must not depend on which families there are.
    let mut rng = Rng(gradwire_core::rng::tensor_id(&family.name()));
    let mut numbers = |n: u64| rng.bits() % n;
    let draw = &mut Numbers(&mut numbers);
    let mut digest = Digest::default();
    for _ in 0..SHORT {
        let numel = match draw.below(8) {
            0 => draw.below(2),
            1..4 => 2 * draw.below(200) + 1,
            4..6 => draw.below(5000),
            6 => 2048 * draw.below(6),
            _ => draw.below(30_000),
        };
        Run::new(family, pool, &mut digest, workspace).steps(numel as usize, 5, draw);
    }
    let short = digest.0;
    if long && draw.once_in(LONG_ONE_IN) {
        let numel = 394_000 + draw.below(60_000);
        Run::new(family, pool, &mut digest, workspace).steps(numel as usize, 3, draw);
    }
    [short, digest.0]
}

/// The lines of all families.
fn lines(threads: usize, long: impl Fn(usize) -> bool + Sync) -> BTreeMap<String, [u64; 2]> {
    let (pool, next, found) = (Pool::new(), AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let families: Vec<_> = Family::all().collect();
    let work = || {
        let mut workspace = Workspace::with(Kernels::current(), threads);
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(family) = families.get(at) else { return };
            let digests = digests(family, &pool, &mut workspace, long(at));
            found.lock().unwrap().insert(family.name(), digests);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    found.into_inner().unwrap()
}

fn expected() -> BTreeMap<String, [u64; 2]> {
    let text = std::fs::read_to_string(EXPECTED).unwrap();
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let digest = |text| u64::from_str_radix(text, 16).unwrap();
        (fields[0].to_owned(), [digest(fields[1]), digest(fields[2])])
    };
    text.lines().map(line).collect()
}

#[test]
fn whole_encodes_give_what_they_always_gave() {
    if std::env::var_os("GRADWIRE_WRITE_DIGEST").is_some() {
        let mut text = String::new();
        for (name, [short, all]) in lines(1, |_| true) {
            writeln!(text, "{name} {short:016x} {all:016x}").unwrap();
        }
        std::fs::write(EXPECTED, text).unwrap();
    }
    // A long tensor is for one number of threads; in an emulator, which is slow, for three of them
    // and one family in so many.
    let emulated = std::env::var_os("GRADWIRE_EMULATED").is_some();
    let (numbers, share) = if emulated { (3..=3, 9) } else { (1..=3, 3) };
    let expected = expected();
    for threads in numbers {
        let found = lines(threads, |at| at % share == threads % share);
        let wrong: Vec<_> = found
            .iter()
            .filter(|(name, found)| {
                let expected = expected.get(*name).copied().unwrap_or_default();
                // Of a family without its long tensor here, both are the digest of the short ones.
                expected[0] != found[0] || (found[1] != found[0] && found[1] != expected[1])
            })
            .map(|(name, _)| name)
            .collect();
        let level = Kernels::current().level().name();
        assert!(wrong.is_empty(), "{level}, {threads} threads: {} differ: {wrong:?}", wrong.len());
        assert!(expected.keys().eq(found.keys()), "a family is missing");
    }
}
