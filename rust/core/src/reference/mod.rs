//! Naive oracles: short, slow, and obviously right. Everything fast is judged by them.

pub mod sidco;
