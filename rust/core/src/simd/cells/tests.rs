use super::*;
use crate::simd::testing::levels_and_lengths;

#[test]
fn codes_errors_and_ends_are_the_same_on_every_level() {
    let key = Key::new(3, 1, 4, 1);
    levels_and_lengths(|kernels, x| {
        let (inverses, bases) = (vec![60.0; x.len()], vec![-0.25; x.len()]);
        for bits in 1..=8 {
            let (cells, grids) = (Cells::new(bits, 0.5), [&inverses[..], &bases[..]]);
            let (mut codes, mut expected) = (vec![0xFF; x.len()], vec![0xEE; x.len()]);
            kernels.to_cells(&x, cells, grids, &mut codes);
            round(&x, cells, grids, &mut expected);
            assert_eq!(codes, expected, "{:?} {bits}", kernels.level());
            let mut values = vec![f32::NAN; x.len()];
            kernels.from_cells(&codes, grids, &mut values);
            for (value, &code) in values.iter().zip(&codes) {
                assert_eq!(*value, -0.25 + 60.0 * f32::from(code));
            }
            kernels.to_random_cells(&x, cells, grids, key, 7, &mut codes);
            round_randomly(&x, cells, grids, key, 7, &mut expected);
            assert_eq!(codes, expected, "{:?} {bits}", kernels.level());
            let ends: Vec<_> = x.windows(2).map(|x| [x[0].min(x[1]), x[0].max(x[1])]).collect();
            for shares in [&[0.0][..], &[0.0, 0.1, 0.25]] {
                let mut ranges = vec![[f32::NAN; 2]; shares.len() * ends.len()];
                let mut expected = ranges.clone();
                kernels.cut_ranges(&ends, shares, cells.most, &mut ranges);
                cut_ranges(&ends, shares, cells.most, &mut expected);
                assert_eq!(ranges, expected, "{:?} {bits}", kernels.level());
            }
            let grids = std::array::from_fn(|i| [i as f32 / 64.0, i as f32 / -8.0]);
            let (mut errors, mut expected) = ([1.0; GRIDS], [1.0; GRIDS]);
            kernels.cell_errors(&x, cells, &grids, &mut errors);
            add_errors(&x, cells, &grids, &mut expected);
            assert_eq!(errors.map(f64::to_bits), expected.map(f64::to_bits));
        }
        for len in [1, 7, 16, 64, 100] {
            let mut ends = vec![[f32::NAN; 2]; x.len().div_ceil(len)];
            kernels.group_extremes(&x, len, &mut ends);
            for (ends, x) in ends.iter().zip(x.chunks(len)) {
                let least = x.iter().copied().fold(f32::INFINITY, f32::min);
                assert_eq!(*ends, [least, x.iter().copied().fold(f32::NEG_INFINITY, f32::max)]);
            }
        }
    });
}
