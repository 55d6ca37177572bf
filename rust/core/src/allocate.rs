//! Memory of a size that the data decides: where there is none, an error.
//!
//! Where a collection of the standard library cannot grow, the process ends. A tensor that is too
//! large for this machine must not do that to the program that holds it, so room is asked for here
//! before anything of the size of the data is put anywhere.

use bytemuck::Zeroable;

use crate::{Error, Result};

/// Makes room for `len` elements in all. What is in there stays.
pub(crate) fn reserve<T>(vec: &mut Vec<T>, len: usize) -> Result<()> {
    if len <= vec.capacity() {
        return Ok(());
    }
    // More than asked for, for the next time, unless it is too much.
    let more = len - vec.len();
    vec.try_reserve(more).or_else(|_| vec.try_reserve_exact(more)).map_err(|_| missing::<T>(len))
}

/// The vector with `len` elements, new ones of zeros. What is in there already is not written again.
pub(crate) fn resize<T: Zeroable + Copy>(vec: &mut Vec<T>, len: usize) -> Result<()> {
    reserve(vec, len)?;
    vec.resize(len, T::zeroed());
    Ok(())
}

/// Zeros, of which no page is touched before it is written.
pub(crate) fn zeros<T: Zeroable>(len: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(len).map_err(|()| missing::<T>(len))
}

/// The error for so many elements that could not be allocated.
pub(crate) fn missing<T>(len: usize) -> Error {
    Error::OutOfMemory { bytes: (len as u64).saturating_mul(size_of::<T>() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_an_error() {
        let expected = |bytes| Err(Error::OutOfMemory { bytes });
        let most = usize::MAX / 8;
        assert_eq!(zeros::<u32>(most), expected(most as u64 * 4).map(|()| Vec::new()));
        let mut some = vec![7_u32; 3];
        assert_eq!(reserve(&mut some, most), expected(most as u64 * 4));
        assert_eq!(resize(&mut some, usize::MAX), expected(u64::MAX));
        assert_eq!(some, [7; 3]);
        assert_eq!(resize(&mut some, 5), Ok(()));
        assert_eq!(some, [7, 7, 7, 0, 0]);
        assert_eq!(zeros::<u32>(4), Ok(vec![0; 4]));
    }
}
