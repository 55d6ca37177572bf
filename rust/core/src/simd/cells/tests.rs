use super::*;
use crate::rng::testing::position_of;
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
            let mut covers = vec![[f32::NAN; 2]; ends.len()];
            let mut expected = covers.clone();
            kernels.cover_ranges(&ends, cells.most, &mut covers);
            cover_ranges(&ends, cells.most, &mut expected);
            assert_eq!(covers, expected, "{:?} {bits}", kernels.level());
            let grids = std::array::from_fn(|i| [i as f32 / 64.0, i as f32 / -8.0]);
            let (mut errors, mut expected) = ([1.0; GRIDS], [1.0; GRIDS]);
            kernels.cell_errors(&x, cells, &grids, &mut errors);
            add_errors(&x, cells, &grids, &mut expected);
            assert_eq!(errors.map(f64::to_bits), expected.map(f64::to_bits));
        }
        for len in [1, 7, 8, 16, 64, 100] {
            let mut ends = vec![[f32::NAN; 2]; x.len().div_ceil(len)];
            kernels.group_extremes(&x, len, &mut ends);
            for (ends, x) in ends.iter().zip(x.chunks(len)) {
                let least = x.iter().copied().fold(f32::INFINITY, f32::min);
                assert_eq!(*ends, [least, x.iter().copied().fold(f32::NEG_INFINITY, f32::max)]);
            }
        }
    });
}

/// On every level as [`Key::chance`] has it: further draws decide where one is in the cell of its chance.
#[test]
fn a_draw_in_the_cell_of_its_chance_goes_up_as_often_as_it_should() {
    let (cells, mut ups) = (Cells::new(4, 1.0), 0);
    for (seed, cell) in (0..64).flat_map(|seed| [0, 5, 0x7F_FFFF].map(|cell| (seed, cell))) {
        let key = Key::new(seed, 7, 7, 7);
        let part = (cell as f32 + 0.5) / CELLS;
        for (drawn, low) in [(cell, 3), (cell + 1, 0), (cell.max(1) - 1, 255)] {
            // In the middle of a block.
            let first = position_of(key, drawn << 8 | low).wrapping_sub(20);
            let expected = u8::from(key.chance(first.wrapping_add(20), part));
            for level in crate::simd::available_levels() {
                let kernels = crate::simd::Kernels::of(level).unwrap();
                let mut codes = [0xFF; 37];
                let grids = [&[1.0; 37][..], &[0.0; 37][..]];
                kernels.to_random_cells(&[part; 37], cells, grids, key, first, &mut codes);
                assert_eq!(codes[20], expected, "{level:?} {cell} {drawn}");
            }
            ups += u32::from(drawn == cell && expected == 1);
        }
    }
    assert!((90..=166).contains(&ups), "{ups} of 256 at one half");
}
