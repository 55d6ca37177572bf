//! A fixed threshold, in one read of the tensor.

use crate::scan::Request;

pub(super) fn request(threshold: f32) -> Request {
    Request { bound: Some(threshold), cap: usize::MAX, ..Request::default() }
}
