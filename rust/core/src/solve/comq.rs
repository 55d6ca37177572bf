//! COMQ: Zhang, Yang, Wang, Qi, Xin, Li, Yin, "COMQ: A Backpropagation-Free Algorithm for Post-Training Quantization",
//! IEEE Access 2025: coordinate descent, each code and each step at its exact minimum, all else fixed.
//!
//! Ours:
//!
//! * Step and base of a block move together, to their exact minimum.
//! * Codes and grid of a block take turns [`TURNS`] times while they are in a cache. That costs little, as most of
//!   a sweep is the product that tells a block what all others are.
//! * Codes start from GPTQ's where those are better, and before every second sweep GPTQ rounds again, on the grids
//!   that there are by then: rows whose objective falls go on from its codes. That leaves minima which no code
//!   and no grid alone would.
//! * Descent needs the damping on the diagonal, but outputs do not know it: on inputs of rank one, GPTQ's codes were
//!   up to 39 times as good as those that had the smaller damped objective. So each row ends with the best codes
//!   without damping: what it descended to, GPTQ's, or the nearest.

use std::sync::atomic::AtomicBool;

use super::factor::Factor;
use super::gptq;
use super::gram::go_on;
use super::grids::{Rule, Sums};
use super::layer::{Layer, Solved};
use super::objective::{Objective, PIECE, pieces};
use super::strip::{Strip, dots};
use crate::simd::columns::{Descent, Lane, STRIP};
use crate::simd::in_standard_mode;
use crate::simd::product::{Matrix, MatrixMut};
use crate::{Error, Result, allocate};

/// How often codes and grid of a block take turns in a sweep.
const TURNS: usize = 2;

/// How much better, relatively, an objective must be to be sure of it.
const SURE: f64 = 1e-6;

/// Where codes begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// From GPTQ's or the nearest, whichever are better for a row.
    Gptq,
    /// From the nearest.
    Nearest,
}

/// How to descend.
#[derive(Debug, Clone, Copy)]
pub struct Comq {
    /// How often all codes are gone through, at least once.
    pub sweeps: u32,
    /// Where codes begin.
    pub start: Start,
    /// Whether bases move with steps. If not, the centre of a grid stays where it is, as in the paper.
    pub bases: bool,
}

/// Codes and grids by coordinate descent. No row has a larger squared error of outputs than with the nearest codes
/// or, if it starts from them, with GPTQ's. `stop` may be set meanwhile, and then this ends with
/// [`Error::CalledOff`].
pub fn comq(layer: &Layer<'_>, options: Comq, stop: &AtomicBool) -> Result<Solved> {
    if options.sweeps == 0 {
        return Err(Error::argument("sweeps must be at least 1, got 0"));
    }
    let (factor, matrix) = in_standard_mode(|| {
        let factor = match options.start {
            Start::Gptq => Some(Factor::new(layer, stop)?),
            Start::Nearest => None,
        };
        Ok::<_, Error>((factor, Objective::new(layer)?))
    })?;
    let rule = Rule::of(layer, options.bases);
    let mut best = layer.solve(stop, |strips| {
        Group { layer, matrix: &matrix, rule, stop }.solve(options, factor.as_ref(), strips)
    })?;
    let mut losses = best.losses(layer, stop)?;
    let nearest = layer.solve(stop, |_| Ok(()))?;
    let rounded = factor.map(|factor| {
        layer.solve(stop, |strips| {
            let mut strips: Vec<_> = strips.iter_mut().collect();
            gptq::round(layer, &factor, &mut strips, stop).map(drop)
        })
    });
    for other in [Some(Ok(nearest)), rounded].into_iter().flatten() {
        best.improve(&mut losses, &other?, layer, stop)?;
    }
    Ok(best)
}

/// What a strip needs to descend.
struct State {
    /// Values less weights.
    errors: Vec<Lane>,
    /// Of a block: errors times `H`, and codes times its own part of that.
    slopes: Vec<Lane>,
    products: Vec<Lane>,
    /// Errors and slopes of a block when its turn came.
    before: [Vec<Lane>; 2],
    objectives: [f64; STRIP],
    has_changed: bool,
    /// Whether there is a grid that GPTQ has not rounded to.
    has_new_grids: bool,
    is_done: bool,
}

impl State {
    fn new(layer: &Layer<'_>) -> Result<Self> {
        let zeros = allocate::zeros::<Lane>;
        Ok(Self {
            errors: zeros(layer.cols)?,
            slopes: zeros(layer.block)?,
            products: zeros(layer.block)?,
            before: [zeros(layer.block)?, zeros(layer.block)?],
            objectives: [0.0; STRIP],
            has_changed: false,
            has_new_grids: true,
            is_done: false,
        })
    }
}

/// How a group of strips descends.
struct Group<'a> {
    layer: &'a Layer<'a>,
    matrix: &'a Objective,
    rule: Rule,
    stop: &'a AtomicBool,
}

impl Group<'_> {
    fn solve(&self, options: Comq, factor: Option<&Factor>, strips: &mut [Strip]) -> Result<()> {
        let layer = self.layer;
        let states = strips.iter().map(|_| State::new(layer));
        let mut states = states.collect::<Result<Vec<_>>>()?;
        self.measure(strips, &mut states)?;
        if let Some(factor) = factor {
            self.round_again(factor, strips, &mut states)?;
        }
        let starts: Vec<_> = strips
            .iter()
            .zip(&states)
            .map(|(strip, state)| (strip.codes.clone(), strip.grids.clone(), state.objectives))
            .collect();
        for sweep in 0..options.sweeps {
            for state in &mut states {
                state.has_changed = false;
            }
            if let Some(factor) = factor.filter(|_| sweep % 2 == 1) {
                self.round_again(factor, strips, &mut states)?;
            }
            for block in 0..layer.cols / layer.block {
                go_on(self.stop)?;
                for (strip, state) in strips.iter_mut().zip(&mut states) {
                    if !state.is_done {
                        self.visit(block, strip, state);
                    }
                }
            }
            for state in &mut states {
                let may_round = factor.is_some() && state.has_new_grids;
                state.is_done |= !state.has_changed && !may_round;
            }
        }
        self.measure(strips, &mut states)?;
        for ((strip, state), (codes, grids, objectives)) in
            strips.iter_mut().zip(&states).zip(&starts)
        {
            let pairs = state.objectives.iter().zip(objectives).take(strip.rows);
            for (row, (found, start)) in pairs.enumerate() {
                let is_better = *found < start * (1.0 - SURE);
                if !is_better {
                    strip.restore(row, codes, grids);
                }
            }
            for column in (0..layer.cols).filter(|&column| layer.is_dead(column)) {
                strip.round(layer, column);
            }
        }
        Ok(())
    }

    /// Finds errors and objectives.
    fn measure(&self, strips: &[Strip], states: &mut [State]) -> Result<()> {
        let cols = self.layer.cols;
        for (strip, state) in strips.iter().zip(&mut *states) {
            strip.errors(self.layer.block, &mut state.errors);
            state.objectives = [0.0; STRIP];
        }
        for piece in pieces(0..cols) {
            go_on(self.stop)?;
            for State { errors, objectives, .. } in &mut *states {
                let mut slopes = [[0.0; STRIP]; PIECE];
                let slopes = &mut slopes[..piece.len()];
                let shape = [piece.len(), cols, STRIP];
                let rows = self.matrix.from(piece.start, 0);
                self.layer.kernels.add_product(whole(slopes), rows, lanes(errors), shape);
                for (sum, part) in objectives.iter_mut().zip(dots(&errors[piece.clone()], slopes)) {
                    *sum += part;
                }
            }
        }
        Ok(())
    }

    /// Rounds by GPTQ, on the grids that there are. Rows whose objective does not fall stay as they are.
    fn round_again(
        &self,
        factor: &Factor,
        strips: &mut [Strip],
        states: &mut [State],
    ) -> Result<()> {
        let layer = self.layer;
        let (mut strips, mut states): (Vec<_>, Vec<_>) =
            strips.iter_mut().zip(states).filter(|(_, state)| state.has_new_grids).unzip();
        let before: Vec<_> = strips.iter().map(|strip| strip.codes.clone()).collect();
        let found = gptq::round(layer, factor, &mut strips, self.stop)?;
        for (((strip, state), codes), found) in
            strips.iter_mut().zip(&mut states).zip(&before).zip(found)
        {
            let grids = strip.grids.clone();
            state.has_new_grids = false;
            for row in 0..strip.rows {
                let found = found[row] * self.matrix.power;
                if found < state.objectives[row] * (1.0 - SURE) {
                    state.objectives[row] = found;
                    state.has_changed = true;
                } else {
                    strip.restore(row, codes, &grids);
                }
            }
            strip.errors(layer.block, &mut state.errors);
        }
        Ok(())
    }

    /// Tells a block what all others are, and has its codes and its grid take turns.
    fn visit(&self, block: usize, strip: &mut Strip, state: &mut State) {
        let (cols, many) = (self.layer.cols, self.layer.block);
        let start = block * many;
        let State { errors, slopes, before, .. } = &mut *state;
        slopes.fill([0.0; STRIP]);
        let rows = self.matrix.from(start, 0);
        self.layer.kernels.add_product(whole(slopes), rows, lanes(errors), [many, cols, STRIP]);
        before[0].copy_from_slice(&errors[start..start + many]);
        before[1].copy_from_slice(slopes);
        let mut any = false;
        for turn in 0..TURNS {
            let codes = self.descend(block, strip, state);
            if turn > 0 && !codes {
                break;
            }
            let grids = self.refit(block, strip, state);
            any |= codes | grids;
            state.has_new_grids |= grids;
            if !grids {
                break;
            }
        }
        if any {
            state.has_changed = true;
            let State { errors, slopes, before, objectives, .. } = state;
            // What changed, times the mean of the slopes before and after it, and that twice.
            for (i, error) in errors[start..start + many].iter().enumerate() {
                for (x, objective) in objectives.iter_mut().enumerate() {
                    let change = f64::from(error[x]) - f64::from(before[0][i][x]);
                    *objective += change * (f64::from(before[1][i][x]) + f64::from(slopes[i][x]));
                }
            }
        }
    }

    /// Has the codes of a block descend. Tells whether any has changed.
    fn descend(&self, block: usize, strip: &mut Strip, state: &mut State) -> bool {
        let Self { layer, matrix, .. } = *self;
        let State { errors, slopes, .. } = state;
        let (start, many) = (block * layer.block, layer.block);
        let mut any = false;
        for piece in pieces(start..start + many) {
            let descent = Descent {
                matrix: matrix.from(piece.start, piece.start),
                inverses: &matrix.inverses[piece.clone()],
                grids: &strip.grids[block],
                cells: layer.cells,
            };
            let mut moved = [[0.0; STRIP]; PIECE];
            let moved = &mut moved[..piece.len()];
            let (first, last) = (piece.start - start, piece.end - start);
            let codes = &mut strip.codes[piece.clone()];
            if !layer.kernels.descend(descent, &mut slopes[first..last], codes, moved) {
                continue;
            }
            any = true;
            for (error, moved) in errors[piece.clone()].iter_mut().zip(&*moved) {
                for (error, moved) in error.iter_mut().zip(moved) {
                    *error += moved;
                }
            }
            for others in [0..first, last..many].into_iter().filter(|others| !others.is_empty()) {
                layer.kernels.add_product(
                    whole(&mut slopes[others.clone()]),
                    matrix.from(start + others.start, piece.start),
                    lanes(moved),
                    [others.len(), piece.len(), STRIP],
                );
            }
        }
        any
    }

    /// Gives a block its best grid. Tells whether that is another one.
    fn refit(&self, block: usize, strip: &mut Strip, state: &mut State) -> bool {
        let Self { layer, matrix, rule, .. } = *self;
        let State { errors, slopes, products, .. } = state;
        let (start, many) = (block * layer.block, layer.block);
        let codes = &strip.codes[start..start + many];
        products.fill([0.0; STRIP]);
        let shape = [many, many, STRIP];
        let own = matrix.from(start, start);
        layer.kernels.add_product(whole(products), own, lanes(codes), shape);
        let sums = &matrix.sums[start..start + many];
        let (mut totals, mut mixed) = ([0.0; STRIP], [0.0; STRIP]);
        for i in 0..many {
            for x in 0..STRIP {
                totals[x] += f64::from(slopes[i][x]);
                mixed[x] += f64::from(codes[i][x]) * sums[i];
            }
        }
        let (by_code, squares) = (dots(codes, slopes), dots(codes, products));
        let grids = &mut strip.grids[block];
        let before = *grids;
        for row in 0..strip.rows {
            let curves = [squares[row], mixed[row], matrix.totals[block]];
            let sums = Sums { slopes: [by_code[row], totals[row]], curves };
            if let Some(better) = rule.better([before.steps[row], before.bases[row]], sums) {
                grids.set(row, better);
            }
        }
        if *grids == before {
            return false;
        }
        let (mut steps, mut bases) = (grids.steps, grids.bases);
        for x in 0..STRIP {
            steps[x] -= before.steps[x];
            bases[x] -= before.bases[x];
        }
        for i in 0..many {
            let (values, sum) = (grids.values(&codes[i]), sums[i] as f32);
            for x in 0..STRIP {
                errors[start + i][x] = values[x] - strip.weights[start + i][x];
                slopes[i][x] += steps[x] * products[i][x] + bases[x] * sum;
            }
        }
        true
    }
}

fn lanes(values: &[Lane]) -> Matrix<'_> {
    Matrix { values: values.as_flattened(), stride: STRIP }
}

fn whole(values: &mut [Lane]) -> MatrixMut<'_> {
    MatrixMut { values: values.as_flattened_mut(), stride: STRIP }
}
