//! Encoding.

use std::sync::Arc;

use gradwire_core::codec::{self, Encoded, Support};
use gradwire_core::frame::Destination;
use gradwire_core::memory::Memory;
use gradwire_core::simd::in_standard_mode;
use gradwire_core::{Dtype, Error, Result};
use pyo3::exceptions::{PyBaseException, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyWeakrefReference};

use crate::buffer::{Positions, Tensor, Writable, disjoint, empty};
use crate::config;
use crate::errors::to_py;
use crate::frame::Frame;
use crate::interrupt::{self, Keeper};
use crate::number::{number, optional};
use crate::outside::{Calls, Coder};
use crate::scratch::{self, KEPT, with_staged, with_workspace};
use crate::state::{Inner, State};

/// The part of `gradwire.Codec` that lives in the core.
#[pyclass(frozen, module = "gradwire._native")]
pub(crate) struct Codec {
    inner: Arc<codec::Codec>,
    /// What codes values in Python.
    coder: Option<Coder>,
    /// The `gradwire.Codec` that this is a part of, which holds it.
    owner: Py<PyWeakrefReference>,
}

impl Codec {
    pub(crate) fn inner(&self) -> &Arc<codec::Codec> {
        &self.inner
    }

    /// What codes values in Python.
    pub(crate) fn coder(&self) -> Option<&Coder> {
        self.coder.as_ref()
    }

    /// Name and options of what does.
    pub(crate) fn identity(&self) -> Option<&str> {
        self.coder.as_ref().map(|coder| coder.identity.as_str())
    }

    /// The `gradwire.Codec` that this is a part of.
    pub(crate) fn owner(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let owner = self.owner.bind(py).upgrade();
        owner
            .map(Bound::unbind)
            .ok_or_else(|| PyRuntimeError::new_err("the codec no longer exists"))
    }

    /// Encode into `out` with the state given, or with a fresh one where nothing is remembered. If
    /// the result cannot be delivered, the encode is undone.
    fn run<'py, T, O: Send + ?Sized>(
        &self,
        py: Python<'py>,
        job: &Job<'_>,
        state: Option<&Bound<'_, PyAny>>,
        out: &mut O,
        deliver: impl FnOnce(&mut O, Encoded) -> PyResult<Delivered<'py, T>>,
    ) -> PyResult<T>
    where
        for<'o> Destination<'o>: From<&'o mut O>,
    {
        let Some(state) = state else {
            let mut fresh = self.fresh(py, job.tensor.numel())?;
            let mut calls = self.coder().map(|coder| coder.calls(0, None, 0));
            let encoded = py
                .detach(|| job.encode(&self.inner, &mut fresh, calls.as_mut(), &mut *out))
                .map_err(|error| job.exception(py, error, None))?;
            let delivered = deliver(out, encoded)?;
            interrupt::keep(job.kept, &delivered.object)?;
            return Ok(delivered.result);
        };
        let (owner, state) = (self.owner(py)?, self.check(job.tensor, state)?);
        scratch::keep_all();
        let mut inner = state.lock(py)?;
        let core = &mut inner.state;
        let (step, name, stream) = (core.step(), state.name(), state.stream());
        let mut calls = self.coder().map(|coder| coder.calls(step, name, stream));
        let encoded = py
            .detach(|| job.encode(&self.inner, core, calls.as_mut(), &mut *out))
            .map_err(|error| job.exception(py, error, state.name()))?;
        Self::finish(py, state, &mut inner, (encoded, owner), job.kept, || deliver(out, encoded))
    }

    /// Hands over what an encode came to, unless a signal or a lack of memory keeps it from that: then
    /// it is undone.
    fn finish<'py, T>(
        py: Python<'py>,
        state: &State,
        inner: &mut Inner,
        (encoded, owner): (Encoded, Py<PyAny>),
        kept: Option<&Py<PyList>>,
        deliver: impl FnOnce() -> PyResult<Delivered<'py, T>>,
    ) -> PyResult<T> {
        let delivered = py.check_signals().and_then(|()| {
            let delivered = deliver()?;
            let keeper = interrupt::keep(kept, &delivered.object)?;
            Ok((delivered, keeper))
        });
        match delivered {
            Ok((delivered, keeper)) => {
                state.committed(inner, encoded, owner, keeper);
                Ok(delivered.result)
            }
            Err(error) => {
                // It has just succeeded, so that there is something to go back to.
                let _ = inner.state.rollback();
                Err(error)
            }
        }
    }

    /// As `run`, to a new frame.
    fn frame(
        &self,
        py: Python<'_>,
        job: &Job<'_>,
        state: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Frame>> {
        let (numel, dtype) = (job.tensor.numel() as u64, job.tensor.dtype());
        let mut bytes = if state.is_some() { scratch::spare() } else { Vec::new() };
        self.run(py, job, state, &mut bytes, |bytes, encoded| {
            let mut bytes = std::mem::take(bytes);
            if state.is_some() {
                bytes = scratch::fitted(bytes);
            }
            Delivered::frame(py, bytes, numel, encoded.count, dtype)
        })
    }

    /// As `run`, into memory of the caller's; the bytes written.
    fn fill(
        &self,
        py: Python<'_>,
        mut job: Job<'_>,
        state: Option<&Bound<'_, PyAny>>,
        mut out: Writable<u8>,
    ) -> PyResult<usize> {
        disjoint("x", &out, job.tensor)?;
        if job.max_nbytes.is_none_or(|limit| out.len() < limit) {
            (job.max_nbytes, job.limited_by) = (Some(out.len()), "out");
        }
        let deliver = |len: usize| {
            let object = PyInt::new(py, len).into_any();
            Ok(Delivered { result: len, object })
        };
        // `out` is written only if all is well. Of a dense frame, which is coded as the tensor is read,
        // that takes one more read before, or a copy after, of what is shorter.
        let len = self.inner.max_encoded_len(job.tensor.numel());
        if self.inner.sparsifier().is_dense() && len < job.tensor.nbytes().min(KEPT) {
            return with_staged(|staged| {
                self.run(py, &job, state, staged, |bytes, encoded| {
                    out.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
                    deliver(encoded.nbytes)
                })
            });
        }
        self.run(py, &job, state, out.as_mut_slice(), |_, encoded| deliver(encoded.nbytes))
    }

    fn fresh(&self, py: Python<'_>, numel: usize) -> PyResult<codec::State> {
        if self.inner.memory() != Memory::None {
            return Err(PyValueError::new_err(
                "state is missing: this codec has a memory; \
                 make one with codec.init_state(x.size) and keep it for the next call",
            ));
        }
        if self.inner.quantizer().seed().is_some() || self.inner.sparsifier().seed().is_some() {
            return Err(PyValueError::new_err(
                "state is missing: this codec draws random numbers, and the state counts the steps \
                 that they depend on; make one with codec.init_state(x.size) and keep it",
            ));
        }
        self.inner.init_state(numel).map_err(|error| to_py(py, error, None))
    }

    /// The state, if it is one, and one for this codec and tensor.
    fn check<'a>(&self, tensor: &Tensor, object: &'a Bound<'_, PyAny>) -> PyResult<&'a State> {
        let state = self.own(object)?;
        if tensor.numel() != state.numel() {
            let of = state.name().map_or_else(String::new, |name| format!(" of '{name}'"));
            return Err(PyValueError::new_err(format!(
                "x has {} elements, but the state{of} has {}",
                tensor.numel(),
                state.numel()
            )));
        }
        Ok(state)
    }

    /// The state, if it is one, and one for this codec.
    pub(crate) fn own<'a>(&self, object: &'a Bound<'_, PyAny>) -> PyResult<&'a State> {
        let Ok(state) = object.cast::<State>() else {
            let class = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "state must be a gradwire.State from codec.init_state, got {class}"
            )));
        };
        let state = state.get();
        let same = Arc::ptr_eq(&self.inner, state.kind()) || self.inner.same_kind(state.kind());
        if !same || self.identity() != state.outside() {
            let made_by = object.getattr("codec")?.repr()?;
            return Err(PyValueError::new_err(format!(
                "the state belongs to another codec, {made_by}; only ratio, k or threshold may \
                 differ; make a new one with codec.init_state(x.size)"
            )));
        }
        Ok(state)
    }
}

#[pymethods]
impl Codec {
    /// `values` is an adapter of `gradwire._outside`, if those are coded in Python.
    #[new]
    #[pyo3(signature = (config, owner, values=None))]
    fn new(
        config: &Bound<'_, PyDict>,
        owner: &Bound<'_, PyAny>,
        values: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let inner = Arc::new(in_standard_mode(|| config::codec(config))?);
        let coder = values.map(Coder::new).transpose()?;
        Ok(Self { inner, coder, owner: PyWeakrefReference::new(owner)?.unbind() })
    }

    #[pyo3(signature = (x, state=None, max_nbytes=None, bfloat16=false, kept=None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
    fn encode(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        state: Option<&Bound<'_, PyAny>>,
        max_nbytes: Option<&Bound<'_, PyAny>>,
        bfloat16: bool,
        kept: Option<Py<PyList>>,
    ) -> PyResult<Py<Frame>> {
        let tensor = &Tensor::get("x", x, bfloat16)?;
        let max_nbytes = optional("max_nbytes", max_nbytes)?;
        self.frame(py, &Job::new(tensor, None, max_nbytes, kept.as_ref()), state)
    }

    #[pyo3(signature = (x, state, out, max_nbytes=None, bfloat16=false, kept=None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
    fn encode_into(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        state: Option<&Bound<'_, PyAny>>,
        out: &Bound<'_, PyAny>,
        max_nbytes: Option<&Bound<'_, PyAny>>,
        bfloat16: bool,
        kept: Option<Py<PyList>>,
    ) -> PyResult<usize> {
        let tensor = &Tensor::get("x", x, bfloat16)?;
        let max_nbytes = optional("max_nbytes", max_nbytes)?;
        let out = Writable::bytes("out", out)?;
        self.fill(py, Job::new(tensor, None, max_nbytes, kept.as_ref()), state, out)
    }

    #[pyo3(signature = (x, state, positions, max_nbytes=None, bfloat16=false, may_trim=false, kept=None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
    fn encode_at(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        state: Option<&Bound<'_, PyAny>>,
        positions: &Bound<'_, PyAny>,
        max_nbytes: Option<&Bound<'_, PyAny>>,
        bfloat16: bool,
        may_trim: bool,
        kept: Option<Py<PyList>>,
    ) -> PyResult<Py<Frame>> {
        let tensor = &Tensor::get("x", x, bfloat16)?;
        let positions = Positions::get("positions", positions)?;
        let support = Some(Support { positions: positions.as_slice(), may_trim });
        let max_nbytes = optional("max_nbytes", max_nbytes)?;
        self.frame(py, &Job::new(tensor, support, max_nbytes, kept.as_ref()), state)
    }

    #[pyo3(signature = (x, state, positions, out, max_nbytes=None, bfloat16=false, may_trim=false, kept=None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
    fn encode_at_into(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        state: Option<&Bound<'_, PyAny>>,
        positions: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        max_nbytes: Option<&Bound<'_, PyAny>>,
        bfloat16: bool,
        may_trim: bool,
        kept: Option<Py<PyList>>,
    ) -> PyResult<usize> {
        let tensor = &Tensor::get("x", x, bfloat16)?;
        let positions = Positions::get("positions", positions)?;
        let support = Some(Support { positions: positions.as_slice(), may_trim });
        let max_nbytes = optional("max_nbytes", max_nbytes)?;
        let out = Writable::bytes("out", out)?;
        disjoint("positions", &out, &positions)?;
        self.fill(py, Job::new(tensor, support, max_nbytes, kept.as_ref()), state, out)
    }

    #[pyo3(signature = (x, state=None, bfloat16=false))]
    fn preview<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        state: Option<&Bound<'py, PyAny>>,
        bfloat16: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tensor = Tensor::get("x", x, bfloat16)?;
        let array = empty(py, tensor.numel(), "float32")?;
        let mut out = Writable::floats("out", &array)?;
        let mut look = |state: &codec::State, name: Option<&str>| {
            let values = out.as_mut_slice();
            py.detach(|| {
                with_workspace(|workspace| {
                    self.inner.preview(tensor.input(), state, workspace, values)
                })
            })
            .map_err(|error| to_py(py, error, name))
        };
        match state {
            None => look(&self.fresh(py, tensor.numel())?, None)?,
            Some(state) => {
                let state = self.check(&tensor, state)?;
                look(&state.lock(py)?.state, state.name())?;
            }
        }
        Ok(array)
    }

    /// All that was left, dense.
    #[pyo3(signature = (state, kept=None))]
    #[allow(clippy::needless_pass_by_value)]
    fn flush(
        &self,
        py: Python<'_>,
        state: &Bound<'_, PyAny>,
        kept: Option<Py<PyList>>,
    ) -> PyResult<Py<Frame>> {
        let (owner, state) = (self.owner(py)?, self.own(state)?);
        let mut inner = state.lock(py)?;
        let (core, mut bytes) = (&mut inner.state, Vec::new());
        py.detach(|| self.inner.write_rest(core, &mut bytes))
            .map_err(|error| to_py(py, error, state.name()))?;
        // The frame is there, the state as it was: whatever is raised here costs nothing.
        py.check_signals()?;
        let numel = state.numel() as u64;
        let delivered = Delivered::frame(py, bytes, numel, numel, Dtype::F32)?;
        let encoded = py.detach(|| self.inner.forget_rest(core));
        Self::finish(py, state, &mut inner, (encoded, owner), kept.as_ref(), || Ok(delivered))
    }

    /// For a result that was kept but did not reach its caller, because `error` was raised as the
    /// call returned: undoes the encode, or has the error carry the result.
    fn retract(
        &self,
        py: Python<'_>,
        state: Option<&Bound<'_, PyAny>>,
        error: &Bound<'_, PyBaseException>,
        kept: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let (Some(state), result) = (state, kept.get_item(0)?) else { return Ok(()) };
        if !result.is_none() && !self.own(state)?.undo(py, Keeper::of(kept)) {
            let error = PyErr::from_value(error.clone().into_any());
            let name = if result.is_instance_of::<Frame>() { "frame" } else { "nbytes" };
            interrupt::carry(py, &error, name, result);
        }
        Ok(())
    }

    /// Entries at whose multiples a tensor of so many is best cut into ranges: those of a group that
    /// shares scales, where positions tell them; one where any cut is as good.
    fn cut_step(&self, numel: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(self.inner.cut_step(number("numel", numel)?))
    }

    #[pyo3(signature = (numel, count=None))]
    fn max_encoded_len(
        &self,
        numel: &Bound<'_, PyAny>,
        count: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let numel = number("numel", numel)?;
        let count = optional("count", count)?;
        Ok(match (&self.coder, count) {
            (Some(coder), _) => self.inner.max_len_outside(numel, count, &coder.name, coder.bits),
            (None, Some(count)) => self.inner.max_len_of(numel, count),
            (None, None) => self.inner.max_encoded_len(numel),
        })
    }

    /// Whether a state of one codec may be used with the other.
    fn same_kind(&self, other: &Bound<'_, Self>) -> bool {
        let other = other.get();
        self.inner.same_kind(&other.inner) && self.identity() == other.identity()
    }
}

/// What an encode came to, for Python.
struct Delivered<'py, T> {
    result: T,
    /// The same, to be kept.
    object: Bound<'py, PyAny>,
}

impl<'py> Delivered<'py, Py<Frame>> {
    fn frame(
        py: Python<'py>,
        bytes: Vec<u8>,
        numel: u64,
        count: u64,
        dtype: Dtype,
    ) -> PyResult<Self> {
        let result = Frame::create(py, bytes, numel, count, dtype)?;
        let object = result.bind(py).clone().into_any();
        Ok(Self { result, object })
    }
}

/// What to encode.
#[derive(Clone, Copy)]
struct Job<'a> {
    tensor: &'a Tensor,
    /// None lets the codec select.
    support: Option<Support<'a>>,
    max_nbytes: Option<usize>,
    /// The argument that this limit came from.
    limited_by: &'static str,
    /// Where to put the result before the call returns: see [`interrupt`].
    kept: Option<&'a Py<PyList>>,
}

impl<'a> Job<'a> {
    fn new(
        tensor: &'a Tensor,
        support: Option<Support<'a>>,
        max_nbytes: Option<usize>,
        kept: Option<&'a Py<PyList>>,
    ) -> Self {
        Self { tensor, support, max_nbytes, limited_by: "max_nbytes", kept }
    }

    /// The exception for an error of this encode.
    fn exception(&self, py: Python<'_>, error: Error, name: Option<&str>) -> PyErr {
        match error {
            Error::LimitTooSmall { limit, need } => PyValueError::new_err(format!(
                "{} is {limit} bytes, but the smallest possible frame has {need}",
                self.limited_by
            )),
            error => to_py(py, error, name),
        }
    }

    fn encode<'o>(
        &self,
        codec: &codec::Codec,
        state: &mut codec::State,
        calls: Option<&mut Calls<'_>>,
        out: impl Into<Destination<'o>>,
    ) -> Result<Encoded> {
        let (input, limit) = (self.tensor.input(), self.max_nbytes);
        with_workspace(|workspace| {
            if let Some(calls) = calls {
                let at = self.support;
                return codec.encode_outside(input, state, at, limit, calls, workspace, out);
            }
            match self.support {
                None => codec.encode_into(input, state, limit, workspace, out),
                Some(support) => codec.encode_at(input, state, support, limit, workspace, out),
            }
        })
    }
}

/// The name of an element type, as numpy and torch spell it.
pub(crate) fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "float32",
        Dtype::F64 => "float64",
        Dtype::F16 => "float16",
        Dtype::BF16 => "bfloat16",
    }
}
