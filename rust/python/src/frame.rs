//! Frames, and decoding.

use std::hash::{DefaultHasher, Hash, Hasher};

use gradwire_core::frame::{self, HEADER_LEN};
use gradwire_core::simd::in_standard_mode;
use gradwire_core::{Dtype, Error, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::buffer::{Bytes, ReadOnlyBuffer, Writable, disjoint, empty, to_numpy};
use crate::codec::dtype_name;
use crate::errors::to_py;
use crate::number::{number, optional};
use crate::outside::reading;
use crate::scratch::with_scratch;

/// Entries that bytes from outside may claim unless the caller says otherwise: 1 GiB of float32.
pub(crate) const DEFAULT_MAX_NUMEL: u64 = 1 << 28;

/// One encoded tensor: an immutable, self-describing buffer of bytes.
///
/// `codec.encode` returns frames. `Frame(data)` makes one from bytes that were received or read from
/// a file: it copies them and checks lengths, limits and checksum. A frame can be passed wherever
/// bytes can: `memoryview(frame)`, `file.write(frame)`, `socket.sendall(frame)`, `bytes(frame)`.
///
/// Parameters
/// ----------
/// data : bytes-like
///     A complete frame and nothing after it.
/// max_numel : int, optional
///     Maximum number of entries, `DEFAULT_MAX_NUMEL` by default.
///
/// Raises
/// ------
/// CorruptFrameError, TruncatedFrameError, FrameTooLargeError, UnsupportedFrameError
///     The bytes are not a complete, valid frame, or one with too many entries.
#[pyclass(frozen, extends = ReadOnlyBuffer, module = "gradwire")]
pub(crate) struct Frame {
    numel: u64,
    count: u64,
    dtype: Dtype,
}

impl Frame {
    /// A frame of bytes that are known to be one.
    pub(crate) fn create(
        py: Python<'_>,
        bytes: Vec<u8>,
        numel: u64,
        count: u64,
        dtype: Dtype,
    ) -> PyResult<Py<Self>> {
        let base = PyClassInitializer::from(ReadOnlyBuffer(bytes));
        Py::new(py, base.add_subclass(Self { numel, count, dtype }))
    }
}

fn bytes<'a>(frame: &'a Bound<'_, Frame>) -> &'a [u8] {
    &frame.as_super().get().0
}

#[pymethods]
impl Frame {
    #[new]
    #[pyo3(signature = (data, max_numel=None))]
    fn new(
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        max_numel: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let data = Bytes::get("data", data)?;
        let max_numel: Option<i64> = optional("max_numel", max_numel)?;
        let limit = max_numel.map_or(Ok(DEFAULT_MAX_NUMEL), u64::try_from).map_err(|_| {
            let given = max_numel.unwrap_or_default();
            PyValueError::new_err(format!("max_numel must be at least 0, got {given}"))
        })?;
        // Copied first: what another thread writes to the original meanwhile is not in the frame.
        let (data, header) = py
            .detach(|| {
                let data = copied(data.as_slice())?;
                let header = *frame::Frame::parse(&data, Some(limit))?.header();
                Ok((data, header))
            })
            .map_err(|error| to_py(py, error, None))?;
        Ok(PyClassInitializer::from(ReadOnlyBuffer(data)).add_subclass(Self {
            numel: header.numel,
            count: header.count,
            dtype: header.dtype,
        }))
    }

    /// int: Number of entries of the tensor that was encoded.
    #[getter]
    fn numel(&self) -> u64 {
        self.numel
    }

    /// int: Number of entries in the frame.
    #[getter]
    fn count(&self) -> u64 {
        self.count
    }

    /// str: Element type of the tensor that was encoded; decoding gives float32.
    #[getter]
    fn dtype(&self) -> &'static str {
        dtype_name(self.dtype)
    }

    /// int: Size of the frame in bytes, the same as ``len(frame)``.
    #[getter]
    fn nbytes(slf: &Bound<'_, Self>) -> usize {
        bytes(slf).len()
    }

    fn __len__(slf: &Bound<'_, Self>) -> usize {
        bytes(slf).len()
    }

    /// Return the positions of the entries: a new uint32 array of shape (count,), ascending.
    fn indices<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let mut indices = Vec::new();
        read(slf, |frame| frame.indices_into(&mut indices))?;
        to_numpy(slf.py(), "uint32", &indices)
    }

    /// Return the values of the entries, in order of position: a new float32 array of shape
    /// (count,).
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let mut values = Vec::new();
        read(slf, |frame| frame.values_into(&mut values))?;
        to_numpy(slf.py(), "float32", &values)
    }

    /// Cut the frame by position, without decoding its values.
    ///
    /// Positions are coded anew, relative to where each part begins; values are copied as the codes
    /// that they are, with the scales of their groups. Sparsifier, quantizer and dtype of the parts
    /// are those of the frame. One read of the frame; 4 bytes of memory per entry besides the parts.
    ///
    /// Parameters
    /// ----------
    /// bounds : sequence of int
    ///     Where the ranges begin and end, ascending: the first is 0, the last is ``numel``.
    ///
    /// Returns
    /// -------
    /// list of list of Frame
    ///     The frames of each range: together they have its number of elements, and decode to what the
    ///     whole decodes to there. One as a rule; two where the range begins within a block of values
    ///     that share scales; none for a range without elements.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     Bounds do not ascend from 0 to ``numel``.
    /// CorruptFrameError
    ///     Positions or values are not valid: what cannot be decoded cannot be cut.
    /// UnsupportedFrameError
    ///     The quantizer or the coding of positions is of another package.
    #[allow(clippy::needless_pass_by_value)]
    fn split(slf: &Bound<'_, Self>, bounds: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<Py<Self>>>> {
        let bounds: Vec<u64> = number("bounds", bounds)?;
        let (py, data, dtype) = (slf.py(), bytes(slf), slf.get().dtype);
        let mut split = frame::Split::default();
        let parts = py
            .detach(|| {
                let frame = frame::Frame::parse_again(data, None)?;
                frame.split(&bounds, &mut split)?;
                let write = |part| {
                    let mut own = Vec::new();
                    frame.write_part(&split, part, &mut own).map(|()| own)
                };
                split.parts().iter().map(write).collect::<Result<Vec<_>>>()
            })
            .map_err(|error| to_py(py, error, None))?;
        let mut ranges: Vec<Vec<_>> = bounds.windows(2).map(|_| Vec::new()).collect();
        for (part, own) in split.parts().iter().zip(parts) {
            ranges[part.range].push(Self::create(py, own, part.numel(), part.count(), dtype)?);
        }
        Ok(ranges)
    }

    /// Return the contents of the header as a dict of str and int.
    ///
    /// ``version``, ``dtype``, ``sparsifier``, ``quantizer``, ``exponent`` (values were multiplied
    /// by two to this power), ``coding`` and ``parameter`` (of the positions), ``numel``,
    /// ``count``, ``checksum``, and the sections' lengths in bytes: ``header_nbytes``,
    /// ``index_nbytes`` and ``value_nbytes``. Quantizers of other packages are called ``custom:``
    /// and their kind.
    fn header<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let frame = frame::Frame::parse_again(bytes(slf), None)
            .map_err(|error| to_py(slf.py(), error, None))?;
        let header = *frame.header();
        let fields = PyDict::new(slf.py());
        let sparsifier = header.sparsifier;
        fields.set_item("version", header.version)?;
        fields.set_item("dtype", dtype_name(header.dtype))?;
        match sparsifier.name() {
            Some(name) => fields.set_item("sparsifier", name)?,
            None => fields.set_item("sparsifier", format!("unknown ({})", sparsifier.0))?,
        }
        match frame.outside() {
            Some(coded) => fields.set_item("quantizer", format!("custom:{}", coded.name))?,
            None => fields.set_item("quantizer", header.quantizer.name().unwrap_or("custom"))?,
        }
        fields.set_item("exponent", header.exponent)?;
        fields.set_item("coding", header.coding.name())?;
        fields.set_item("parameter", header.coding.parameter())?;
        fields.set_item("numel", header.numel)?;
        fields.set_item("count", header.count)?;
        fields.set_item("checksum", header.checksum)?;
        fields.set_item("header_nbytes", HEADER_LEN)?;
        fields.set_item("index_nbytes", header.index_len)?;
        fields.set_item("value_nbytes", header.value_len)?;
        Ok(fields)
    }

    fn __bytes__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyBytes>> {
        to_bytes(slf.py(), bytes(slf))
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, Self>) -> bool {
        bytes(slf) == bytes(other)
    }

    fn __hash__(slf: &Bound<'_, Self>) -> u64 {
        // The checksum in the header tells frames apart; all of a dense one need not be read.
        let mut hasher = DefaultHasher::new();
        bytes(slf)[..HEADER_LEN.min(bytes(slf).len())].hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let Self { numel, count, dtype } = *slf.get();
        let nbytes = bytes(slf).len();
        format!("<gradwire.Frame: {count} of {numel} {} in {nbytes} bytes>", dtype_name(dtype))
    }

    #[allow(clippy::type_complexity)]
    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>, u64))> {
        Ok((slf.get_type().into_any(), (Self::__bytes__(slf)?, slf.get().numel)))
    }
}

/// Decode into `out`, or into a new array.
#[pyfunction]
#[pyo3(signature = (frame, out=None, max_numel=None))]
pub(crate) fn decode<'py>(
    frame: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    max_numel: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = frame.py();
    let max_numel: Option<u64> = optional("max_numel", max_numel)?;
    let data = Bytes::get("frame", frame)?;
    let given = out.map(|out| Writable::floats("out", out)).transpose()?;
    let limit = match (max_numel, &given) {
        (Some(limit), Some(out)) => Some(limit.min(out.len() as u64)),
        (Some(limit), None) => Some(limit),
        (None, Some(out)) => Some(out.len() as u64),
        // A frame was either made here or accepted by its constructor.
        (None, None) if frame.is_instance_of::<Frame>() => None,
        (None, None) => Some(DEFAULT_MAX_NUMEL),
    };
    if let Some(out) = &given {
        disjoint("frame", out, &data)?;
    }
    let known = frame.is_instance_of::<Frame>();
    let parsed = py
        .detach(|| parse(known, data.as_slice(), limit))
        .map_err(|error| to_py(py, error, None))?;
    let (array, mut target) = if let (Some(out), Some(given)) = (out, given) {
        (out.clone(), given)
    } else {
        let array = empty(py, parsed.header().numel as usize, "float32")?;
        let target = Writable::floats("out", &array)?;
        (array, target)
    };
    let target = target.as_mut_slice();
    py.detach(|| {
        with_scratch(|scratch| reading(&parsed, |frame| frame.decode_into(target, scratch)))
    })
    .map_err(|error| to_py(py, error, None))?;
    Ok(array)
}

/// Add a frame's entries, scaled, to `out`.
#[pyfunction]
#[pyo3(signature = (frame, out, scale=None))]
pub(crate) fn decode_add(
    frame: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    scale: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = frame.py();
    let scale: f64 = optional("scale", scale)?.unwrap_or(1.0);
    let data = Bytes::get("frame", frame)?;
    let mut out = Writable::floats("out", out)?;
    disjoint("frame", &out, &data)?;
    let factor = in_standard_mode(|| scale as f32);
    if !factor.is_finite() {
        return Err(PyValueError::new_err(format!("scale must be a finite float32, got {scale}")));
    }
    let known = frame.is_instance_of::<Frame>();
    let out = out.as_mut_slice();
    py.detach(|| {
        let parsed = parse(known, data.as_slice(), Some(out.len() as u64))?;
        with_scratch(|scratch| reading(&parsed, |frame| frame.decode_add(out, factor, scratch)))
    })
    .map_err(|error| to_py(py, error, None))
}

/// The positions of a frame without its values, as bytes for a wire.
#[pyfunction]
pub(crate) fn pack_positions<'py>(frame: &Bound<'py, Frame>) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    read(frame, |frame| frame::write_positions(frame, &mut out))?;
    to_bytes(frame.py(), &out)
}

/// The positions that `pack_positions` wrote of a tensor of `numel` elements, as uint32.
#[pyfunction]
pub(crate) fn unpack_positions<'py>(
    data: &Bound<'py, PyAny>,
    numel: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, data) = (data.py(), Bytes::get("data", data)?);
    let numel: u64 = number("numel", numel)?;
    let mut indices = Vec::new();
    py.detach(|| frame::read_positions(data.as_slice(), numel, &mut indices))
        .map_err(|error| to_py(py, error, None))?;
    to_numpy(py, "uint32", &indices)
}

/// A copy of these bytes for Python.
pub(crate) fn to_bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    // The plain constructor panics where there is no memory.
    PyBytes::new_with(py, bytes.len(), |copy| {
        copy.copy_from_slice(bytes);
        Ok(())
    })
}

/// A copy of these bytes.
fn copied(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    if copy.try_reserve_exact(bytes.len()).is_err() {
        return Err(Error::OutOfMemory { bytes: bytes.len() as u64 });
    }
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Read a frame's own bytes with other threads running.
fn read(
    frame: &Bound<'_, Frame>,
    with: impl FnMut(&frame::Frame<'_>) -> Result<()> + Send,
) -> PyResult<()> {
    let (py, data) = (frame.py(), bytes(frame));
    // Its bytes were written or checked here, and never change.
    py.detach(|| reading(&frame::Frame::parse_again(data, None)?, with))
        .map_err(|error| to_py(py, error, None))
}

/// A frame of bytes, whose checksum holds already if they are known as those of a [`Frame`].
fn parse(known: bool, bytes: &[u8], max_numel: Option<u64>) -> Result<frame::Frame<'_>> {
    if known {
        frame::Frame::parse_again(bytes, max_numel)
    } else {
        frame::Frame::parse(bytes, max_numel)
    }
}
