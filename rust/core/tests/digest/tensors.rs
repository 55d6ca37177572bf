//! Gradients for the digest: windows of a few long sequences, drawn once, with peculiarities.

use super::drawn::{DTYPES, Numbers, Tensor};
use super::laws::{Law, Rng};

/// Entries of each sequence.
const LONG: usize = 1 << 19;

const LAWS: [Law; 6] =
    [Law::Gaussian, Law::Laplace, Law::StudentT, Law::HeavyT, Law::ScaleMix, Law::HalfZeros];

/// One long sequence for each law.
#[derive(Debug)]
pub struct Pool(Vec<Vec<f32>>);

impl Pool {
    pub fn new() -> Self {
        let draw = |law: &Law| {
            let mut rng = Rng(11);
            (0..LONG).map(|_| law.draw(&mut rng) as f32).collect()
        };
        Self(LAWS.iter().map(draw).collect())
    }

    /// A gradient of `numel` elements.
    pub fn gradient(&self, numel: usize, draw: &mut Numbers<'_>) -> Tensor {
        let sequence = &self.0[draw.below(LAWS.len() as u64) as usize];
        let start = draw.below((LONG - numel) as u64) as usize;
        let scale = draw.pick(&[1.0, 1.0, 0.03, 2e-5, 700.0]);
        let mut x: Vec<f32> = sequence[start..start + numel].iter().map(|x| x * scale).collect();
        let (dtype, kind) = (draw.pick(&DTYPES), draw.below(12));
        match kind {
            0 => x.fill(0.0),
            1 => x.fill(draw.pick(&[-0.25, 1.0, 1e-41, 3e38])),
            // Many of the same magnitude.
            2 => x.iter_mut().for_each(|x| *x = (*x / scale * 4.0).trunc() * 0.25),
            // Subnormal, some of them zero.
            3 => x.iter_mut().for_each(|x| *x *= 1e-40 / scale),
            // Near the largest, but so that sums of a few do not overflow.
            4 => x.iter_mut().for_each(|x| *x = x.clamp(-3.0, 3.0) * 1e36),
            5 => {
                let at = draw.below(numel.max(1) as u64) as usize;
                x.iter_mut().enumerate().filter(|(i, _)| *i != at).for_each(|(_, x)| *x = 0.0);
            }
            6 => x.iter_mut().step_by(3).for_each(|x| *x = -0.0),
            _ => {}
        }
        let mut tensor = Tensor::of(dtype, x);
        if numel > 0 && draw.once_in(24) {
            tensor.spoil(draw.below(numel as u64) as usize);
        }
        tensor
    }
}
