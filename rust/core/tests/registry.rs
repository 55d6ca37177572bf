//! The registries of parts: what they list is whole, and told apart.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::collections::BTreeSet;
use std::path::Path;

use gradwire_core::frame::outside;
use gradwire_core::memory::{Memory, Residual};
use gradwire_core::quantize::{Norm, Quantizer, QuantizerId, Uniform};
use gradwire_core::sparsify::{Amount, RandomK, Sid, Sparsifier, SparsifierId, TopK};

/// Checks that every kind has examples, which differ, and a name of its own.
fn is_whole<P: Copy + PartialEq>(
    kinds: &[&'static str],
    examples: &[P],
    kind: fn(P) -> &'static str,
) {
    let names: BTreeSet<_> = kinds.iter().copied().collect();
    assert_eq!(names.len(), kinds.len(), "{kinds:?}");
    assert_eq!(examples.iter().map(|&example| kind(example)).collect::<BTreeSet<_>>(), names);
    for (i, one) in examples.iter().enumerate() {
        assert!(!examples[..i].contains(one), "{} has the same example twice", kind(*one));
    }
}

#[test]
fn every_part_has_a_name_and_examples() {
    is_whole(Sparsifier::KINDS, &Sparsifier::examples(), Sparsifier::kind);
    is_whole(Quantizer::KINDS, &Quantizer::examples(), Quantizer::kind);
    is_whole(Memory::KINDS, &Memory::examples(), Memory::kind);
}

#[test]
fn every_id_is_of_one_part_and_every_part_has_one() {
    let sparsifiers: BTreeSet<_> = SparsifierId::KNOWN.iter().map(|(id, _)| id.0).collect();
    assert_eq!(sparsifiers.len(), SparsifierId::KNOWN.len());
    let used = Sparsifier::examples().into_iter().map(|sparsifier| sparsifier.id().0);
    assert_eq!(used.collect::<BTreeSet<_>>(), sparsifiers);
    let quantizers: BTreeSet<_> = QuantizerId::KNOWN.iter().map(|(id, _)| id.0).collect();
    assert_eq!(quantizers.len(), QuantizerId::KNOWN.len());
    let used = Quantizer::examples().into_iter().map(|quantizer| quantizer.coding(9, 1.0).id().0);
    assert_eq!(used.collect::<BTreeSet<_>>(), quantizers);
}

/// The first numbers in the rows of a table, from the column with this heading.
fn rows(table: &str, heading: &str) -> BTreeSet<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/frame-format.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().skip_while(|line| !line.starts_with(table));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let column = cells(lines.next().unwrap()).iter().position(|cell| cell == heading).unwrap();
    lines
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .flat_map(|line| {
            // A row of two quantizers that are alike names both.
            let ids = cells(line)[column].clone();
            ids.split(", ").filter_map(|id| id.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn every_id_has_a_row_in_the_format_and_every_row_an_id() {
    let known: BTreeSet<_> = SparsifierId::KNOWN.iter().map(|(id, _)| id.0).collect();
    assert_eq!(rows("| dtype |", "sparsifier"), known);
    let mut known: BTreeSet<_> = QuantizerId::KNOWN.iter().map(|(id, _)| id.0).collect();
    known.insert(outside::QUANTIZER.0);
    assert_eq!(rows("| id | quantizer |", "id"), known);
}

#[test]
fn parts_that_differ_in_how_much_they_send_are_of_one_kind() {
    let top = |amount| Sparsifier::TopK(TopK { amount });
    assert!(top(Amount::Ratio(0.1)).same_kind(top(Amount::Count(3))));
    let sid = Sid::new(0.1);
    assert!(Sparsifier::Sid(sid).same_kind(Sparsifier::Sid(Sid { ratio: 0.2, ..sid })));
    assert!(!Sparsifier::Sid(sid).same_kind(Sparsifier::Sid(Sid { first_ratio: 0.2, ..sid })));
    let random = RandomK { amount: Amount::Count(1), block: false, seed: 1, scaled: false };
    let other = RandomK { amount: Amount::Count(2), seed: 2, ..random };
    assert!(!Sparsifier::RandomK(random).same_kind(Sparsifier::RandomK(other)));
    let uniform = Uniform { bits: 4, block: 512, norm: Norm::L2, seed: 1 };
    let (finer, shorter) = (Uniform { bits: 5, ..uniform }, Uniform { block: 9, ..uniform });
    assert!(Quantizer::Uniform(uniform).same_kind(Quantizer::Uniform(finer)));
    assert!(!Quantizer::Uniform(uniform).same_kind(Quantizer::Uniform(shorter)));
    let residual = |decay| Memory::Residual(Residual { decay, ..Residual::PLAIN });
    assert!(!residual(1.0).same_kind(residual(0.9)) && residual(0.9).same_kind(residual(0.9)));
}
