//! Tensors coded without loss, alone or as they differ from another.

use gradwire_core::pack::floats::{self, Bits, Format};
use gradwire_core::pack::{differences, sequence};
use gradwire_core::pool;
use gradwire_core::simd::Kernels;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::{Bytes, Writable, disjoint};
use crate::errors::to_py;
use crate::number::number;

/// The format of that name, and its bytes.
pub(crate) fn format(name: &str) -> PyResult<(Format, usize)> {
    match name {
        "bfloat16" => Ok((Format::BFLOAT16, 2)),
        "float16" => Ok((Format::FLOAT16, 2)),
        "float32" => Ok((Format::FLOAT32, 4)),
        _ => Err(PyValueError::new_err(format!(
            "format must be \"bfloat16\", \"float16\" or \"float32\", got {name:?}"
        ))),
    }
}

pub(crate) fn whole(name: &str, len: usize, size: usize) -> PyResult<()> {
    if len.is_multiple_of(size) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{name} has {len} bytes, which are no floats of {size}")))
}

pub(crate) fn as_long(base: &[u8], values: &[u8]) -> PyResult<()> {
    let (have, need) = (base.len(), values.len());
    if have == need {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("base has {have} bytes, and values {need}")))
}

/// Writes floats as blocks of codes, and returns how many bytes those are.
///
/// `values` are the floats, little-endian, of any bits, in the format "bfloat16", "float16" or "float32"; if there
/// is a `base`, as many others, what is coded is how they differ from them. `out`, uint8, has as many bytes as the
/// values, and 5 for each 65536 of them, and 10 for the rest.
#[pyfunction]
#[pyo3(signature = (format, values, out, base=None))]
pub(crate) fn lossless_encode(
    py: Python<'_>,
    format: &str,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    base: Option<&Bound<'_, PyAny>>,
) -> PyResult<usize> {
    let (format, size) = self::format(format)?;
    let (values, mut out) = (Bytes::get("values", values)?, Writable::bytes("out", out)?);
    disjoint("values", &out, &values)?;
    let base = base.map(|base| Bytes::get("base", base)).transpose()?;
    if let Some(base) = &base {
        disjoint("base", &out, base)?;
    }
    let (values, base) = (values.as_slice(), base.as_ref().map(Bytes::as_slice));
    whole("values", values.len(), size)?;
    if let Some(base) = base {
        as_long(base, values)?;
    }
    let (have, need) =
        (out.len(), values.len() + 5 * (values.len() / size).div_ceil(floats::BLOCK) + 5);
    if have < need {
        return Err(PyValueError::new_err(format!("out has {have} bytes, of {need}")));
    }
    let out = out.as_mut_slice();
    Ok(py.detach(|| match size {
        2 => encode::<2>(format, values, base, out),
        _ => encode::<4>(format, values, base, out),
    }))
}

fn encode<const SIZE: usize>(
    format: Format,
    values: &[u8],
    base: Option<&[u8]>,
    out: &mut [u8],
) -> usize
where
    [u8; SIZE]: Bits,
{
    let kernels = Kernels::current();
    let values = values.as_chunks::<SIZE>().0;
    let base = base.map(|base| base.as_chunks::<SIZE>().0);
    let (size, run) = match base {
        None => (floats::BLOCK, sequence::RUN),
        Some(_) => (differences::BLOCK, 1),
    };
    let code = |i: usize, out: &mut Vec<u8>| {
        let block = i * size..values.len().min((i + 1) * size);
        match base {
            None => floats::write(kernels, format, &values[block], out),
            Some(base) => {
                let (values, base) = (&values[block.clone()], &base[block]);
                differences::write(kernels, format, values, base, true, out);
            }
        }
    };
    let (number, mut len) = (values.len().div_ceil(size), 0);
    sequence::write_each(number, run, pool::num_threads(), code, |block| {
        out[len..len + block.len()].copy_from_slice(block);
        len += block.len();
    });
    len
}

/// Reads floats from blocks of codes, and returns how many bytes those were; others may follow.
///
/// `out`, uint8, becomes the floats, as many as it has room for. Of a `difference`, it has to have the floats of
/// the base now. It holds anything after an error.
#[pyfunction]
pub(crate) fn lossless_decode(
    format: &str,
    coded: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    difference: bool,
) -> PyResult<usize> {
    let py = coded.py();
    let (format, size) = self::format(format)?;
    let (coded, mut out) = (Bytes::get("coded", coded)?, Writable::bytes("out", out)?);
    disjoint("coded", &out, &coded)?;
    let (coded, out) = (coded.as_slice(), out.as_mut_slice());
    whole("out", out.len(), size)?;
    py.detach(|| match size {
        2 => decode::<[u8; 2]>(format, coded, out.as_chunks_mut().0, difference),
        _ => decode::<[u8; 4]>(format, coded, out.as_chunks_mut().0, difference),
    })
    .map_err(|error| to_py(py, error, None))
}

fn decode<T: Bits>(
    format: Format,
    coded: &[u8],
    out: &mut [T],
    difference: bool,
) -> gradwire_core::Result<usize> {
    let (kernels, threads) = (Kernels::current(), pool::num_threads());
    let block = if difference { differences::BLOCK } else { floats::BLOCK };
    let rest = sequence::read_some(coded, threads, block, out, |_, bytes, out| {
        if difference {
            return Ok(differences::read(kernels, format, bytes, out)?.0);
        }
        floats::read(kernels, format, bytes, out)
    })?;
    Ok(coded.len() - rest.len())
}

/// The CRC-32C of bytes that follow others, whose CRC-32C is `before`; 0 of none.
#[pyfunction]
#[pyo3(signature = (data, before=None))]
pub(crate) fn crc32c(data: &Bound<'_, PyAny>, before: Option<&Bound<'_, PyAny>>) -> PyResult<u32> {
    let before = before.map_or(Ok(0), |before| number("before", before))?;
    let (py, data) = (data.py(), Bytes::get("data", data)?);
    let bytes = data.as_slice();
    Ok(py.detach(|| sequence::checksum(before, bytes)))
}
