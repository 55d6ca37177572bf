//! Options, as they are read of parts.

use super::{Options, Value};
use crate::quantize::{Norm, Quantizer, Uniform};

fn options(kind: &str, values: &[(&str, Value)]) -> Options {
    Options::new(kind, values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())))
}

#[test]
fn a_part_is_read_of_its_options() {
    let word = |text: &str| Value::Text(text.to_owned());
    let given = [
        ("bits", Value::Whole(3)),
        ("block", Value::Whole(100)),
        ("norm", word("max")),
        ("seed", Value::Whole(7)),
    ];
    let uniform = Uniform { bits: 3, block: 100, norm: Norm::Max, seed: 7 };
    assert_eq!(Quantizer::read(&options("uniform", &given)), Ok(Quantizer::Uniform(uniform)));
    for (at, value, expected) in [
        (0, Value::Whole(256), "bits must be a whole number of up to 8 bits, got 256"),
        (1, Value::Real(1.5), "block must be a whole number of up to 32 bits, got 1.5"),
        (2, word("l1"), "norm must be one of l2, max, got \"l1\""),
        (3, Value::None, "seed must be a whole number of up to 64 bits, got none"),
    ] {
        let mut wrong = given.clone();
        wrong[at].1 = value;
        let error = Quantizer::read(&options("uniform", &wrong)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let error = Quantizer::read(&options("uniform", &given[..3])).unwrap_err();
    assert_eq!(error.to_string(), "uniform needs the option \"seed\", which is missing");
    let error = Quantizer::read(&options("cube", &[])).unwrap_err();
    assert!(error.to_string().starts_with("\"cube\" is no quantizer; there are float32, "));
}

#[test]
fn values_are_read_as_what_they_can_be() {
    let given = [
        ("none", Value::None),
        ("flag", Value::Flag(true)),
        ("whole", Value::Whole(2)),
        ("real", Value::Real(0.1)),
        ("pair", Value::List(vec![Value::Real(0.5), Value::Whole(2)])),
    ];
    let options = options("any", &given);
    assert_eq!(options.get::<Option<u32>>("none"), Ok(None));
    assert_eq!(options.get::<Option<u32>>("whole"), Ok(Some(2)));
    assert_eq!(options.get::<f64>("whole"), Ok(2.0));
    assert_eq!(options.get::<f32>("real"), Ok(0.1));
    assert_eq!(options.get::<bool>("flag"), Ok(true));
    assert_eq!(options.get::<Option<[f64; 2]>>("pair"), Ok(Some([0.5, 2.0])));
    let error = options.get::<[u32; 2]>("pair").unwrap_err();
    assert_eq!(error.to_string(), "pair must be two values, got [0.5, 2]");
}
