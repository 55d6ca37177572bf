//! What the fuzz targets share: codecs, tensors and frames that bytes stand for.

mod bytes;
#[path = "../../tests/drawn/mod.rs"]
mod drawn;
mod entries;
mod run;

pub use bytes::Bytes;
pub use entries::{Entries, Section};
pub use run::{Run, Step, codec};
