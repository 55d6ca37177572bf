//! Entries picked while the tensor is read: what sorting gives, on every level and thread count.

use super::*;
use crate::reference::kept;

/// The sums of a low-pass filter are not written down, so that chunks are searched during the read.
#[test]
fn chunks_of_filtered_sums_are_those_of_sorting_them() {
    for (shift, (chunk, k)) in
        [(1, 1), (7, 2), (100, 1), (2048, 5), (4096, 64), (50_000, 3)].into_iter().enumerate()
    {
        let sparsifier = Sparsifier::ChunkTopK(ChunkTopK { chunk, k, tile: None });
        let codec = exact(sparsifier, low_pass(0.3));
        for n in [0, 1, 101, 2049, 300_000] {
            on_every_level(&codec, [1, 2, 3], shift, |workspace| {
                let (mut state, mut memory) = (codec.init_state(n).unwrap(), vec![0.0; n]);
                for step in 0..3 {
                    let (x, mut out) = (gradient(n, step), Vec::new());
                    let sums: Vec<f32> = x.iter().zip(&memory).map(|(x, m)| kept(x + m)).collect();
                    let expected = reference::largest_of_chunks(&sums, chunk as usize, k as usize);
                    let input = Input::F32(&x);
                    codec.encode_into(input, &mut state, None, workspace, &mut out).unwrap();
                    assert_eq!(positions(&out), expected);
                    for (i, m) in memory.iter_mut().enumerate() {
                        let sent = expected.binary_search(&(i as u32)).is_ok();
                        let left =
                            if sent { codec.memory().left(*m, 0.0, 0.0) } else { *m + 0.3 * x[i] };
                        *m = if sent { left } else { kept(left) };
                    }
                    assert_eq!(bits(state.residual().unwrap()), bits(&memory));
                }
            });
        }
    }
}
