//! Entries picked while the tensor is read: what sorting gives, on every level and thread count.

use super::*;
use crate::memory::LowPass;
use crate::reference::kept;

/// The sums of a low-pass filter are not written down, so that chunks are searched during the read.
#[test]
fn chunks_of_filtered_sums_are_those_of_sorting_them() {
    let filter = LowPass { beta: 0.3, ..LowPass::PLAIN };
    for (chunk, k) in [(1, 1), (7, 2), (100, 1), (2048, 5), (4096, 64), (50_000, 3)] {
        let sparsifier = Sparsifier::ChunkTopK(ChunkTopK { chunk, k, tile: None });
        let codec =
            Codec::new(sparsifier, Quantizer::Float32, Memory::LowPass(filter), IndexCoding::Auto)
                .unwrap();
        for n in [0, 1, 101, 2049, 300_000] {
            for (level, threads) in available_levels().into_iter().flat_map(|l| [(l, 1), (l, 3)]) {
                let mut workspace = Workspace::with(Kernels::of(level).unwrap(), threads);
                let (mut state, mut memory) = (codec.init_state(n).unwrap(), vec![0.0; n]);
                for step in 0..3 {
                    let (x, mut out) = (gradient(n, step), Vec::new());
                    let sums: Vec<f32> = x.iter().zip(&memory).map(|(x, m)| kept(x + m)).collect();
                    let expected = reference::largest_of_chunks(&sums, chunk as usize, k as usize);
                    let input = Input::F32(&x);
                    codec.encode_into(input, &mut state, None, &mut workspace, &mut out).unwrap();
                    assert_eq!(positions(&out), expected);
                    for (i, m) in memory.iter_mut().enumerate() {
                        let sent = expected.binary_search(&(i as u32)).is_ok();
                        *m =
                            if sent { codec.memory().left(*m, 0.0) } else { kept(*m + 0.3 * x[i]) };
                    }
                    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
                    assert!(state.residual().unwrap().iter().zip(&memory).all(same));
                }
            }
        }
    }
}
