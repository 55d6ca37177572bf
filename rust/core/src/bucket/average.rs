//! Averages the frames of all ranks.

use half::{bf16, f16};

use crate::frame::{Frame, Scratch as Decoding};
use crate::simd::in_standard_mode;
use crate::{Result, allocate};

/// Which ranks an average is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mean {
    /// Over all ranks.
    Ranks,
    /// Over the ranks that sent the entry (Peng, Quesnelle and Kingma, arXiv 2411.19870).
    Senders,
    /// Over so many ranks, whose sum the frames are.
    Of(u32),
}

/// How frames are averaged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Average {
    /// Which ranks the average is over.
    pub mean: Mean,
    /// Factor of the average: the loss scale that encoding divided by.
    pub scale: f64,
}

/// A tensor to write, of one of the element types of [`Input`](crate::Input).
#[derive(Debug)]
pub enum Output<'a> {
    /// float32 elements.
    F32(&'a mut [f32]),
    /// float64 elements.
    F64(&'a mut [f64]),
    /// float16 elements, rounded to nearest even.
    F16(&'a mut [f16]),
    /// bfloat16 elements, rounded to nearest even.
    BF16(&'a mut [bf16]),
}

impl Output<'_> {
    /// Sets every element to zero.
    pub fn clear(&mut self) {
        match self {
            Self::F32(x) => x.fill(0.0),
            Self::F64(x) => x.fill(0.0),
            Self::F16(x) => x.fill(f16::ZERO),
            Self::BF16(x) => x.fill(bf16::ZERO),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F64(x) => x.len(),
            Self::F16(x) => x.len(),
            Self::BF16(x) => x.len(),
        }
    }
}

/// Memory for averaging, to be used again: no call allocates once it has grown.
#[derive(Debug, Default)]
pub struct Scratch {
    decoding: Decoding,
    total: Vec<f32>,
    /// For each position how many frames have an entry there.
    senders: Vec<u16>,
    positions: Vec<u32>,
}

impl Average {
    /// Writes the average of the tensors in the frames of all ranks.
    ///
    /// Frames are added up in float32 in the order given. `out` may hold anything after an error.
    pub fn write<'a>(
        &self,
        frames: impl Iterator<Item = &'a [u8]> + Clone,
        out: Output<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        in_standard_mode(|| self.write_all(frames, out, scratch))
    }

    fn write_all<'a>(
        &self,
        frames: impl Iterator<Item = &'a [u8]> + Clone,
        out: Output<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let mut total = std::mem::take(&mut scratch.total);
        allocate::resize(&mut total, if matches!(out, Output::F32(_)) { 0 } else { out.len() })?;
        let added = match out {
            Output::F32(out) => self.add_up(frames, out, scratch),
            Output::F64(out) => {
                let added = self.add_up(frames, &mut total, scratch);
                convert(&total, out, f64::from);
                added
            }
            Output::F16(out) => {
                let added = self.add_up(frames, &mut total, scratch);
                convert(&total, out, f16::from_f32);
                added
            }
            Output::BF16(out) => {
                let added = self.add_up(frames, &mut total, scratch);
                convert(&total, out, bf16::from_f32);
                added
            }
        };
        scratch.total = total;
        added
    }

    fn add_up<'a>(
        &self,
        frames: impl Iterator<Item = &'a [u8]> + Clone,
        total: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let ranks = match self.mean {
            Mean::Ranks => frames.clone().count() as f32,
            Mean::Senders => 1.0,
            Mean::Of(ranks) => ranks as f32,
        };
        // Multiplying by a power of two is exact, so it may happen entry by entry, where it is free.
        let factor = power_of_two(self.scale / f64::from(ranks));
        total.fill(0.0);
        for frame in frames.clone() {
            let frame = Frame::parse(frame, Some(total.len() as u64))?;
            frame.decode_add(total, factor.unwrap_or(1.0), &mut scratch.decoding)?;
        }
        if factor.is_none() {
            let scale = self.scale as f32;
            for value in &mut *total {
                // Two steps, each rounded: the average first, as without a scale.
                *value = *value / ranks * scale;
            }
        }
        if self.mean == Mean::Senders {
            divide_by_senders(frames, total, scratch)?;
        }
        Ok(())
    }
}

/// The number as float32, if it is a power of two that float32 has in full.
fn power_of_two(value: f64) -> Option<f32> {
    let narrow = value as f32;
    let is_power = narrow.is_normal() && narrow.to_bits() << 9 == 0;
    (is_power && f64::from(narrow).to_bits() == value.to_bits()).then_some(narrow)
}

fn convert<T>(values: &[f32], out: &mut [T], convert: impl Fn(f32) -> T) {
    for (out, &value) in out.iter_mut().zip(values) {
        *out = convert(value);
    }
}

/// Divides the sum of some frames, at each position, by the number of frames with an entry there.
fn divide_by_senders<'a>(
    frames: impl Iterator<Item = &'a [u8]>,
    total: &mut [f32],
    scratch: &mut Scratch,
) -> Result<()> {
    let Scratch { senders, positions, .. } = scratch;
    senders.clear();
    allocate::resize(senders, total.len())?;
    for frame in frames {
        let frame = Frame::parse(frame, Some(total.len() as u64))?;
        if frame.header().count == total.len() as u64 {
            for number in &mut *senders {
                *number += 1;
            }
            continue;
        }
        frame.indices_into(positions)?;
        for &position in &*positions {
            // Positions of a frame ascend, so it counts once for each.
            if let Some(number) = senders.get_mut(position as usize) {
                *number += 1;
            }
        }
    }
    for (value, &number) in total.iter_mut().zip(&*senders) {
        if number > 1 {
            *value /= f32::from(number);
        }
    }
    Ok(())
}
