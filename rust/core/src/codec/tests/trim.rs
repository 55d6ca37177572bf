//! Frames that are trimmed to a limit: how many entries stay, and how often they are written.

use super::*;

const UNIFORM: Quantizer =
    Quantizer::Uniform(Uniform { bits: 4, block: 512, norm: Norm::L2, seed: 1 });
const SIGNS: Quantizer = Quantizer::SignScale(SignScale { magnitude: Magnitude::Mean });
const MEANS: Quantizer = Quantizer::TwoMeans(TwoMeans { column: None });

const CODINGS: [IndexCoding; 4] =
    [IndexCoding::Auto, IndexCoding::EliasFano, IndexCoding::Rice, IndexCoding::Bitmap];

/// The entries of a frame of at most so many bytes, and how often it was written.
fn trimmed(codec: &Codec, x: &[f32], limit: usize) -> (u64, usize, u32) {
    let mut state = codec.init_state(x.len()).unwrap();
    let (encoded, out) = attempt(codec, Input::F32(x), &mut state, Some(limit));
    let count = encoded.unwrap().count;
    assert!(out.len() <= limit);
    assert_eq!(positions(&out).len() as u64, count);
    (count, out.len(), TRIES.get())
}

/// A bitmap is as long with few entries as with many: in proportion they come down to a limit a
/// little above it by one in a hundred at a time.
#[test]
fn beside_a_bitmap_as_many_entries_stay_as_there_is_room_for() {
    let n = 80_000;
    let x = gradient(n, 1);
    for quantizer in [Quantizer::Float32, Quantizer::BFloat16, UNIFORM, SIGNS] {
        let codec =
            Codec { indices: IndexCoding::Bitmap, ..of(top_ratio(0.3), quantizer, FEEDBACK) };
        let bitmap = n / 8;
        for limit in [48, 100, bitmap, bitmap + 60, bitmap + 100, bitmap + 1000, bitmap + 2900] {
            let (count, len, written) = trimmed(&codec, &x, limit);
            assert!(written <= 2, "{quantizer:?} {limit}: {written}");
            // One more would be too many.
            let value_len = quantizer.coding(n as u64, 0.0).value_len(n as u64, count + 1);
            assert!(frame::HEADER_LEN + bitmap + value_len as usize > limit, "{len} of {limit}");
        }
    }
}

#[test]
fn no_frame_is_written_more_than_a_few_times_and_little_room_is_left() {
    let n = 80_000;
    let x = gradient(n, 2);
    for indices in CODINGS {
        for (ratio, quantizer) in
            [(1.0, Quantizer::Float32), (0.3, UNIFORM), (0.3, SIGNS), (0.01, MEANS)]
        {
            let codec = Codec { indices, ..of(top_ratio(ratio), quantizer, FEEDBACK) };
            let whole = trimmed(&codec, &x, usize::MAX).1;
            for share in 1..40 {
                let limit = frame::HEADER_LEN + (whole - frame::HEADER_LEN) * share / 40;
                let (count, len, written) = trimmed(&codec, &x, limit);
                assert!(written <= 10, "{indices:?} {quantizer:?} {limit}: {written}");
                // Nothing fits beside a bitmap, or beside scales of all columns, or nearly all is
                // used.
                assert!(
                    count == 0 || len as f64 > 0.85 * limit as f64,
                    "{indices:?} {len} {limit}"
                );
            }
        }
    }
}
