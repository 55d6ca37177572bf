//! Every coding against a naive one on vectors of bits, and the laws of lengths.

use proptest::prelude::*;

use super::*;

/// The format, read off its description: a bit a `bool`, nothing clever.
mod naive {
    use super::Coding;

    fn low(bits: &mut Vec<bool>, value: u32, width: u8) {
        bits.extend((0..width).map(|i| value >> i & 1 == 1));
    }

    pub(super) fn encode(coding: Coding, indices: &[u32], numel: u64) -> Vec<u8> {
        let mut bits = Vec::new();
        let mut upper = Vec::new();
        match coding {
            _ if indices.is_empty() => {}
            // These have tests of their own.
            Coding::None | Coding::ChunkLocal(_) | Coding::Seeded(_) => {}
            Coding::Bitmap => bits.extend((0..numel as u32).map(|i| indices.contains(&i))),
            Coding::EliasFano { low_bits } => {
                upper = vec![false; indices.len() + ((numel - 1) >> low_bits) as usize];
                for (rank, &index) in indices.iter().enumerate() {
                    low(&mut bits, index, low_bits);
                    upper[(index >> low_bits) as usize + rank] = true;
                }
            }
            Coding::Rice { bits: width } => {
                let mut next = 0;
                for &index in indices {
                    let gap = index - next;
                    low(&mut bits, gap, width);
                    upper.extend((0..gap >> width).map(|_| false));
                    upper.push(true);
                    next = index + 1;
                }
            }
        }
        bits.extend(upper);
        bits.chunks(8)
            .map(|byte| byte.iter().enumerate().map(|(i, &bit)| u8::from(bit) << i).sum())
            .collect()
    }
}

fn all_codings() -> impl Iterator<Item = Coding> {
    (0..=MAX_LOW_BITS)
        .flat_map(|w| [Coding::EliasFano { low_bits: w }, Coding::Rice { bits: w }])
        .chain([Coding::Bitmap])
}

fn encode(coding: Coding, indices: &[u32], numel: u64) -> Vec<u8> {
    let mut out = vec![0xAA; naive::encode(coding, indices, numel).len()];
    encode_into(coding, indices, numel, &mut out);
    out
}

fn decode(coding: Coding, bytes: &[u8], numel: u64, count: usize) -> Result<Vec<u32>> {
    let mut out = vec![7; 3];
    decode_into(Kernels::current(), coding, bytes, numel, count as u64, &mut out)?;
    Ok(out)
}

const ALLOWED: [IndexCoding; 4] =
    [IndexCoding::Auto, IndexCoding::EliasFano, IndexCoding::Rice, IndexCoding::Bitmap];

/// Supports of small tensors: every density, runs and lone entries at both ends included.
fn supports() -> impl Strategy<Value = (u64, Vec<u32>)> {
    let of_size = |n: usize| {
        let picked = proptest::sample::subsequence((0..n as u32).collect::<Vec<_>>(), 0..=n);
        (Just(n as u64), picked)
    };
    let wide = (1..=u64::from(u32::MAX)).prop_flat_map(|n| {
        let set = proptest::collection::btree_set(0..n as u32, 0..40.min(n as usize));
        (Just(n), set.prop_map(|set| set.into_iter().collect()))
    });
    prop_oneof![(0..300_usize).prop_flat_map(of_size), wide]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 400 }))]

    #[test]
    fn every_coding_writes_what_the_naive_one_does_and_reads_it_back((numel, indices) in supports()) {
        for coding in all_codings() {
            // Small widths of huge tensors take as many bytes as the tensor has elements.
            if *lengths(coding, numel, indices.len() as u64).end() > 4096 { continue; }
            let bytes = encode(coding, &indices, numel);
            prop_assert_eq!(&bytes, &naive::encode(coding, &indices, numel), "{:?}", coding);
            prop_assert_eq!(decode(coding, &bytes, numel, indices.len()), Ok(indices.clone()));
        }
    }

    #[test]
    fn the_choice_is_the_smallest_of_all_widths_and_within_the_bound((numel, indices) in supports()) {
        let count = indices.len() as u64;
        for allowed in ALLOWED {
            let (coding, len) = choose(allowed, Pattern::Any, &indices, numel);
            prop_assert!(len <= max_len(allowed, Pattern::Any, numel, count));
            if count == numel {
                prop_assert_eq!((coding, len), (Coding::None, 0));
                continue;
            }
            let fits = |c: &Coding| match allowed {
                IndexCoding::Auto => true,
                IndexCoding::EliasFano => matches!(c, Coding::EliasFano { .. }),
                IndexCoding::Rice => matches!(c, Coding::Rice { .. }),
                IndexCoding::Bitmap => *c == Coding::Bitmap,
            };
            let exact = |c: Coding| match c {
                Coding::Rice { bits } => rice_len(bits, &indices),
                _ => *lengths(c, numel, count).end(),
            };
            prop_assert!(fits(&coding));
            prop_assert_eq!(exact(coding), len as u64);
            prop_assert_eq!(all_codings().filter(fits).map(exact).min(), Some(len as u64));
        }
    }

    #[test]
    fn any_bytes_give_ascending_positions_in_range_or_an_error(
        bytes in proptest::collection::vec(prop_oneof![3 => Just(0_u8), 2 => any::<u8>()], 0..40),
        numel in prop_oneof![0..400_u64, 0..=u64::from(u32::MAX)],
        count in 0..100_u64,
        pick in 0..65_usize,
    ) {
        let coding = all_codings().nth(pick).unwrap();
        if let Ok(indices) = decode(coding, &bytes, numel, count as usize) {
            prop_assert_eq!(indices.len() as u64, count);
            prop_assert!(indices.is_sorted_by(|a, b| a < b));
            prop_assert!(indices.iter().all(|&i| u64::from(i) < numel));
            // One byte string a meaning, given coding and width.
            prop_assert_eq!(encode(coding, &indices, numel), bytes);
        }
    }
}

fn rice_len(bits: u8, indices: &[u32]) -> u64 {
    if indices.is_empty() {
        return 0;
    }
    let zeros: u64 = rice_gaps(indices).map(|gap| u64::from(gap >> bits)).sum();
    (indices.len() as u64 * (u64::from(bits) + 1) + zeros).div_ceil(8)
}

fn rice_gaps(indices: &[u32]) -> impl Iterator<Item = u32> {
    let next = std::iter::once(0).chain(indices.iter().map(|i| i + 1));
    indices.iter().zip(next).map(|(i, next)| i - next)
}

#[test]
fn the_best_rice_width_is_below_at_or_above_the_log_of_the_mean_gap() {
    let support = |gaps: &[u32]| {
        let mut next = 0;
        let place = |&gap: &u32| {
            next += gap + 1;
            next - 1
        };
        gaps.iter().cycle().take(100).map(place).collect::<Vec<_>>()
    };
    for log in 1..20_u8 {
        let gap = 1_u32 << log;
        // All means are in [gap, 2 * gap).
        for (gaps, width) in [
            (vec![gap], log - 1),
            (vec![gap / 2 * 3], log),
            (vec![gap, gap, gap, 3 * gap], log + 1),
        ] {
            let indices = support(&gaps);
            let len = |width| rice_len(width, &indices) as usize;
            assert_eq!(rice::best(&indices), (width, len(width)), "gaps {gaps:?}");
            assert!((0..=MAX_LOW_BITS).all(|other| len(other) >= len(width)));
        }
    }
}

#[test]
fn positions_at_the_end_of_the_largest_tensor_survive() {
    let numel = MAX_NUMEL;
    let last = (numel - 1) as u32;
    for indices in [vec![last], vec![0, last], vec![last - 2, last - 1, last]] {
        for allowed in [IndexCoding::Auto, IndexCoding::EliasFano, IndexCoding::Rice] {
            let (coding, len) = choose(allowed, Pattern::Any, &indices, numel);
            assert!(len <= max_len(allowed, Pattern::Any, numel, indices.len() as u64));
            let mut bytes = vec![0xFF; len];
            encode_into(coding, &indices, numel, &mut bytes);
            assert_eq!(decode(coding, &bytes, numel, indices.len()), Ok(indices.clone()));
        }
    }
}

#[test]
fn the_bound_never_falls_before_the_full_support() {
    for numel in [2_u64, 9, 64, 1000, 4097] {
        for allowed in ALLOWED {
            let bounds: Vec<_> =
                (0..numel).map(|count| max_len(allowed, Pattern::Any, numel, count)).collect();
            assert!(bounds.is_sorted(), "{allowed:?} of {numel}");
            assert_eq!(max_len(allowed, Pattern::Any, numel, numel), 0);
        }
    }
}

#[test]
fn claims_that_cannot_be_are_refused_before_anything_is_allocated() {
    let corrupt = |coding, numel, count, bytes: &[u8]| {
        let error = decode(coding, bytes, numel, count).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    };
    corrupt(Coding::Bitmap, 8, 9, &[0xFF]);
    corrupt(Coding::None, 8, 7, &[]);
    corrupt(Coding::None, 8, 8, &[0]);
    corrupt(Coding::Bitmap, 8, 0, &[0]);
    corrupt(Coding::EliasFano { low_bits: 32 }, 8, 1, &[0; 5]);
    corrupt(Coding::Rice { bits: 255 }, 8, 1, &[0; 32]);
    // A count that the bytes cannot hold.
    corrupt(Coding::Bitmap, MAX_NUMEL, MAX_NUMEL as usize - 1, &[0xFF]);
    corrupt(Coding::Rice { bits: 0 }, MAX_NUMEL, MAX_NUMEL as usize - 1, &[0xFF]);
    // A byte more than the positions take.
    corrupt(Coding::Rice { bits: 0 }, 100, 1, &[0b1, 0]);
    // A one in the padding, at a high part that would not fit 32 bits.
    corrupt(Coding::EliasFano { low_bits: 31 }, MAX_NUMEL, 1, &[5, 0, 0, 0, 0b10]);
    // Unary codes whose sum passes the last element, far and just.
    corrupt(Coding::Rice { bits: 31 }, MAX_NUMEL, 1, &[0, 0, 0, 0, 0, 0, 0, 0x80]);
    corrupt(Coding::Rice { bits: 1 }, 3, 1, &[0b101]);
    assert_eq!(
        decode(Coding::Bitmap, &[], MAX_NUMEL + 1, 0),
        Err(Error::TooLarge { numel: MAX_NUMEL + 1, limit: MAX_NUMEL })
    );
}
