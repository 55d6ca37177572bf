//! GPTQ: Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
//! Pre-trained Transformers", ICLR 2023, Algorithm 1, with the columns of the largest inputs first.
//!
//! The grids are those of the weights as they are; see [`factor`] for why this needs no inverse.

use std::sync::atomic::AtomicBool;

use super::factor::{self, Factor};
use super::gram::go_on;
use super::layer::{Layer, Solved};
use super::strip::Strip;
use crate::simd::columns::{Lane, STRIP, Turns};
use crate::simd::in_standard_mode;
use crate::simd::product::{Matrix, MatrixMut};
use crate::{Result, allocate};

/// Columns that are rounded in turn before a product takes on what they leave.
const PANEL: usize = 64;
const _: () = assert!(factor::PANEL.is_multiple_of(PANEL), "its rows are of one panel there");

/// Codes in turn, each with what is left of those before it; and the grids of the weights. `stop` may be set
/// meanwhile, and then this ends with [`Error::CalledOff`](crate::Error::CalledOff).
pub fn gptq(layer: &Layer<'_>, stop: &AtomicBool) -> Result<Solved> {
    let factor = in_standard_mode(|| Factor::new(layer, stop))?;
    layer.solve(stop, |strips| {
        let mut strips: Vec<_> = strips.iter_mut().collect();
        round(layer, &factor, &mut strips, stop).map(drop)
    })
}

/// Rounds strips on the grids that they have. Gives the objectives of their rows.
pub(super) fn round(
    layer: &Layer<'_>,
    factor: &Factor,
    strips: &mut [&mut Strip],
    stop: &AtomicBool,
) -> Result<Vec<[f64; STRIP]>> {
    let count = factor.order.len();
    let mut left: Vec<Vec<Lane>> =
        strips.iter().map(|_| allocate::zeros(count)).collect::<Result<_>>()?;
    let mut objectives = vec![[0.0; STRIP]; strips.len()];
    let blocks: Vec<u32> = factor.order.iter().map(|&i| i / layer.block as u32).collect();
    let (mut targets, mut codes) = ([[0.0; STRIP]; PANEL], [[0.0; STRIP]; PANEL]);
    for start in (0..count).step_by(PANEL) {
        go_on(stop)?;
        let many = PANEL.min(count - start);
        let columns = &factor.order[start..start + many];
        let numbers = left.iter_mut().zip(&mut objectives);
        for (strip, (left, objectives)) in strips.iter_mut().zip(numbers) {
            let (before, own) = left.split_at_mut(start);
            let (targets, own) = (&mut targets[..many], &mut own[..many]);
            for ((target, own), &column) in targets.iter_mut().zip(&mut *own).zip(columns) {
                *own = strip.weights[column as usize];
                *target = *own;
            }
            layer.kernels.add_product(
                MatrixMut { values: targets.as_flattened_mut(), stride: STRIP },
                factor.from(start, 0),
                Matrix { values: before.as_flattened(), stride: STRIP },
                [many, start, STRIP],
            );
            let turns = Turns {
                factor: factor.from(start, start),
                grids: &strip.grids,
                blocks: &blocks[start..start + many],
                cells: layer.cells,
            };
            let codes = &mut codes[..many];
            layer.kernels.round_in_turn(turns, targets, own, codes);
            let pivots = &factor.pivots[start..start + many];
            for ((code, &column), (target, pivot)) in
                codes.iter().zip(columns).zip(targets.iter().zip(pivots))
            {
                strip.codes[column as usize] = *code;
                let values = strip.values(layer.block, column as usize);
                for ((sum, value), target) in objectives.iter_mut().zip(values).zip(target) {
                    let error = f64::from(value - target);
                    *sum += pivot * (error * error);
                }
            }
        }
    }
    Ok(objectives)
}
