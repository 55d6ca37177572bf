//! The state of one tensor, shared between Python threads without blocking.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use gradwire_core::Input;
use gradwire_core::codec::{self, Encoded};
use gradwire_core::rng::tensor_id;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::{Tensor, Writable, to_numpy};
use crate::codec::Codec;
use crate::errors::{state_in_use, to_py};
use crate::interrupt::Keeper;
use crate::number::{number, optional};
use crate::scratch;

/// The part of `gradwire.State` that lives in the core.
#[pyclass(frozen, subclass, module = "gradwire._native")]
pub(crate) struct State {
    /// One of the kind that this state is for.
    kind: Arc<codec::Codec>,
    /// Held for no longer than it takes to look, so that nobody waits for an encode.
    used: Mutex<Used>,
    /// The quantizer, if it is written in Python: name and options.
    outside: Option<String>,
    numel: usize,
    name: Option<String>,
    stream: u64,
    inner: Mutex<Inner>,
}

/// What a thread must own to encode.
pub(crate) struct Inner {
    pub(crate) state: codec::State,
    pub(crate) last: Option<Encoded>,
    /// Who keeps the result of the last encode.
    pub(crate) keeper: Option<Keeper>,
}

impl Drop for State {
    fn drop(&mut self) {
        scratch::release();
    }
}

/// The `gradwire.Codec` that encoded last, or that made the state.
struct Used {
    codec: Py<PyAny>,
    /// What it was before the last encode, for as long as that can be rolled back.
    previous: Option<Py<PyAny>>,
}

impl State {
    /// Take note of what a successful encode came to, and of the `gradwire.Codec` that made it.
    pub(crate) fn committed(
        &self,
        inner: &mut Inner,
        encoded: Encoded,
        codec: Py<PyAny>,
        keeper: Option<Keeper>,
    ) {
        inner.last = Some(encoded);
        inner.keeper = keeper;
        let mut used = self.used();
        let previous = std::mem::replace(&mut used.codec, codec);
        let forgotten = used.previous.replace(previous);
        // It may be the last reference, and whatever runs then must not find this locked.
        drop(used);
        drop(forgotten);
    }

    /// Whether the encode that this keeper was for is undone: now, or already. It cannot be if there
    /// was another one since.
    pub(crate) fn undo(&self, py: Python<'_>, keeper: Keeper) -> bool {
        let Ok(mut inner) = self.lock(py) else { return false };
        if inner.last.is_none() {
            return true;
        }
        if inner.keeper != Some(keeper) || inner.state.rollback().is_err() {
            return false;
        }
        inner.last = None;
        self.uncommit();
        true
    }

    fn uncommit(&self) {
        let mut used = self.used();
        let previous = used.previous.take();
        let undone = previous.map(|previous| std::mem::replace(&mut used.codec, previous));
        drop(used);
        drop(undone);
    }

    fn replace(&self, used: Used) {
        let forgotten = std::mem::replace(&mut *self.used(), used);
        drop(forgotten);
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        // Nothing that is done with it can panic half-way.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take hold of the state, or say that another thread has it. Never waits: a second thread
    /// here is a mistake of the caller, and one that waited with the GIL held could deadlock.
    pub(crate) fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::WouldBlock) => Err(state_in_use(py, self.name())),
            Err(TryLockError::Poisoned(_)) => Err(PyRuntimeError::new_err(
                "an earlier call with this state failed halfway; load a state_dict into a new state",
            )),
        }
    }

    pub(crate) fn kind(&self) -> &Arc<codec::Codec> {
        &self.kind
    }

    pub(crate) fn outside(&self) -> Option<&str> {
        self.outside.as_deref()
    }

    pub(crate) fn stream(&self) -> u64 {
        self.stream
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn numel(&self) -> usize {
        self.numel
    }
}

#[pymethods]
impl State {
    #[new]
    #[pyo3(signature = (codec, numel, name=None, stream=None))]
    fn new(
        py: Python<'_>,
        codec: &Bound<'_, Codec>,
        numel: &Bound<'_, PyAny>,
        name: Option<String>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let numel: usize = number("numel", numel)?;
        let stream: u64 = optional("stream", stream)?.unwrap_or(0);
        let used = Mutex::new(Used { codec: codec.get().owner(py)?, previous: None });
        let kind = Arc::clone(codec.get().inner());
        let state = kind.init_state(numel).map_err(|error| to_py(py, error, name.as_deref()))?;
        let state = state.identified(tensor_id(name.as_deref().unwrap_or_default()), stream);
        let inner = Mutex::new(Inner { state, last: None, keeper: None });
        let outside = codec.get().identity().map(str::to_owned);
        Ok(Self { kind, used, outside, numel, name, stream, inner })
    }

    // A codec may hold a sparsifier of the user's, and that whatever it likes.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(used) = self.used.try_lock() else { return Ok(()) };
        visit.call(&used.codec)?;
        visit.call(&used.previous)
    }

    #[getter]
    fn codec(&self, py: Python<'_>) -> Py<PyAny> {
        self.used().codec.clone_ref(py)
    }

    #[getter(numel)]
    fn py_numel(&self) -> usize {
        self.numel
    }

    #[getter(name)]
    fn py_name(&self) -> Option<&str> {
        self.name()
    }

    #[getter(stream)]
    fn py_stream(&self) -> u64 {
        self.stream
    }

    #[getter]
    fn step(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lock(py)?.state.step())
    }

    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.state.nbytes())
    }

    #[getter]
    fn residual<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        widened(py, self.lock(py)?.state.stored_residual())
    }

    #[getter]
    fn residual_norm(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let inner = self.lock(py)?;
        let state = &inner.state;
        Ok(py.detach(|| state.residual_norm()))
    }

    #[getter]
    fn momentum<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        array(py, self.lock(py)?.state.momentum().map(Input::F32))
    }

    #[getter]
    fn second_moment<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        widened(py, self.lock(py)?.state.stored_second_moment())
    }

    #[getter]
    fn estimate<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        array(py, self.lock(py)?.state.estimate().map(Input::F32))
    }

    #[getter]
    fn learning_rate(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        Ok(self.lock(py)?.state.learning_rate())
    }

    #[setter]
    fn set_learning_rate(&self, py: Python<'_>, learning_rate: &Bound<'_, PyAny>) -> PyResult<()> {
        let rate: f64 = number("learning_rate", learning_rate)?;
        let set = self.lock(py)?.state.set_learning_rate(rate);
        set.map_err(|error| to_py(py, error, self.name()))
    }

    #[getter]
    fn last<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(last) = self.lock(py)?.last else { return Ok(None) };
        let fields = PyDict::new(py);
        fields.set_item("count", last.count)?;
        fields.set_item("target", last.target)?;
        fields.set_item("threshold", last.threshold)?;
        fields.set_item("trimmed", last.trimmed)?;
        Ok(Some(fields))
    }

    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        let mut inner = self.lock(py)?;
        inner.state.rollback().map_err(|error| to_py(py, error, self.name()))?;
        inner.last = None;
        self.uncommit();
        Ok(())
    }

    /// Take the residual of a range out: see `codec::State::lift`.
    fn _lift<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let lifted = self.lock(py)?.state.lift(start..stop);
        to_numpy(py, "float32", &lifted.map_err(|error| to_py(py, error, self.name()))?)
    }

    /// Put it back after an encode, if there was one since `step`.
    fn _lower(
        &self,
        py: Python<'_>,
        start: usize,
        lifted: &Bound<'_, PyAny>,
        step: u64,
    ) -> PyResult<()> {
        let lifted = Tensor::get("lifted", lifted, false)?;
        let lowered = self.lock(py)?.state.lower(start, lifted.floats()?, step);
        lowered.map_err(|error| to_py(py, error, self.name()))
    }

    /// Make the mean of what all ranks have sent that of their estimates: see `codec::State::deliver`.
    #[pyo3(signature = (mean, scale=1.0))]
    fn deliver(&self, py: Python<'_>, mean: &Bound<'_, PyAny>, scale: f32) -> PyResult<()> {
        let mut mean = Writable::floats("mean", mean)?;
        let mut inner = self.lock(py)?;
        let (state, mean) = (&mut inner.state, mean.as_mut_slice());
        let delivered = py.detach(|| state.deliver(mean, scale));
        delivered.map_err(|error| to_py(py, error, self.name()))
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let mut inner = self.lock(py)?;
        inner.state.reset();
        inner.last = None;
        Ok(())
    }

    /// One consistent view: copies of what is kept of each entry, and all else by name.
    #[allow(clippy::type_complexity)]
    fn _get<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(HashMap<&'static str, Option<Bound<'py, PyAny>>>, HashMap<String, f64>)> {
        let inner = self.lock(py)?;
        let state = &inner.state;
        let copy = |buffer: &KeptBuffer| Ok((buffer.name, array(py, (buffer.get)(state))?));
        let arrays = BUFFERS.iter().map(copy).collect::<PyResult<_>>()?;
        Ok((arrays, state.scalars().into_iter().collect()))
    }

    /// Replace everything at once, or nothing on an error, by what a state of `codec` was.
    #[allow(clippy::needless_pass_by_value)]
    fn _set(
        &self,
        py: Python<'_>,
        codec: &Bound<'_, Codec>,
        arrays: HashMap<String, Option<Bound<'_, PyAny>>>,
        scalars: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let given = scalars_of(scalars)?;
        let array = |buffer: &KeptBuffer| {
            let array = arrays.get(buffer.name).and_then(Option::as_ref);
            // What is in bfloat16 comes as its bits.
            let bits = |array| Tensor::get(buffer.name, array, true);
            let get = |array| bits(array).or_else(|_| Tensor::get(buffer.name, array, false));
            array.map(get).transpose()
        };
        let arrays = BUFFERS.iter().map(array).collect::<PyResult<Vec<_>>>()?;
        let mut inner = self.lock(py)?;
        for (buffer, array) in BUFFERS.iter().zip(&arrays) {
            let has = (buffer.get)(&inner.state).is_some();
            expected(buffer.name, buffer.part, has, array.is_some())?;
        }
        let arrays = arrays.iter().map(|array| array.as_ref().map(Tensor::input));
        let restore = || -> gradwire_core::Result<codec::State> {
            let tensor = tensor_id(self.name().unwrap_or_default());
            let fresh = codec.get().inner().init_state(self.numel)?;
            let mut state = fresh.identified(tensor, self.stream);
            for (buffer, values) in BUFFERS.iter().zip(arrays) {
                values.map_or(Ok(()), |values| (buffer.set)(&mut state, values))?;
            }
            state.load_scalars(&given)?;
            Ok(state)
        };
        let loaded = Used { codec: codec.get().owner(py)?, previous: None };
        let restored = restore().map_err(|error| to_py(py, error, self.name()))?;
        let known: HashMap<String, f64> = restored.scalars().into_iter().collect();
        if let Some((name, _)) = given.iter().find(|(name, _)| !known.contains_key(name)) {
            return Err(PyValueError::new_err(format!("scalars has an unknown entry '{name}'")));
        }
        inner.state = restored;
        inner.last = None;
        self.replace(loaded);
        Ok(())
    }
}

/// What a state may keep of each entry.
struct KeptBuffer {
    name: &'static str,
    /// What keeps it.
    part: &'static str,
    get: fn(&codec::State) -> Option<Input<'_>>,
    set: fn(&mut codec::State, Input<'_>) -> gradwire_core::Result<()>,
}

const BUFFERS: [KeptBuffer; 4] = [
    KeptBuffer {
        name: "residual",
        part: "a memory",
        get: codec::State::stored_residual,
        set: codec::State::set_stored_residual,
    },
    KeptBuffer {
        name: "momentum",
        part: "momentum correction",
        get: |state| state.momentum().map(Input::F32),
        set: |state, values| state.set_momentum(floats(values)?),
    },
    KeptBuffer {
        name: "second_moment",
        part: "Adam's correction",
        get: codec::State::stored_second_moment,
        set: codec::State::set_stored_second_moment,
    },
    KeptBuffer {
        name: "estimate",
        part: "an estimate",
        get: |state| state.estimate().map(Input::F32),
        set: |state, values| state.set_estimate(floats(values)?),
    },
];

/// The values of what is always float32.
fn floats(values: Input<'_>) -> gradwire_core::Result<&[f32]> {
    let Input::F32(values) = values else {
        let reason = "a momentum must be float32".to_owned();
        return Err(gradwire_core::Error::Argument { reason });
    };
    Ok(values)
}

/// Numbers by name.
fn scalars_of(scalars: &Bound<'_, PyDict>) -> PyResult<Vec<(String, f64)>> {
    let entry = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name: String = number("a key of scalars", &name)?;
        let value = number(&format!("'{name}' in scalars"), &value)?;
        Ok((name, value))
    };
    scalars.iter().map(entry).collect()
}

/// A copy, if there is something: of bfloat16 its bits.
fn array<'py>(py: Python<'py>, values: Option<Input<'_>>) -> PyResult<Option<Bound<'py, PyAny>>> {
    match values {
        Some(Input::F32(values)) => to_numpy(py, "float32", values).map(Some),
        Some(Input::BF16(values)) => to_numpy(py, "uint16", values).map(Some),
        _ => Ok(None),
    }
}

/// A copy in float32, if there is something.
fn widened<'py>(py: Python<'py>, values: Option<Input<'_>>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(Input::BF16(values)) = values else { return array(py, values) };
    let values: Vec<_> = values.iter().map(|value| value.to_f32()).collect();
    array(py, Some(Input::F32(&values)))
}

/// Check that an array is given exactly if the codec has what it belongs to.
fn expected(name: &str, part: &str, has: bool, given: bool) -> PyResult<()> {
    if given == has {
        return Ok(());
    }
    Err(PyValueError::new_err(if has {
        format!("{name} must be an array: the codec has {part}, got None")
    } else {
        format!(
            "{name} must be None: the codec has no {}, got an array",
            part.trim_start_matches("a ")
        )
    }))
}
