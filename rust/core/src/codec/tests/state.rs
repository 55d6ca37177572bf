//! Errors, rollback, checkpoints and refused arguments.

use super::*;

#[test]
fn bad_input_leaves_the_state_as_it_was() {
    let n = 5000;
    for memory in [FEEDBACK, Memory::None] {
        for codec in codecs(memory) {
            if codec.sparsifier().is_drawn() && memory == Memory::None {
                // It looks at what it sends alone.
                continue;
            }
            let mut state = codec.init_state(n).unwrap();
            encode(&codec, &gradient(n, 1), &mut state);
            let before = (state.residual().map(<[f32]>::to_vec), state.scalars());
            let (mut out, mut workspace) = (vec![1], Workspace::default());
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = gradient(n, 2);
                (x[4000], x[77]) = (bad, bad);
                let result =
                    codec.encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut out);
                assert_eq!(result, Err(Error::NonFinite { count: 2, first: 77 }), "{codec:?}");
                assert_eq!((state.residual().map(<[f32]>::to_vec), state.scalars()), before);
                assert!(out.is_empty());
                assert!(state.rollback().is_err());
            }
        }
    }
}

#[test]
fn rollback_undoes_the_last_encode_exactly() {
    let n = 10_000;
    for codec in codecs(FEEDBACK) {
        let mut state = codec.init_state(n).unwrap();
        assert!(state.rollback().is_err());
        encode(&codec, &gradient(n, 1), &mut state);
        let before = (state.residual().unwrap().to_vec(), state.scalars());
        let (first, _) = encode(&codec, &gradient(n, 2), &mut state);
        let after = (state.residual().unwrap().to_vec(), state.scalars());
        state.rollback().unwrap();
        assert_eq!((state.residual().unwrap().to_vec(), state.scalars()), before);
        assert!(state.rollback().is_err());
        let (again, _) = encode(&codec, &gradient(n, 2), &mut state);
        assert_eq!(again, first);
        assert_eq!((state.residual().unwrap().to_vec(), state.scalars()), after);
    }
}

/// Schedules change the ratio from one encode to the next.
#[test]
fn an_encode_with_another_ratio_that_fails_or_is_undone_leaves_nothing_behind() {
    let n = 20_000;
    let make = |ratio| {
        let sparsifier = sid(ratio, Distribution::Exponential);
        Codec::new(sparsifier, Quantizer::Float32, FEEDBACK, IndexCoding::Auto).unwrap()
    };
    let (codec, other) = (make(0.01), make(0.1));
    let mut state = codec.init_state(n).unwrap();
    for step in 0..8 {
        encode(&codec, &gradient(n, step), &mut state);
    }
    let before = state.scalars();
    let expected = encode(&codec, &gradient(n, 9), &mut state.clone());
    // Undone.
    encode(&other, &gradient(n, 8), &mut state);
    assert_ne!(state.scalars(), before);
    state.rollback().unwrap();
    assert_eq!(state.scalars(), before);
    assert_eq!(encode(&codec, &gradient(n, 9), &mut state.clone()), expected);
    // Failed.
    let (mut x, mut workspace) = (gradient(n, 8), Workspace::default());
    x[5] = f32::NAN;
    let mut out = Vec::new();
    let failed = other.encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut out);
    assert_eq!(failed, Err(Error::NonFinite { count: 1, first: 5 }));
    assert_eq!(state.scalars(), before);
    assert_eq!(encode(&codec, &gradient(n, 9), &mut state), expected);
}

#[test]
fn a_state_is_untouched_by_a_limit_that_no_frame_keeps() {
    for indices in
        [IndexCoding::Auto, IndexCoding::EliasFano, IndexCoding::Rice, IndexCoding::Bitmap]
    {
        for sparsifier in sparsifiers() {
            let codec = Codec::new(sparsifier, Quantizer::Float32, FEEDBACK, indices).unwrap();
            let mut state = codec.init_state(1000).unwrap();
            encode(&codec, &gradient(1000, 1), &mut state);
            let before = (state.residual().unwrap().to_vec(), state.scalars());
            let mut run = |limit| {
                let (x, mut out) = (gradient(1000, 2), Vec::new());
                let result = codec.encode_into(
                    Input::F32(&x),
                    &mut state,
                    Some(limit),
                    &mut Workspace::default(),
                    &mut out,
                );
                (result, out.len(), (state.residual().unwrap().to_vec(), state.scalars()))
            };
            let empty = frame::HEADER_LEN;
            let (result, _, after) = run(empty - 1);
            assert!(matches!(result, Err(Error::LimitTooSmall { .. })), "{codec:?}");
            assert_eq!(after, before);
            // A frame of no entries fits exactly, unless it has to hold all.
            let (result, len, after) = run(empty);
            match sparsifier {
                Sparsifier::All => assert_eq!(after, before),
                _ => assert_eq!((result.unwrap().count, len), (0, empty)),
            }
        }
    }
}

#[test]
fn a_saved_state_goes_on_bit_for_bit() {
    let n = 30_000;
    for codec in codecs(FEEDBACK) {
        let mut state = codec.init_state(n).unwrap();
        for step in 0..4 {
            encode(&codec, &gradient(n, step), &mut state);
        }
        let mut restored = codec.init_state(n).unwrap();
        restored.set_residual(state.residual().unwrap()).unwrap();
        restored.load_scalars(&state.scalars()).unwrap();
        for step in 4..8 {
            let x = gradient(n, step);
            assert_eq!(encode(&codec, &x, &mut state), encode(&codec, &x, &mut restored));
        }
        assert_eq!(state.scalars(), restored.scalars());
    }
}

#[test]
fn a_float64_beyond_float32_is_not_finite() {
    let x = [1.0f64, 1e39];
    let sparsifier = Sparsifier::TopK(TopK { amount: Amount::Count(1) });
    let codec = Codec::new(sparsifier, Quantizer::Float32, FEEDBACK, IndexCoding::Auto).unwrap();
    let mut state = codec.init_state(2).unwrap();
    let result = codec.encode_into(
        Input::F64(&x),
        &mut state,
        None,
        &mut Workspace::default(),
        &mut Vec::new(),
    );
    assert_eq!(result, Err(Error::NonFinite { count: 1, first: 1 }));
}

#[test]
fn a_state_of_another_shape_or_memory_is_refused_and_another_ratio_is_not() {
    let top = |ratio| Sparsifier::TopK(TopK { amount: Amount::Ratio(ratio) });
    let make = |sparsifier, memory| {
        Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto).unwrap()
    };
    let x = gradient(1000, 1);
    let mut state = make(top(0.1), FEEDBACK).init_state(1000).unwrap();
    let mut run = |codec: &Codec, x: &[f32]| {
        codec.encode_into(
            Input::F32(x),
            &mut state,
            None,
            &mut Workspace::default(),
            &mut Vec::new(),
        )
    };
    assert!(matches!(run(&make(top(0.1), FEEDBACK), &x[..999]), Err(Error::Argument { .. })));
    assert!(matches!(run(&make(top(0.1), Memory::None), &x), Err(Error::Argument { .. })));
    assert_eq!(run(&make(top(0.1), FEEDBACK), &x).unwrap().count, 100);
    assert_eq!(run(&make(top(0.01), FEEDBACK), &x).unwrap().count, 10);
    assert!(run(&make(sid(0.01, Distribution::Gamma), FEEDBACK), &x).unwrap().count >= 8);
}

#[test]
fn meaningless_parts_are_refused() {
    let refused = |sparsifier, memory| {
        let result = Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto);
        assert!(matches!(result, Err(Error::Argument { .. })));
    };
    for ratio in [0.0, -0.1, 1.1, f64::NAN, f64::INFINITY] {
        refused(Sparsifier::TopK(TopK { amount: Amount::Ratio(ratio) }), Memory::None);
        refused(Sparsifier::Sid(Sid::new(ratio)), Memory::None);
    }
    refused(Sparsifier::TopK(TopK { amount: Amount::Count(0) }), Memory::None);
    for threshold in [-1.0, f32::NAN, f32::INFINITY] {
        refused(Sparsifier::Threshold(Threshold { threshold }), Memory::None);
    }
    for decay in [0.0, 1.5, f32::NAN] {
        refused(Sparsifier::All, Memory::Residual(Residual { decay, ..Residual::PLAIN }));
    }
    let base = Sid::new(0.01);
    refused(Sparsifier::Sid(Sid { first_ratio: 1.0, ..base }), Memory::None);
    refused(Sparsifier::Sid(Sid { band: Some((1.1, 1.2)), ..base }), Memory::None);
    refused(Sparsifier::Sid(Sid { band: Some((0.8, f64::NAN)), ..base }), Memory::None);
    refused(Sparsifier::Sid(Sid { mode: Mode::Fixed(0), ..base }), Memory::None);
}

#[test]
fn the_norm_of_the_residual_is_its_sum_of_squares_in_float64() {
    let top = Sparsifier::TopK(TopK { amount: Amount::Count(1) });
    let codec = Codec::new(top, Quantizer::Float32, FEEDBACK, IndexCoding::Auto).unwrap();
    for len in [0, 1, 15, 16, 17, 100_000] {
        let x: Vec<f32> = (0..len).map(|i| (i as f32 - 5.0) * 1e30).collect();
        let mut state = codec.init_state(len).unwrap();
        state.set_residual(&x).unwrap();
        let expected = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt();
        let norm = state.residual_norm().unwrap();
        assert!((norm - expected).abs() <= 1e-12 * expected, "{norm} {expected}");
        assert_eq!(norm.to_bits(), state.clone().residual_norm().unwrap().to_bits());
    }
}
