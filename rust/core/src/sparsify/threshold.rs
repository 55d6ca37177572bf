//! A fixed threshold: one read finds all.

use crate::scan::Request;

pub(super) fn request(threshold: f32) -> Request {
    Request { bound: Some(threshold), cap: usize::MAX, ..Request::default() }
}
