//! Scans against naive loops, on every level and thread count.

mod splits;

use super::*;
use crate::Input;
use crate::fit::Moments;
use crate::reference;
use crate::simd::{Kernels, Level, available_levels, testing::tensor};

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
fn levels_and_threads_give_the_same_bits() {
    let x = tensor(9 * CHUNK + 12_345, 5);
    let scalar = Kernels::of(Level::Scalar).unwrap();
    let mut first = Scanner::new(scalar, Some(1));
    let expected = first.scan(Tensor::plain(&x), &ALL);
    assert!(expected.complete);
    for mut scanner in scanners() {
        let totals = scanner.scan(Tensor::plain(&x), &ALL);
        assert_eq!(totals.moments, expected.moments);
        assert_eq!(totals.peak, expected.peak);
        assert_eq!(scanner.candidates().indices(), first.candidates().indices());
        assert_eq!(scanner.candidates().values(), first.candidates().values());
    }
}

#[test]
fn finds_what_a_filter_finds() {
    let x = tensor(5 * CHUNK + 77, 6);
    let naive: Vec<u32> = (0..x.len() as u32).filter(|&i| x[i as usize].abs() > 0.3).collect();
    for mut scanner in scanners() {
        let totals = scanner.scan(Tensor::plain(&x), &ALL);
        assert_eq!(scanner.candidates().indices(), naive);
        assert_eq!(totals.moments.count, naive.len() as u64);
        assert_eq!(totals.moments.zeros, (x.len() - naive.len()) as u64);
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
fn accumulates_what_it_reads_for_every_dtype() {
    let n = 4 * CHUNK + 9;
    let gradient: Vec<f32> =
        tensor(n, 8).iter().map(|v| half::f16::from_f32(*v % 1000.0).to_f32()).collect();
    let gradient: Vec<f32> =
        gradient.iter().map(|v| f32::from_bits(v.to_bits() & 0xffff_0000)).collect();
    let wide: Vec<f64> = gradient.iter().map(|&v| f64::from(v)).collect();
    let narrow: Vec<half::f16> = gradient.iter().map(|&v| half::f16::from_f32(v)).collect();
    let brain: Vec<half::bf16> = gradient.iter().map(|&v| half::bf16::from_f32(v)).collect();
    let exact: Vec<f32> = narrow.iter().map(|v| v.to_f32()).collect();
    let residual = tensor(n, 9);
    let cases = [
        (Input::F32(&gradient), &gradient),
        (Input::F64(&wide), &gradient),
        (Input::F16(&narrow), &exact),
        (Input::BF16(&brain), &gradient),
    ];
    for (input, values) in cases {
        for (mut scanner, streams) in scanners().into_iter().zip([true, false].into_iter().cycle())
        {
            let mut sums = vec![0.0; n];
            let memory = Past::Residual { residual: &residual, decay: 0.5 };
            let read = Tensor { gradient: Field(input), memory };
            assert_eq!(read.at(n - 1), values[n - 1] + 0.5 * residual[n - 1]);
            let next = Next::Sums { sums: &mut sums, beside: &mut [], streams };
            scanner.read(Update::new(read, next), &Request::default());
            for i in 0..n {
                let kept = 0.5 * residual[i];
                assert_eq!(sums[i].to_bits(), reference::kept(values[i] + kept).to_bits());
            }
        }
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
