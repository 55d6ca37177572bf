//! What holds for every codec: undoing, errors, checkpoints, levels and threads, element types.

use half::{bf16, f16};

use super::*;

#[test]
fn a_state_is_undone_left_alone_by_errors_and_saved_to_the_last_bit() {
    let n = 2000;
    let steps: Vec<_> = (0..5).map(|seed| gradient(n, seed)).collect();
    for memory in Memory::examples() {
        for codec in [codecs(memory), scaled_codecs(memory)].concat() {
            let mut state = codec.init_state(n).unwrap();
            assert!(state.rollback().is_err());
            encode(&codec, &steps[1], &mut state);
            let before = contents(&state);
            let first = encode(&codec, &steps[2], &mut state);
            let after = contents(&state);
            state.rollback().unwrap();
            assert_eq!(contents(&state), before, "{codec:?}");
            assert!(state.rollback().is_err());
            // What draws its entries, and keeps nothing, looks at what it sends alone.
            let looks = !codec.sparsifier().is_drawn() || memory != Memory::None;
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().filter(|_| looks) {
                let mut x = steps[3].clone();
                (x[1500], x[77]) = (bad, bad);
                let (result, _) = attempt(&codec, Input::F32(&x), &mut state, None);
                assert_eq!(result, Err(Error::NonFinite { count: 2, first: 77 }), "{codec:?}");
                assert_eq!(contents(&state), before, "{codec:?}");
                assert!(state.rollback().is_err());
            }
            assert_eq!(encode(&codec, &steps[2], &mut state), first, "{codec:?}");
            assert_eq!(contents(&state), after, "{codec:?}");
            let mut restored = saved(&codec, &state);
            for x in &steps[3..] {
                let frame = encode(&codec, x, &mut state);
                assert_eq!(encode(&codec, x, &mut restored), frame, "{codec:?}");
                assert_eq!(contents(&restored), contents(&state), "{codec:?}");
            }
            state.reset();
            assert_eq!(contents(&state), contents(&codec.init_state(n).unwrap()), "{codec:?}");
        }
    }
}

/// Schedules change the ratio from one encode to the next.
#[test]
fn an_encode_with_another_ratio_that_fails_or_is_undone_leaves_nothing_behind() {
    let n = 20_000;
    let [codec, other] =
        [0.01, 0.1].map(|ratio| exact(sid(ratio, Distribution::Exponential), FEEDBACK));
    let mut state = codec.init_state(n).unwrap();
    for step in 0..8 {
        encode(&codec, &gradient(n, step), &mut state);
    }
    let before = state.scalars();
    let expected = encode(&codec, &gradient(n, 9), &mut state.clone());
    encode(&other, &gradient(n, 8), &mut state);
    assert_ne!(state.scalars(), before);
    state.rollback().unwrap();
    assert_eq!(state.scalars(), before);
    assert_eq!(encode(&codec, &gradient(n, 9), &mut state.clone()), expected);
    let mut x = gradient(n, 8);
    x[5] = f32::NAN;
    let (failed, _) = attempt(&other, Input::F32(&x), &mut state, None);
    assert_eq!(failed, Err(Error::NonFinite { count: 1, first: 5 }));
    assert_eq!(state.scalars(), before);
    assert_eq!(encode(&codec, &gradient(n, 9), &mut state), expected);
}

/// Short tensors of every codec, and long ones, which threads share unevenly: groups of no, some and
/// all entries, whose ends and those of chunks differ. Each memory has one in eight of those.
#[test]
fn bytes_and_memory_agree_on_every_level_and_thread_count() {
    let lengths = [130, 7 * CHUNK + 1, 6 * CHUNK + 120];
    let steps = lengths.map(|n| [gradient(n, 0), gradient(n, 1)]);
    for (at, memory) in Memory::examples().into_iter().enumerate() {
        let some = |codecs: Vec<Codec>| codecs.into_iter().skip(at % 8).step_by(8).collect();
        let dense = some(compose(&[Sparsifier::All], &Quantizer::examples(), memory));
        let selected = some(compose(&sparsifiers(), &[Quantizer::BFloat16], memory));
        for (steps, codecs) in steps.iter().zip([codecs(memory), dense, selected]) {
            for (shift, codec) in codecs.iter().enumerate() {
                on_every_level(codec, [1, 3, 7], shift, |workspace| run(codec, steps, workspace));
            }
        }
    }
}

#[test]
fn elements_of_every_type_are_as_their_float32_and_named_in_the_frame() {
    let n = 300;
    let x = gradient(n, 1);
    let double: Vec<f64> = x.iter().map(|&v| f64::from(v) * (1.0 + 1e-10)).collect();
    let half: Vec<f16> = x.iter().map(|&v| f16::from_f32(v)).collect();
    let brain: Vec<bf16> = x.iter().map(|&v| bf16::from_f32(v)).collect();
    let plain: [Vec<f32>; 3] = [
        double.iter().map(|&v| v as f32).collect(),
        half.iter().map(|v| v.to_f32()).collect(),
        brain.iter().map(|v| v.to_f32()).collect(),
    ];
    let inputs = [Input::F64(&double), Input::F16(&half), Input::BF16(&brain)];
    for codec in Memory::examples().into_iter().flat_map(codecs) {
        for (&input, plain) in inputs.iter().zip(&plain) {
            if codec.quantizer().of(input.dtype()) != codec.quantizer().of(Dtype::F32) {
                // It rounds to what the elements are.
                continue;
            }
            let (mut a, mut b) = (codec.init_state(n).unwrap(), codec.init_state(n).unwrap());
            for _ in 0..2 {
                let (_, frame) = attempt(&codec, input, &mut a, None);
                let (expected, _) = encode(&codec, plain, &mut b);
                assert_eq!(bits(&decode(&frame, n)), bits(&decode(&expected, n)), "{codec:?}");
                assert_eq!(contents(&a), contents(&b), "{codec:?}");
                let dtype = |frame| Frame::parse(frame, None).unwrap().header().dtype;
                assert_eq!([dtype(&frame), dtype(&expected)], [input.dtype(), Dtype::F32]);
            }
        }
    }
    let (result, _) = attempt(
        &exact(top(1), FEEDBACK),
        Input::F64(&[1.0, 1e39]),
        &mut exact(top(1), FEEDBACK).init_state(2).unwrap(),
        None,
    );
    assert_eq!(result, Err(Error::NonFinite { count: 1, first: 1 }), "beyond float32");
}

#[test]
fn a_state_of_another_shape_or_memory_is_refused_and_another_ratio_is_not() {
    let x = gradient(1000, 1);
    let memories = [FEEDBACK, Memory::None, Memory::MomentumCorrection(MOMENTUM)];
    let [mut state, _, mut moment] =
        memories.map(|memory| exact(top(100), memory).init_state(1000).unwrap());
    let refused = |sparsifier, memory, x: &[f32], state: &mut State| {
        let (result, _) = attempt(&exact(sparsifier, memory), Input::F32(x), state, None);
        matches!(result, Err(Error::Argument { .. }))
    };
    assert!(refused(top(100), FEEDBACK, &x[..999], &mut state));
    assert!(refused(top(100), FEEDBACK, &x, &mut moment));
    for memory in [Memory::None, memories[2]] {
        assert!(refused(top(100), memory, &x, &mut state));
    }
    for sparsifier in [top(100), top(10), sid(0.01, Distribution::Gamma)] {
        assert!(!refused(sparsifier, FEEDBACK, &x, &mut state));
    }
    let tile = Some(Tile { rows: 4, columns: 4, width: 33 });
    let rows = Sparsifier::ChunkTopK(ChunkTopK { chunk: 16, k: 1, tile });
    assert!(refused(rows, FEEDBACK, &x, &mut state), "no multiple of such rows");
    assert!(state.set_momentum(&[0.0; 1000]).is_err());
    assert!(moment.set_momentum(&[0.0; 2]).is_err());
    assert!(moment.set_momentum(&[f32::NAN; 1000]).is_err());
}

#[test]
fn meaningless_parts_are_refused() {
    let refuse = |sparsifier, quantizer, memory| {
        let result = Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto);
        let part = (sparsifier, quantizer, memory);
        assert!(matches!(result, Err(Error::Argument { .. })), "{part:?}");
    };
    let base = Sid::new(0.01);
    let mut sparsifiers = vec![
        top(0),
        Sparsifier::Sid(Sid { first_ratio: 1.0, ..base }),
        Sparsifier::Sid(Sid { band: Some((1.1, 1.2)), ..base }),
        Sparsifier::Sid(Sid { band: Some((0.8, f64::NAN)), ..base }),
        Sparsifier::Sid(Sid { mode: Mode::Fixed(0), ..base }),
    ];
    for ratio in [0.0, -0.1, 1.1, f64::NAN, f64::INFINITY] {
        sparsifiers.extend([top_ratio(ratio), Sparsifier::Sid(Sid::new(ratio))]);
    }
    let threshold = |threshold| Sparsifier::Threshold(Threshold { threshold });
    sparsifiers.extend([-1.0, f32::NAN, f32::INFINITY].map(threshold));
    let chunks = |chunk, k, tile| Sparsifier::ChunkTopK(ChunkTopK { chunk, k, tile });
    let tile = |rows, columns, width| chunks(1, 1, Some(Tile { rows, columns, width }));
    sparsifiers.extend([(0, 1), (10, 0), ((1 << 31) + 1, 1)].map(|(c, k)| chunks(c, k, None)));
    sparsifiers.extend([tile(0, 1, 1), tile(1, 0, 1), tile(1, 1, 0)]);
    exact(chunks(1 << 31, u32::MAX, None), FEEDBACK);
    for sparsifier in sparsifiers {
        refuse(sparsifier, Quantizer::Float32, FEEDBACK);
    }
    let residual = |decay| Memory::Residual(Residual { decay, ..Residual::PLAIN });
    let momentum = |momentum| Memory::from(MomentumCorrection { momentum, ..MOMENTUM });
    let clip = |clip| Memory::from(MomentumCorrection { clip: Some(clip), ..MOMENTUM });
    let beta2 = |beta2| Memory::from(AdamCorrection { beta2, ..ADAM });
    let eps = |eps| Memory::from(AdamCorrection { eps, ..ADAM });
    let mut memories: Vec<Memory> = [0.0, 1.5, f32::NAN].map(residual).to_vec();
    memories.extend([0.0, -1.0, 1.1, f32::NAN].map(low_pass));
    memories.extend([-0.1, 1.0, f32::NAN].map(momentum));
    memories.extend([0.0, -1.0, f32::NAN, f32::INFINITY].map(clip));
    memories.extend([-0.1, 1.0, f64::NAN].map(beta2));
    memories.extend([0.0, -1.0, 1e-39, 1e39, f64::INFINITY, f64::NAN].map(eps));
    for memory in memories {
        refuse(top(1), Quantizer::Float32, memory);
    }
    let uniform =
        |bits, block| Quantizer::Uniform(Uniform { bits, block, norm: Norm::L2, seed: 0 });
    let ternary = |clip| Quantizer::Ternary(Ternary { clip: Some(clip), seed: 0 });
    let mut quantizers = vec![uniform(1, 8), uniform(9, 8), uniform(4, 0)];
    quantizers.extend([TwoMeans { column: Some(0) }.into(), ternary(0.0), ternary(f32::NAN)]);
    // Nobody says the magnitude.
    quantizers.push(SignScale { magnitude: Magnitude::Selector }.into());
    for quantizer in quantizers {
        refuse(Sparsifier::All, quantizer, FEEDBACK);
        refuse(top(1), quantizer, FEEDBACK);
    }
    let random = RandomK { amount: Amount::Count(1), block: false, seed: 0, scaled: true };
    refuse(random.into(), Quantizer::Float32, FEEDBACK);
    refuse(Sparsifier::All, Quantizer::Float32, Memory::MomentumCorrection(MOMENTUM));
}

#[test]
fn a_state_is_untouched_by_a_limit_that_no_frame_keeps() {
    for indices in
        [IndexCoding::Auto, IndexCoding::EliasFano, IndexCoding::Rice, IndexCoding::Bitmap]
    {
        for sparsifier in sparsifiers() {
            let codec = Codec { indices, ..exact(sparsifier, FEEDBACK) };
            let mut state = codec.init_state(1000).unwrap();
            encode(&codec, &gradient(1000, 1), &mut state);
            let (x, before, empty) = (gradient(1000, 2), contents(&state), frame::HEADER_LEN);
            let (result, _) = attempt(&codec, Input::F32(&x), &mut state, Some(empty - 1));
            assert!(matches!(result, Err(Error::LimitTooSmall { .. })), "{codec:?}");
            assert_eq!(contents(&state), before);
            // A frame of no entries fits exactly, unless it has to hold all.
            let (result, out) = attempt(&codec, Input::F32(&x), &mut state, Some(empty));
            match sparsifier {
                Sparsifier::All => assert_eq!(contents(&state), before),
                _ => assert_eq!((result.unwrap().count, out.len()), (0, empty)),
            }
        }
    }
}

#[test]
fn the_norm_of_the_residual_is_its_sum_of_squares_in_float64() {
    for memory in Memory::examples().into_iter().filter(|&memory| memory != Memory::None) {
        let codec = exact(top(1), memory);
        for len in [0, 1, 15, 16, 17, 100_000] {
            let x: Vec<f32> = (0..len).map(|i| (i as f32 - 5.0) * 1e30).collect();
            let mut state = codec.init_state(len).unwrap();
            state.set_residual(&x).unwrap();
            let squares = floats(state.stored_residual()).into_iter().map(|v| f64::from(v).powi(2));
            let expected = squares.sum::<f64>().sqrt();
            let norm = state.residual_norm().unwrap();
            assert!((norm - expected).abs() <= 1e-12 * expected, "{norm} {expected}");
        }
    }
}
