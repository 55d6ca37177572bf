//! A tensor that goes through a codec step by step, and the digest of all that comes of it.

use gradwire_core::codec::{Codec, Encoded, State, Support, Workspace};
use gradwire_core::frame::{Frame, Scratch};
use gradwire_core::memory::Memory;
use gradwire_core::sparsify::Sparsifier;
use gradwire_core::{Error, Input, Result};

use super::drawn::{Family, Numbers, limit, positions};
use super::tensors::Pool;

/// 64 bits that depend on every word that was added, in its order.
#[derive(Debug, Clone, Copy, Default)]
pub struct Digest(pub u64);

impl Digest {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn words(&mut self, words: &[u64]) {
        for &word in words {
            self.word(word);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        for &byte in rest {
            self.word(u64::from(byte));
        }
    }

    fn floats(&mut self, values: &[f32]) {
        self.word(values.len() as u64);
        let (pairs, rest) = values.as_chunks::<2>();
        let bits = |value: f32| u64::from(value.to_bits());
        for &[a, b] in pairs {
            self.word(bits(a) << 32 | bits(b));
        }
        for &value in rest {
            self.word(bits(value));
        }
    }

    fn result<T>(&mut self, result: &Result<T>) {
        let words = match result {
            Ok(_) => [0, 0, 0],
            Err(Error::NonFinite { count, first }) => [1, *count, *first],
            Err(Error::LimitTooSmall { limit, need }) => [2, *limit, *need],
            Err(Error::Argument { .. }) => [3, 0, 0],
            Err(Error::Changed) => [4, 0, 0],
            Err(_) => [5, 0, 0],
        };
        self.words(&words);
    }

    fn encoded(&mut self, result: &Result<Encoded>) {
        self.result(result);
        if let Ok(Encoded { count, target, threshold, trimmed, .. }) = *result {
            self.floats(&[threshold]);
            let target = [u64::from(target.is_some()), target.unwrap_or(0)];
            self.words(&[count, trimmed, target[0], target[1]]);
        }
    }

    fn state(&mut self, state: &State) {
        match state.stored_residual() {
            Some(Input::BF16(values)) => self.bytes(bytemuck::cast_slice(values)),
            _ => self.floats(state.residual().unwrap_or_default()),
        }
        self.floats(state.momentum().unwrap_or_default());
        if let Some(second) = state.second_moment() {
            self.floats(second);
        }
        let mut scalars = state.scalars();
        scalars.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, value) in scalars {
            self.bytes(name.as_bytes());
            self.word(value.to_bits());
        }
        self.word(u64::from(state.can_roll_back()));
    }
}

/// What the tensors of a family go through.
pub struct Run<'a> {
    family: &'a Family,
    pool: &'a Pool,
    digest: &'a mut Digest,
    workspace: &'a mut Workspace,
    frame: Vec<u8>,
}

impl<'a> Run<'a> {
    pub fn new(
        family: &'a Family,
        pool: &'a Pool,
        digest: &'a mut Digest,
        workspace: &'a mut Workspace,
    ) -> Self {
        Self { family, pool, digest, workspace, frame: Vec::new() }
    }

    /// Encodes a tensor of `numel` elements in so many steps.
    pub fn steps(&mut self, numel: usize, steps: usize, draw: &mut Numbers<'_>) {
        let codec = self.family.codec(numel, draw);
        self.digest.result(&codec);
        let Ok(codec) = codec else { return };
        self.digest.word(codec.max_encoded_len(numel) as u64);
        let mut state = codec.init_state(numel).unwrap().identified(draw.below(5), draw.below(5));
        for _ in 0..steps {
            let tensor = self.pool.gradient(numel, draw);
            if draw.once_in(3) {
                self.preview(&codec, tensor.input(), &state);
            }
            if state.learning_rate().is_some() {
                let rate = draw.pick(&[0.0, 1e-3, 0.3, 1.0, 1e30]);
                state.set_learning_rate(rate).unwrap();
            }
            self.encode(&codec, tensor.input(), &mut state, draw);
            self.digest.state(&state);
            match draw.below(8) {
                0 | 1 => {
                    let undone = state.rollback();
                    self.digest.result(&undone);
                    self.digest.state(&state);
                }
                2 => state = self.saved(&codec, &state),
                3 => self.flush(&codec, &mut state),
                _ => {}
            }
        }
    }

    fn preview(&mut self, codec: &Codec, input: Input<'_>, state: &State) {
        let mut seen = vec![0.0; input.len()];
        let result = codec.preview(input, state, self.workspace, &mut seen);
        self.digest.result(&result);
        if result.is_ok() {
            self.digest.floats(&seen);
        }
    }

    fn encode(
        &mut self,
        codec: &Codec,
        input: Input<'_>,
        state: &mut State,
        draw: &mut Numbers<'_>,
    ) {
        let longest = codec.max_encoded_len(input.len());
        let limit = limit(longest, draw);
        let custom = matches!(codec.sparsifier(), Sparsifier::Custom(_));
        let (workspace, frame) = (&mut *self.workspace, &mut self.frame);
        let result = if draw.once_in(5) || (custom && !draw.once_in(8)) {
            let positions = positions(input.len(), draw);
            let support = Support { positions: &positions, may_trim: !draw.once_in(4) };
            codec.encode_at(input, state, support, limit, workspace, &mut *frame)
        } else {
            codec.encode_into(input, state, limit, workspace, &mut *frame)
        };
        self.digest.encoded(&result);
        if result.is_ok() {
            assert!(limit.is_none_or(|limit| frame.len() <= limit));
            self.decode(input.len());
        } else {
            assert!(self.frame.is_empty());
        }
    }

    fn decode(&mut self, numel: usize) {
        let frame = Frame::parse(&self.frame, Some(numel as u64)).unwrap();
        let mut out = vec![1.0; numel];
        let mut scratch = Scratch::default();
        frame.decode_into(&mut out, &mut scratch).unwrap();
        self.digest.bytes(&self.frame);
        self.digest.floats(&out);
        frame.decode_add(&mut out, -0.3, &mut scratch).unwrap();
        self.digest.floats(&out);
    }

    fn flush(&mut self, codec: &Codec, state: &mut State) {
        let result = codec.flush_into(state, &mut self.frame);
        self.digest.encoded(&result);
        if result.is_ok() {
            self.decode(state.numel());
        }
        self.digest.state(state);
    }

    /// The state as a checkpoint brings it back.
    fn saved(&mut self, codec: &Codec, state: &State) -> State {
        let mut loaded = codec.init_state(state.numel()).unwrap();
        loaded.load_scalars(&state.scalars()).unwrap();
        if codec.memory() != Memory::None {
            loaded.set_stored_residual(state.stored_residual().unwrap()).unwrap();
        }
        if let Some(momentum) = state.momentum() {
            loaded.set_momentum(momentum).unwrap();
        }
        if let Some(second) = state.second_moment() {
            loaded.set_second_moment(second).unwrap();
        }
        self.digest.state(&loaded);
        loaded
    }
}
