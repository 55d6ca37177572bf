//! Chunk-top-k: the largest of each chunk and of each tile, and positions coded in their chunk.

use super::*;
use crate::pack::{Chunks, Coding};

fn codec(chunk: u32, k: u32, memory: Memory) -> Codec {
    tiled(ChunkTopK { chunk, k, tile: None }, memory)
}

fn tiled(chunks: ChunkTopK, memory: Memory) -> Codec {
    exact(Sparsifier::ChunkTopK(chunks), memory)
}

/// Laws that a search could be fooled by.
fn laws(n: usize) -> Vec<Vec<f32>> {
    let mut spike = vec![0.0; n];
    spike[n / 2] = f32::MIN_POSITIVE;
    let magnitudes = [1.0, -1.0, 1e-30, 1e30];
    vec![
        gradient(n, 1).into_iter().map(reference::kept).collect(),
        vec![0.5; n],
        vec![0.0; n],
        spike,
        (0..n).map(|i| if i % 37 == 5 { 1.0 } else { 0.0 }).collect(),
        (0..n).map(|i| magnitudes[i / 7 % 4]).collect(),
        (0..n).map(|i| f32::from_bits((1 << 23) + i as u32 % 4000)).collect(),
        (0..n).map(|i| i as f32).collect(),
        (0..n).map(|i| (n - i) as f32).collect(),
    ]
}

#[test]
fn the_largest_of_each_chunk_are_those_of_sorting_it() {
    for n in [1, 99, 100, 5000, 40_000] {
        for (chunk, k) in
            [(1, 1), (2, 1), (100, 1), (100, 7), (4096, 64), (4096, 5000), (9000, 1), (1 << 20, 30)]
        {
            for memory in [Memory::None, FEEDBACK] {
                let codec = codec(chunk, k, memory);
                for (law, x) in laws(n).iter().enumerate() {
                    let (frame, encoded) = encode(&codec, x, &mut codec.init_state(n).unwrap());
                    let expected = reference::largest_of_chunks(x, chunk as usize, k as usize);
                    assert_eq!(positions(&frame), expected, "law {law}, {k} of {chunk}, {n}");
                    let whole = n / chunk as usize * chunk.min(k) as usize;
                    let rest = (n % chunk as usize).min(k as usize);
                    assert_eq!(encoded.target, Some((whole + rest) as u64));
                }
            }
        }
    }
}

#[test]
fn the_largest_of_each_tile_are_those_of_sorting_it() {
    // A prime number of columns, tiles larger than the matrix, one row, one column.
    for (rows, width) in [(64, 64), (130, 101), (7, 300), (1, 97), (97, 1), (200, 64)] {
        let n = rows * width as usize;
        for (tile_rows, columns, k) in [(64, 64, 64), (3, 5, 1), (3, 5, 4), (1, 1, 1), (500, 9, 40)]
        {
            let tile = Some(Tile { rows: tile_rows, columns, width });
            let codec = tiled(ChunkTopK { chunk: tile_rows * columns, k, tile }, FEEDBACK);
            for x in laws(n) {
                let (frame, encoded) = encode(&codec, &x, &mut codec.init_state(n).unwrap());
                let size = (tile_rows as usize, columns as usize);
                let expected = reference::largest_of_tiles(&x, width as usize, size, k as usize);
                assert_eq!(positions(&frame), expected, "{rows} x {width}, {k} of {size:?}");
                assert!(expected.len() as u64 <= encoded.target.unwrap());
                if x.iter().all(|&v| v != 0.0) {
                    assert_eq!(Some(expected.len() as u64), encoded.target);
                }
            }
        }
    }
}

#[test]
fn one_of_a_hundred_takes_seven_bits_a_position() {
    let n = 100_000;
    let codec = codec(100, 1, FEEDBACK);
    let mut state = codec.init_state(n).unwrap();
    let (frame, _) = encode(&codec, &gradient(n, 3), &mut state);
    let header = *Frame::parse(&frame, None).unwrap().header();
    assert_eq!(header.coding, Coding::ChunkLocal(Chunks::new(100, 1).unwrap()));
    assert_eq!((header.count, header.index_len), (1000, 8 + 875));
    // A chunk of zeros has nothing to send: then gaps are coded.
    let mut x = gradient(n, 4);
    x.iter_mut().zip(state.residual().unwrap()).take(100).for_each(|(x, r)| *x = -r);
    let (frame, _) = encode(&codec, &x, &mut state);
    let header = *Frame::parse(&frame, None).unwrap().header();
    assert!(matches!(header.coding, Coding::Rice { .. } | Coding::EliasFano { .. }));
    assert_eq!(header.count, 999);
}

#[test]
fn tiles_agree_on_every_level_and_thread_count() {
    // 150 bands of 4 rows, or 10 of 64, for three threads to share.
    let (rows, width) = (600, 701);
    let n = rows * width as usize;
    for (shift, (side, k)) in [(64, 64), (4, 1)].into_iter().enumerate() {
        let tile = Some(Tile { rows: side, columns: side, width });
        let codec = tiled(ChunkTopK { chunk: 1, k, tile }, FEEDBACK);
        let steps = [gradient(n, 0), gradient(n, 1)];
        on_every_level(&codec, [1, 2, 3], shift, |workspace| run(&codec, &steps, workspace));
    }
}

#[test]
fn chunks_that_are_searched_as_tensors_send_what_short_ones_would() {
    let n = 200_001;
    let mut x: Vec<f32> = gradient(n, 11).into_iter().map(reference::kept).collect();
    // Ties across the end of a chunk, and a chunk of fewer non-zeros than are wanted.
    x[..3000].fill(0.25);
    x[140_000..].fill(0.0);
    x[140_002] = 1.0;
    for (chunk, k) in [(70_000, 1), (70_000, 2500), (65_537, 40_000), (1 << 30, 77)] {
        let expected = reference::largest_of_chunks(&x, chunk as usize, k as usize);
        for threads in [1, 3] {
            for memory in [Memory::None, FEEDBACK] {
                let codec = codec(chunk, k, memory);
                let mut state = codec.init_state(n).unwrap();
                let mut workspace = Workspace::with(Kernels::current(), threads);
                let mut out = Vec::new();
                codec
                    .encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut out)
                    .unwrap();
                assert_eq!(positions(&out), expected, "{chunk} {k}");
                // What bounds the scratch: sixteen bytes for each that is in the running.
                let most = 16 * (3 * k as usize).max(n / 64).max(4096).next_power_of_two();
                assert!(
                    workspace.bytes() < 4 * most * threads + (1 << 20),
                    "{}",
                    workspace.bytes()
                );
            }
        }
    }
}
