//! Tensors that go through a codec, step by step.

use gradwire_core::codec::{Codec, Encoded, State, Support, Workspace};
use gradwire_core::frame::{Frame, Scratch};
use gradwire_core::simd::Kernels;
use gradwire_core::{Input, Result};

use crate::bytes::{Bytes, draw};
use crate::drawn::{Family, Tensor, limit, positions};

/// Any codec, if its parts go together.
pub fn codec(bytes: &mut Bytes<'_>, numel: usize) -> Option<Codec> {
    draw(bytes, |draw| Family::draw(draw).codec(numel, draw).ok())
}

/// What is encoded in one step, and how.
#[derive(Debug)]
pub struct Step {
    tensor: Tensor,
    positions: Option<Vec<u32>>,
    may_trim: bool,
    limit: Option<usize>,
}

impl Step {
    pub fn draw(bytes: &mut Bytes<'_>, codec: &Codec, numel: usize) -> Self {
        let tensor = bytes.tensor(numel);
        draw(bytes, |draw| Self {
            tensor,
            positions: draw.once_in(4).then(|| positions(numel, draw)),
            may_trim: draw.below(4) > 0,
            limit: limit(codec.max_encoded_len(numel), draw),
        })
    }
}

/// A tensor that is encoded at one level, with a state of its own.
#[derive(Debug)]
pub struct Run {
    codec: Codec,
    pub state: State,
    kernels: &'static Kernels,
    workspace: Workspace,
    pub frame: Vec<u8>,
    /// The bits of what the last frame stands for.
    pub decoded: Vec<u32>,
}

impl Run {
    pub fn new(codec: Codec, numel: usize, kernels: &'static Kernels) -> Self {
        let state = codec.init_state(numel).unwrap();
        let workspace = Workspace::with(kernels, 1);
        Self { codec, state, kernels, workspace, frame: Vec::new(), decoded: Vec::new() }
    }

    pub fn step(&mut self, step: &Step) -> Result<Encoded> {
        let Self { codec, state, workspace, frame, .. } = self;
        let (input, limit) = (step.tensor.input(), step.limit);
        match &step.positions {
            Some(positions) => {
                let support = Support { positions, may_trim: step.may_trim };
                codec.encode_at(input, state, support, limit, workspace, frame)
            }
            None => codec.encode_into(input, state, limit, workspace, frame),
        }
    }

    /// A step that keeps its promises: a frame within its limits, or a state as it was.
    pub fn checked(&mut self, step: &Step) -> Result<Encoded> {
        let (numel, before) = (self.state.numel(), self.seen());
        let result = self.step(step);
        if let Ok(encoded) = &result {
            let most = self.codec.max_encoded_len(numel);
            let given = self.codec.max_len_of(numel, encoded.count);
            let promised = if step.positions.is_some() { given } else { most };
            let (len, limit) = (self.frame.len(), step.limit.unwrap_or(usize::MAX));
            assert!(len <= promised.min(limit), "{len} bytes of {promised}, {step:?}, {self:?}");
            let frame = Frame::parse(&self.frame, Some(numel as u64)).unwrap();
            let mut decoded = vec![0.0; numel];
            frame.with(self.kernels).decode_into(&mut decoded, &mut Scratch::default()).unwrap();
            self.decoded = decoded.into_iter().map(f32::to_bits).collect();
        } else {
            assert_eq!(self.seen(), before);
        }
        result
    }

    /// Loads what is valid of a checkpoint; nothing else changes anything.
    pub fn load(&mut self, scalars: &[(String, f64)], residual: &[f32], momentum: &[f32]) {
        let before = self.seen();
        if self.state.load_scalars(scalars).is_ok() {
            for (name, value) in self.state.scalars() {
                let given = scalars.iter().find(|given| given.0 == name).unwrap().1;
                assert!(
                    value == given || value as f32 == given as f32,
                    "{name}: {given} to {value}"
                );
            }
        } else {
            assert_eq!(self.seen(), before);
        }
        let finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
        let taken = self.state.set_residual(residual).is_ok();
        assert_eq!(taken, self.state.stored_residual().is_some() && finite(residual));
        let taken = self.state.set_momentum(momentum).is_ok();
        assert_eq!(taken, self.state.momentum().is_some() && finite(momentum));
        let negative = momentum.iter().any(|&value| value < 0.0);
        let taken = self.state.set_second_moment(momentum).is_ok();
        let may = finite(momentum) && !negative;
        assert_eq!(taken, self.state.second_moment().is_some() && may);
    }

    /// All of the state that can be seen, to the bit.
    pub fn seen(&self) -> (Vec<u32>, Vec<(String, u64)>) {
        let floats = [self.state.residual(), self.state.momentum(), self.state.second_moment()];
        let bits = floats.into_iter().flatten().flatten().map(|value| value.to_bits());
        let rounded = match self.state.stored_residual() {
            Some(Input::BF16(values)) => values,
            _ => &[],
        };
        let bits = bits.chain(rounded.iter().map(|value| value.to_bits().into()));
        let scalars = self.state.scalars().into_iter().map(|(name, v)| (name, v.to_bits()));
        (bits.collect(), scalars.collect())
    }
}
