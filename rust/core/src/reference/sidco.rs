//! SIDCo's multi-stage threshold, by filtering a list of magnitudes once a stage.

use crate::fit::{Distribution, Moments, Plan, first_threshold, tail_threshold};

/// What a multi-stage fit arrives at.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The last threshold; entries strictly above it are selected.
    pub threshold: f64,
    /// How many entries that are.
    pub count: u64,
    /// Stages that were really fitted.
    pub stages: u32,
}

/// The threshold on `|values|` that `plan` leads to; `None` where not even stage 1 can be fitted.
pub fn threshold(values: &[f32], dist: Distribution, mut plan: Plan) -> Option<Fit> {
    let mut survivors: Vec<f64> = values.iter().map(|&x| f64::from(x).abs()).collect();
    let n = survivors.len() as u64;
    let mut eta = first_threshold(dist, &moments(&survivors), n, plan.first())?;
    survivors.retain(|&a| a > eta);
    let mut stages = 1;
    while let Some(rho) = plan.next(survivors.len() as u64) {
        let excess: Vec<f64> = survivors.iter().map(|&a| a - eta).collect();
        let Some(next) = tail_threshold(dist, &moments(&excess), eta, rho) else { break };
        eta = next;
        survivors.retain(|&a| a > eta);
        stages += 1;
    }
    Some(Fit { threshold: eta, count: survivors.len() as u64, stages })
}

/// The same as the authors' code does it, which fits zeros like any other entry. Where it takes
/// logarithms, machine epsilon times the L2 norm is added to the entries: zeros count as that.
pub fn published(values: &[f32], dist: Distribution, plan: Plan) -> Option<Fit> {
    let norm = libm::sqrt(values.iter().map(|&x| f64::from(x) * f64::from(x)).sum());
    let least = (norm * f64::EPSILON) as f32;
    let lifted: Vec<f32> = values.iter().map(|&x| if x == 0.0 { least } else { x }).collect();
    threshold(&lifted, dist, plan)
}

/// The moments of a list of magnitudes.
pub fn moments(magnitudes: &[f64]) -> Moments {
    let mut m = Moments::default();
    for &a in magnitudes {
        if a == 0.0 {
            m.zeros += 1;
        } else {
            m.count += 1;
            m.sum += a;
            m.sum_sq += a * a;
            m.sum_ln += libm::log(a);
        }
    }
    m
}
