//! A step of momentum before sparsification, and what it adds to the velocity.
//!
//! Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth
//! for Distributed Training", ICLR 2018, section 3.2: momentum is applied to the local gradient, and
//! what is left over accumulates the result, not the gradient.
//!
//! The four slices have the same length. Each operation is rounded to float32 on its own; a momentum
//! below the smallest normal number is zero.

use super::normal_or_zero;
use super::stamp::stamp;

/// How a gradient `g` moves a momentum `u`, and what is added to the velocity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// The factor `m`, in [0, 1).
    pub momentum: f32,
    /// False: `u <- g + m * u`, and `u` is added. True: `u <- m * (g + u)`, and `g + u` is added.
    pub nesterov: bool,
    /// What the gradient is multiplied by first.
    pub scale: f32,
}

impl Rule {
    /// The next momentum, and what is added to the velocity.
    #[inline(always)]
    pub fn of(self, gradient: f32, momentum: f32) -> (f32, f32) {
        let gradient = self.scale * gradient;
        if self.nesterov {
            let next = normal_or_zero(self.momentum * (gradient + momentum));
            (next, gradient + next)
        } else {
            let next = normal_or_zero(gradient + self.momentum * momentum);
            (next, next)
        }
    }
}

#[inline(always)]
fn body(next: &mut [f32], update: &mut [f32], gradient: &[f32], momentum: &[f32], rule: Rule) {
    let out = next.iter_mut().zip(update);
    // The choice is made outside of the loop.
    if rule.nesterov {
        let rule = Rule { nesterov: true, ..rule };
        for (((next, update), &g), &u) in out.zip(gradient).zip(momentum) {
            (*next, *update) = rule.of(g, u);
        }
    } else {
        let rule = Rule { nesterov: false, ..rule };
        for (((next, update), &g), &u) in out.zip(gradient).zip(momentum) {
            (*next, *update) = rule.of(g, u);
        }
    }
}

stamp!(fn(next: &mut [f32], update: &mut [f32], gradient: &[f32], momentum: &[f32], rule: Rule) => body);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::{levels_and_lengths, tensor};

    #[test]
    fn equals_the_rule_on_every_level() {
        levels_and_lengths(|kernels, gradient| {
            let n = gradient.len();
            let momentum = tensor(n, 41);
            for (nesterov, scale) in [(false, 1.0), (true, 1.0), (false, 0.3), (true, 0.3)] {
                let rule = Rule { momentum: 0.9, nesterov, scale };
                let (mut next, mut update) = (vec![f32::NAN; n], vec![f32::NAN; n]);
                kernels.momentum(&mut next, &mut update, &gradient, &momentum, rule);
                for i in 0..n {
                    let (u, w) = rule.of(gradient[i], momentum[i]);
                    let given = (next[i].to_bits(), update[i].to_bits());
                    assert_eq!(given, (u.to_bits(), w.to_bits()), "{:?} {i}", kernels.level());
                }
            }
        });
    }

    #[test]
    fn is_what_the_paper_says() {
        let plain = Rule { momentum: 0.5, nesterov: false, scale: 1.0 };
        assert_eq!(plain.of(3.0, 4.0), (5.0, 5.0));
        assert_eq!(Rule { nesterov: true, ..plain }.of(3.0, 4.0), (3.5, 6.5));
        assert_eq!(Rule { scale: 2.0, ..plain }.of(3.0, 4.0), (8.0, 8.0));
    }
}
