//! Sums over the exceedances over a location, the same whoever adds them up.

use super::{CHUNK, Candidates};
use crate::fit::Moments;
use crate::simd::moments::Lanes;

pub(super) fn add(total: &mut Moments, part: &Moments) {
    total.count += part.count;
    total.zeros += part.zeros;
    total.sum += part.sum;
    total.sum_sq += part.sum_sq;
    total.sum_ln += part.sum_ln;
    total.signed += part.signed;
}

pub(super) fn of_lanes(lanes: &Lanes) -> Moments {
    Moments { count: lanes.count(), sum: lanes.sum(), sum_sq: lanes.sum_sq(), ..Moments::default() }
}

/// Moments of the exceedances over a location, from entries that were compacted before: the same to
/// the last bit as [`Request::location`](super::Request::location) gives, if the entries are all that
/// exceed it. Entries without an exceedance are not counted.
pub(crate) fn tail_of(candidates: &Candidates, location: f32) -> Moments {
    let mut total = Moments::default();
    let mut lanes = Lanes::default();
    let mut chunk = 0;
    for (&index, &value) in candidates.indices().iter().zip(candidates.values()) {
        let home = index as usize / CHUNK;
        if home != chunk {
            add(&mut total, &of_lanes(&std::mem::take(&mut lanes)));
            chunk = home;
        }
        lanes.push(index, value, location);
    }
    add(&mut total, &of_lanes(&lanes));
    total
}
