//! Scans against naive loops, on every level and thread count.

use super::*;
use crate::Input;
use crate::fit::Moments;
use crate::simd::{Kernels, available_levels, testing::tensor};

fn scanners() -> Vec<Scanner> {
    let mut scanners = Vec::new();
    for level in available_levels() {
        for threads in [1, 2, 3] {
            scanners.push(Scanner::new(Kernels::of(level).unwrap(), Some(threads)));
        }
    }
    scanners
}

const ALL: Request = Request {
    location: Some(0.3),
    logs: true,
    signed: true,
    entries: Entries::Above { bound: 0.3, cap: usize::MAX },
};

#[test]
fn finds_what_a_filter_finds() {
    let x = tensor(5 * CHUNK + 77, 6);
    let naive: Vec<u32> = (0..x.len() as u32).filter(|&i| x[i as usize].abs() > 0.3).collect();
    let mut first = None;
    for mut scanner in scanners() {
        let totals = scanner.scan(Tensor::plain(&x), &ALL);
        assert_eq!(scanner.candidates().indices(), naive);
        assert_eq!(totals.moments.count, naive.len() as u64);
        assert_eq!(totals.moments.zeros, (x.len() - naive.len()) as u64);
        assert_eq!(*first.get_or_insert(totals.moments), totals.moments);
    }
}

#[test]
fn sums_over_survivors_equal_sums_over_everything() {
    let x = tensor(5 * CHUNK + 77, 7);
    let mut scanner = Scanner::new(Kernels::current(), Some(2));
    scanner.scan(
        Tensor::plain(&x),
        &Request { entries: Entries::Above { bound: 0.1, cap: usize::MAX }, ..ALL },
    );
    let from_survivors = tail_of(scanner.candidates(), 0.3);
    let request = Request::moments(0.3);
    let from_everything = scanner.scan(Tensor::plain(&x), &request).moments;
    assert_eq!(from_survivors, Moments { zeros: 0, ..from_everything });
}

#[test]
fn too_many_survivors_are_given_up_whole() {
    let x = vec![1.0; 3 * CHUNK];
    for mut scanner in scanners() {
        let request = Request { entries: Entries::Above { bound: 0.3, cap: 1000 }, ..ALL };
        assert!(!scanner.scan(Tensor::plain(&x), &request).complete);
        assert_eq!(scanner.candidates().len(), 0);
    }
}

#[test]
fn a_look_gathers_from_the_sums_that_are_going_to_be_written() {
    let (x, residual) = (tensor(5 * CHUNK + 77, 11), tensor(5 * CHUNK + 77, 12));
    let mut sums = vec![0.0; x.len()];
    for mut scanner in scanners() {
        let memory = Past::Residual { residual: &residual, decay: 0.5 };
        let read = Tensor { gradient: Field(Input::F32(&x)), memory };
        let expected = scanner.read(Update::new(read, Next::sums(&mut sums, &mut [])), &ALL);
        let found = scanner.candidates().indices().to_vec();
        let totals = scanner.scan(read, &ALL);
        assert_eq!((totals.peak, totals.moments), (expected.peak, expected.moments));
        assert_eq!(scanner.candidates().indices(), found);
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
        for len in [0, 1, 999, 3 * CHUNK - 1, 7 * CHUNK, 7 * CHUNK + 12_345] {
            let positions: Vec<u32> = (0..len as u32).collect();
            for threads in [1, 2, 3, 5, 7] {
                let mut scanner = Scanner::new(Kernels::current(), Some(threads));
                scanner.grain = CHUNK;
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
