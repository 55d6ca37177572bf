//! The options of a part as plain values: what a configuration is made of, in every language.

use crate::{Error, Result};
use std::fmt;

/// A plain value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// No value.
    None,
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Whole(u64),
    /// Any other number.
    Real(f64),
    /// A word.
    Text(String),
    /// Some values in a row.
    List(Vec<Value>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Flag(flag) => flag.fmt(f),
            Self::Whole(number) => number.fmt(f),
            Self::Real(number) => number.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// What an option may be read as.
pub trait Read: Sized {
    /// What a value must be, for the error.
    const EXPECTED: &'static str;

    /// The value, if it is one.
    fn read(value: &Value) -> Option<Self>;
}

/// The options of one part by name, and which part it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    kind: String,
    values: Vec<(String, Value)>,
}

impl Options {
    /// Options of the part with this name in configurations.
    pub fn new(kind: impl Into<String>, values: impl IntoIterator<Item = (String, Value)>) -> Self {
        Self { kind: kind.into(), values: values.into_iter().collect() }
    }

    /// Which part they are of.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The option of this name.
    pub fn get<T: Read>(&self, name: &str) -> Result<T> {
        let given = self.values.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let given = given.ok_or_else(|| {
            Error::argument(format!("{} needs the option {name:?}, which is missing", self.kind))
        })?;
        T::read(given)
            .ok_or_else(|| Error::argument(format!("{name} must be {}, got {given}", T::EXPECTED)))
    }

    /// The option of this name, which is one of these words.
    pub fn choose<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<T> {
        let given: String = self.get(name)?;
        let found = words.iter().find(|(word, _)| *word == given).map(|&(_, meaning)| meaning);
        found.ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            Error::argument(format!("{name} must be one of {}, got {given:?}", words.join(", ")))
        })
    }

    /// The error for a part that is none of these.
    pub(crate) fn unknown(&self, what: &str, kinds: &[&str]) -> Error {
        let (kind, kinds) = (&self.kind, kinds.join(", "));
        Error::argument(format!("{kind:?} is no {what}; there are {kinds}"))
    }
}

impl Read for bool {
    const EXPECTED: &'static str = "true or false";

    fn read(value: &Value) -> Option<Self> {
        if let Value::Flag(flag) = value { Some(*flag) } else { None }
    }
}

impl Read for u64 {
    const EXPECTED: &'static str = "a whole number of up to 64 bits";

    fn read(value: &Value) -> Option<Self> {
        if let Value::Whole(number) = value { Some(*number) } else { None }
    }
}

impl Read for u32 {
    const EXPECTED: &'static str = "a whole number of up to 32 bits";

    fn read(value: &Value) -> Option<Self> {
        u64::read(value)?.try_into().ok()
    }
}

impl Read for u8 {
    const EXPECTED: &'static str = "a whole number of up to 8 bits";

    fn read(value: &Value) -> Option<Self> {
        u64::read(value)?.try_into().ok()
    }
}

impl Read for f64 {
    const EXPECTED: &'static str = "a number";

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::Real(number) => Some(*number),
            Value::Whole(number) => Some(*number as f64),
            _ => None,
        }
    }
}

/// Rounded to the nearest.
impl Read for f32 {
    const EXPECTED: &'static str = f64::EXPECTED;

    fn read(value: &Value) -> Option<Self> {
        f64::read(value).map(|number| number as f32)
    }
}

impl Read for String {
    const EXPECTED: &'static str = "a word";

    fn read(value: &Value) -> Option<Self> {
        if let Value::Text(text) = value { Some(text.clone()) } else { None }
    }
}

impl<T: Read> Read for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn read(value: &Value) -> Option<Self> {
        if *value == Value::None { Some(None) } else { T::read(value).map(Some) }
    }
}

impl<T: Read> Read for [T; 2] {
    const EXPECTED: &'static str = "two values";

    fn read(value: &Value) -> Option<Self> {
        let Value::List(values) = value else { return None };
        let [first, second] = values.as_slice() else { return None };
        Some([T::read(first)?, T::read(second)?])
    }
}
