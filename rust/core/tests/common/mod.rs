//! The golden frames and their manifest, as the tests of the wire format read them.

#![allow(dead_code, reason = "each test that includes this uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::path::PathBuf;

use gradwire_core::Dtype;
use gradwire_core::frame::{self, Layout};
use gradwire_core::pack::{Chunks, Coding, Draw, DrawKind, IndexCoding, Pattern};
use gradwire_core::part::{self, Options};
use gradwire_core::quantize::Quantizer;
use gradwire_core::rng::Key;
use gradwire_core::sparsify::SparsifierId;
use serde_json::Value;

/// Where the frames of version 1 are.
pub fn directory() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../tests/golden/v1"].iter().collect()
}

/// One entry of the manifest: what was written, and what must be read.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub layout: Layout,
    pub coding: Coding,
    pub exponent: i16,
    pub numel: u64,
    pub count: u64,
    pub length: usize,
    pub indices: Vec<u32>,
    /// Values given to the writer.
    pub source: Vec<f32>,
    /// Values that a reader finds.
    pub values: Vec<f32>,
}

impl Case {
    pub fn path(&self) -> PathBuf {
        directory().join(format!("{}.gwf", self.name))
    }

    pub fn read(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// What this version of the crate writes for the case.
    pub fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        frame::write_into(&self.layout, self.numel, Some(&self.indices), &self.source, &mut out)
            .unwrap_or_else(|e| panic!("{}: {e}", self.name));
        out
    }

    /// The tensor that the frame stands for.
    pub fn tensor(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.numel as usize];
        for (&index, &value) in self.indices.iter().zip(&self.values) {
            out[index as usize] = value;
        }
        out
    }

    fn from_json(case: &Value) -> Self {
        let text = |field: &str| case[field].as_str().unwrap();
        let number = |field: &str| case[field].as_i64().unwrap();
        let bits = |field: &str| {
            let bits = |v: &Value| u32::from_str_radix(v.as_str().unwrap(), 16).unwrap();
            case[field].as_array().unwrap().iter().map(|v| f32::from_bits(bits(v))).collect()
        };
        let indices = case["indices"].as_array().unwrap().iter();
        Self {
            name: text("name").to_owned(),
            layout: Layout {
                dtype: dtype(text("dtype")),
                sparsifier: sparsifier(text("sparsifier")),
                quantizer: quantizer(text("quantizer"), &case["options"]),
                indices: allowed(text("allowed")),
                pattern: pattern(&case["pattern"]),
            },
            coding: coding(text("coding"), number("coding_parameter") as u8, &case["pattern"]),
            exponent: number("exponent") as i16,
            numel: number("numel") as u64,
            count: number("count") as u64,
            length: number("length") as usize,
            indices: indices.map(|v| v.as_u64().unwrap() as u32).collect(),
            source: bits("source"),
            values: bits("values"),
        }
    }
}

/// All cases of the manifest.
pub fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(directory().join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    manifest.as_array().unwrap().iter().map(Case::from_json).collect()
}

fn dtype(name: &str) -> Dtype {
    match name {
        "float32" => Dtype::F32,
        "float64" => Dtype::F64,
        "float16" => Dtype::F16,
        "bfloat16" => Dtype::BF16,
        other => panic!("dtype {other}"),
    }
}

fn sparsifier(name: &str) -> SparsifierId {
    SparsifierId::KNOWN.iter().find(|(_, known)| *known == name).unwrap().0
}

/// The options are those that a frame depends on; the others are as they were written with.
fn quantizer(name: &str, options: &Value) -> Quantizer {
    let (kind, scaled) = if name == "float16_scaled" { ("float16", true) } else { (name, false) };
    let given = options.as_object().into_iter().flatten();
    let given = given.map(|(name, value)| (name.clone(), option(value)));
    let others = [
        ("scaled", part::Value::Flag(scaled)),
        ("rounding", part::Value::Text("nearest".into())),
        ("seed", part::Value::Whole(0)),
    ];
    let others = others.map(|(name, value)| (name.to_owned(), value));
    Quantizer::read(&Options::new(kind.replace('-', "_"), given.chain(others))).unwrap()
}

fn option(value: &Value) -> part::Value {
    match value {
        Value::Null => part::Value::None,
        Value::Bool(flag) => part::Value::Flag(*flag),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => part::Value::Whole(whole),
            None => part::Value::Real(number.as_f64().unwrap()),
        },
        Value::String(text) => part::Value::Text(text.clone()),
        Value::Array(_) | Value::Object(_) => panic!("no option is {value}"),
    }
}

fn allowed(name: &str) -> IndexCoding {
    match name {
        "auto" => IndexCoding::Auto,
        "elias_fano" => IndexCoding::EliasFano,
        "rice" => IndexCoding::Rice,
        "bitmap" => IndexCoding::Bitmap,
        other => panic!("index coding {other}"),
    }
}

/// What the writer knew of the positions; nothing where the manifest says nothing.
fn pattern(known: &Value) -> Pattern {
    let number = |field: &str| known[field].as_u64().unwrap() as u32;
    let Some(kind) = known["kind"].as_str() else { return Pattern::Any };
    if kind == "chunks" {
        return Pattern::Chunks(Chunks::new(number("size"), number("k")).unwrap());
    }
    let key = Key::from_bits(u64::from_str_radix(known["key"].as_str().unwrap(), 16).unwrap());
    let kind = if kind == "run" { DrawKind::Run } else { DrawKind::Subset };
    Pattern::Drawn(Draw { kind, key })
}

fn coding(name: &str, parameter: u8, known: &Value) -> Coding {
    match (name, pattern(known)) {
        ("chunk_local", Pattern::Chunks(chunks)) => return Coding::ChunkLocal(chunks),
        ("seeded", Pattern::Drawn(draw)) => return Coding::Seeded(draw),
        _ => {}
    }
    match name {
        "none" => Coding::None,
        "elias_fano" => Coding::EliasFano { low_bits: parameter },
        "rice" => Coding::Rice { bits: parameter },
        "bitmap" => Coding::Bitmap,
        other => panic!("coding {other}"),
    }
}
