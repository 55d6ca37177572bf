//! A step of Adam before sparsification, without its first moment.
//!
//! Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1 with a beta1 of
//! zero: what a residual carries from step to step takes the place of the first moment.
//!
//! The four slices have the same length. Each operation is rounded to float32 on its own, the square
//! root and the quotient exactly, as IEEE 754 has it: every level gives the same bits.

use super::normal_or_zero;
use super::stamp::stamp;

/// How a gradient `g` moves a second moment `v`, and what step it makes of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// The factor `beta2` of the second moment, in [0, 1].
    pub keep: f32,
    /// What a square is multiplied by, `1 - beta2`, above zero.
    pub take: f32,
    /// What the root of the second moment is multiplied by: 1 / sqrt(1 - beta2^t), at least 1.
    pub correction: f32,
    /// What is added to that, above zero.
    pub eps: f32,
    /// What a magnitude is multiplied by to be the least that it is divided by: one over the bound of a
    /// step at a rate of 1, at most 1.
    pub least: f32,
    /// What the step is multiplied by, the learning rate.
    pub rate: f32,
}

impl Rule {
    /// The next second moment, `beta2 * v + (1 - beta2) * g * g`, and the step,
    /// `rate * (g / max(correction * sqrt(v) + eps, least * |g|))`.
    ///
    /// A second moment beyond float32 becomes the largest that there is, one below the smallest normal
    /// number zero. There alone, where it is no longer made of this gradient's square, is its root less
    /// than the paper's bound of a step has it (section 2.1), which is what `least` puts right. A gradient
    /// that is not finite makes no step that is, whatever the rate.
    #[inline(always)]
    pub fn of(self, gradient: f32, second: f32) -> (f32, f32) {
        let square = (self.take * gradient) * gradient;
        let next = self.keep * second + square;
        // In this order NaN stays what it is, as in the instruction that this is.
        let next = normal_or_zero(if f32::MAX < next { f32::MAX } else { next });
        let root = self.correction * next.sqrt() + self.eps;
        let least = (self.least * gradient).abs();
        let root = if root < least { least } else { root };
        (next, self.rate * (gradient / root))
    }
}

#[inline(always)]
fn body(next: &mut [f32], step: &mut [f32], gradient: &[f32], second: &[f32], rule: Rule) {
    let out = next.iter_mut().zip(step);
    for (((next, step), &g), &v) in out.zip(gradient).zip(second) {
        (*next, *step) = rule.of(g, v);
    }
}

stamp!(fn(next: &mut [f32], step: &mut [f32], gradient: &[f32], second: &[f32], rule: Rule) => body);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::{levels_and_lengths, tensor};

    const RULE: Rule =
        Rule { keep: 0.999, take: 0.001, correction: 31.6, eps: 1e-8, least: 0.9993, rate: 0.002 };

    #[test]
    fn equals_the_rule_on_every_level() {
        levels_and_lengths(|kernels, mut gradient| {
            let n = gradient.len();
            let mut second: Vec<f32> = tensor(n, 43).iter().map(|v| v.abs()).collect();
            let odd = [f32::MAX, 3e38, 1e-45, f32::INFINITY, f32::NAN];
            for (i, &value) in odd.iter().enumerate().filter(|(i, _)| 3 * i + 2 < n) {
                gradient[3 * i] = value;
                second[3 * i + 1] = [f32::MAX, 1e-45, 1e-38][i % 3];
                (gradient[3 * i + 2], second[3 * i + 2]) = (-value, f32::MAX);
            }
            for rule in [RULE, Rule { rate: 0.0, ..RULE }, Rule { keep: 0.0, take: 1.0, ..RULE }] {
                let (mut next, mut step) = (vec![f32::NAN; n], vec![f32::NAN; n]);
                kernels.adam(&mut next, &mut step, &gradient, &second, rule);
                for i in 0..n {
                    let (v, s) = rule.of(gradient[i], second[i]);
                    assert_eq!(next[i].to_bits(), v.to_bits(), "{:?} {i}", kernels.level());
                    let same = step[i].to_bits() == s.to_bits() || step[i].is_nan() && s.is_nan();
                    assert!(same, "{:?} {i} {} {s}", kernels.level(), step[i]);
                }
            }
        });
    }

    #[test]
    fn is_what_the_paper_says() {
        let rule =
            Rule { keep: 0.75, take: 0.25, correction: 2.0, eps: 1.0, least: 1.0, rate: 0.5 };
        // v = 0.75 * 4 + 0.25 * 16; 0.5 * 4 / (2 * sqrt(v) + 1).
        assert_eq!(rule.of(4.0, 4.0), (7.0, 0.5 * (4.0 / (2.0 * 7.0f32.sqrt() + 1.0))));
    }

    #[test]
    fn every_finite_gradient_makes_a_finite_step() {
        for g in [0.0, 1e-45, 1e-38, 1e-20, 1.0, 1e19, 1e30, f32::MAX] {
            for v in [0.0, 1e-45, 1.0, 1e38, f32::MAX] {
                for rule in [RULE, Rule { correction: 1.0, eps: f32::MIN_POSITIVE, ..RULE }] {
                    let (next, step) = rule.of(g, v);
                    assert!(next.is_finite() && next >= 0.0 && step.is_finite(), "{g} {v}");
                }
            }
        }
    }

    #[test]
    fn nothing_but_a_finite_gradient_makes_a_finite_step() {
        for g in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            for rate in [0.0, 1e-3, 1.0] {
                assert!(!Rule { rate, ..RULE }.of(g, 1.0).1.is_finite());
            }
        }
    }
}
