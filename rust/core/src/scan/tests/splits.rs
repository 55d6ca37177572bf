//! Every reader over every memory, on any number of threads: what is found and what is written does not
//! depend on how many there are.

use half::{bf16, f16};

use super::*;
use crate::rng::Key;
use crate::simd::{adam, momentum};

const RULE: momentum::Rule = momentum::Rule { momentum: 0.9, nesterov: true, scale: 0.75 };
const STEP: adam::Rule =
    adam::Rule { keep: 0.9, take: 0.1, correction: 1.5, eps: 1e-8, least: 0.47, rate: 0.5 };
const FILTER: Filter = Filter { beta: 0.3 };

/// What there is to read, of any kind of memory.
struct Data {
    gradient: Vec<f32>,
    narrow: Vec<f16>,
    residual: Vec<f32>,
    momentum: Vec<f32>,
    second: Vec<f32>,
    /// Residual and second moment.
    brain: [Vec<bf16>; 2],
}

impl Data {
    fn new(len: usize) -> Self {
        let bounded = |seed| tensor(len, seed).into_iter().map(|v| v.clamp(-2.0, 2.0));
        let gradient: Vec<f32> = bounded(21).collect();
        let narrow = gradient.iter().map(|&v| f16::from_f32(v)).collect();
        let (residual, momentum): (Vec<f32>, _) = (bounded(22).collect(), bounded(23).collect());
        let second: Vec<f32> = bounded(24).map(f32::abs).collect();
        let brain = [&residual, &second]
            .map(|values| values.iter().map(|&value| bf16::from_f32(value)).collect());
        Self { gradient, narrow, residual, momentum, second, brain }
    }
}

/// A memory that is read, and what is written of it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    None,
    Narrow,
    Residual(Written),
    Filter(Written),
    Momentum(Written),
    Adam(Written),
    Rounded(Written),
    RoundedAdam(Written),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Written {
    Not,
    Cached,
    Streamed,
}

fn kinds() -> Vec<Kind> {
    let mut all = vec![Kind::None, Kind::Narrow];
    for written in [Written::Not, Written::Streamed] {
        all.push(Kind::Residual(written));
        all.push(Kind::Momentum(written));
        all.push(Kind::Adam(written));
        all.push(Kind::Rounded(written));
        all.push(Kind::RoundedAdam(written));
    }
    all.extend([Kind::Filter(Written::Cached), Kind::Filter(Written::Streamed)]);
    all
}

/// All that a read leaves behind.
#[derive(Debug, PartialEq)]
struct Outcome {
    peak: u32,
    moments: Moments,
    complete: bool,
    indices: Vec<u32>,
    values: Vec<u32>,
    sums: Vec<u32>,
    beside: Vec<u32>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn read(data: &Data, kind: Kind, scanner: &mut Scanner, request: &Request) -> Outcome {
    let len = data.gradient.len();
    // What is streamed begins on a line, as the buffers of a memory do.
    let mut written = [0; 2].map(|_| crate::buffer::Buffer::zeros(len).unwrap());
    let [sums, beside] = &mut written;
    let (sums, beside) = (sums.as_mut_slice(), beside.as_mut_slice());
    let gradient = match kind {
        Kind::Narrow => Field(Input::F16(&data.narrow)),
        _ => Field(Input::F32(&data.gradient)),
    };
    let residual = Past::Residual { residual: &data.residual, decay: 0.5 };
    let (memory, next) = match kind {
        Kind::None | Kind::Narrow => (Past::None, Next::None),
        Kind::Residual(Written::Not) | Kind::Filter(Written::Not) => (residual, Next::None),
        Kind::Residual(written) => {
            let streams = written == Written::Streamed;
            (residual, Next::Sums { sums, beside: &mut [], streams })
        }
        Kind::Filter(written) => {
            let streams = written == Written::Streamed;
            (residual, Next::Filtered { memory: sums, filter: FILTER, streams })
        }
        Kind::Rounded(written) | Kind::RoundedAdam(written) => {
            let [residual, second] = &data.brain;
            let has_moment = kind == Kind::RoundedAdam(written);
            let memory = if has_moment {
                Past::RoundedAdam { second, residual, rule: STEP }
            } else {
                Past::Rounded { residual, decay: 0.5 }
            };
            let [sums, beside] = [sums, beside].map(|next| {
                let halves: &mut [bf16] = bytemuck::cast_slice_mut(next);
                &mut halves[..len]
            });
            let [key, other] = [3, 4].map(Key::from_bits);
            let moment = has_moment.then_some((beside, other));
            let next = match written {
                Written::Not => Next::None,
                _ => Next::rounded(sums, Filter::ALL, key, moment),
            };
            (memory, next)
        }
        Kind::Adam(written) => {
            let memory = Past::Adam { second: &data.second, residual: &data.residual, rule: STEP };
            let streams = written == Written::Streamed;
            let next = match written {
                Written::Not => Next::None,
                _ => Next::Sums { sums, beside, streams },
            };
            (memory, next)
        }
        Kind::Momentum(written) => {
            let (momentum, velocity) = (&data.momentum[..], &data.residual[..]);
            let streams = written == Written::Streamed;
            let next = match written {
                Written::Not => Next::None,
                _ => Next::Sums { sums, beside, streams },
            };
            (Past::Momentum { momentum, velocity, rule: RULE }, next)
        }
    };
    let totals = scanner.read(Update::new(Tensor { gradient, memory }, next), request);
    let [sums, beside] = written.map(|buffer| bits(buffer.as_slice()));
    let candidates = scanner.candidates();
    Outcome {
        peak: totals.peak,
        moments: totals.moments,
        complete: totals.complete,
        indices: candidates.indices().to_vec(),
        values: bits(candidates.values()),
        sums,
        beside,
    }
}

fn requests() -> Vec<Request> {
    let mut all = vec![
        Request::default(),
        ALL,
        Request::above(0.3, 1000),
        Request { signed: true, ..Request::moments(0.0) },
    ];
    all.extend([1, 50, 500, 5000].map(|bin| Request::of(Entries::Bins(Bins { bin, ahead: 1.0 }))));
    for (chunk, k) in [(1, 1), (7, 2), (100, 1), (4096, 64), (30_000, 3)] {
        all.push(Request::of(Entries::Chunks(Chunks { chunk, k })));
    }
    all
}

/// Lengths around the boundaries of chunks, for more threads than there are chunks too.
const LENGTHS: [usize; 3] = [3 * CHUNK - 1, 7 * CHUNK, 7 * CHUNK + 12_345];

/// Threads that share a tensor unevenly.
const THREADS: [usize; 5] = [1, 2, 3, 5, 7];

fn scanner(threads: usize) -> Scanner {
    let mut scanner = Scanner::new(Kernels::current(), Some(threads));
    scanner.grain = CHUNK;
    scanner
}

#[test]
fn every_reader_finds_and_writes_the_same_on_any_number_of_threads() {
    let mut scanners = THREADS.map(scanner);
    for len in LENGTHS {
        let data = Data::new(len);
        for (kind, request) in
            kinds().into_iter().flat_map(|k| requests().into_iter().map(move |r| (k, r)))
        {
            let mut outcomes = scanners.iter_mut().map(|scanner| {
                // What the read before has found is not to be mistaken for what this one does.
                scanner.candidates_mut().clear();
                read(&data, kind, scanner, &request)
            });
            let expected = outcomes.next().unwrap();
            for (outcome, threads) in outcomes.zip(&THREADS[1..]) {
                assert!(outcome == expected, "{kind:?} {request:?} {len} {threads}");
            }
        }
    }
}

#[test]
fn every_search_after_a_read_finds_the_same_on_any_number_of_threads() {
    let mut scanners = THREADS.map(scanner);
    for len in LENGTHS {
        let data = Data::new(len);
        let gradient = Field(Input::F32(&data.gradient));
        let residual = Past::Residual { residual: &data.residual, decay: 0.5 };
        for tensor in [
            gradient.into(),
            Field(Input::F16(&data.narrow)).into(),
            Tensor { gradient, memory: residual },
        ] {
            for (chunk, k) in [(7, 2), (100, 1), (4096, 64), (100_000, 3)] {
                let found = scanners.each_mut().map(|scanner| {
                    scanner.search_chunks(tensor, Chunks { chunk, k });
                    (scanner.candidates().indices().to_vec(), bits(scanner.candidates().values()))
                });
                assert!(found.iter().all(|each| *each == found[0]), "{chunk} {k} {len}");
            }
        }
    }
}

/// Positions, shared as a tensor is.
struct Positions<'a>(&'a [u32]);

impl Split for Positions<'_> {
    fn split_at(self, middle: usize) -> (Self, Self) {
        let (head, rest) = self.0.split_at(middle);
        (Self(head), Self(rest))
    }
}

#[test]
fn shares_are_whole_units_in_order() {
    for unit in [1, 1000, CHUNK, 3 * CHUNK + 5] {
        for len in LENGTHS.into_iter().chain([0, 1, 999]) {
            let positions: Vec<u32> = (0..len as u32).collect();
            for threads in THREADS {
                let mut scanner = scanner(threads);
                let width = threads.min(len / CHUNK).min(len / unit).max(1);
                let workers = scanner.parallel(len, unit, Positions(&positions), |share| {
                    let Share { range, what: Positions(own), worker, .. } = share;
                    assert!(range.start % unit == 0 && own == &positions[range]);
                    worker.local.places = own.to_vec();
                });
                // One alone does it all where the pool is busy.
                assert!(workers.len() == width || workers.len() == 1);
                let shares: Vec<_> =
                    workers.iter().map(|worker| &worker.local.places[..]).collect();
                assert!(shares.concat() == positions);
                let units = shares.iter().map(|share| share.len().div_ceil(unit));
                assert!(units.clone().max().unwrap() - units.min().unwrap() <= 2);
            }
        }
    }
}
