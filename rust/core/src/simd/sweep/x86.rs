//! AVX2 and AVX-512: sixteen float32 in two registers, or in one.

use super::element::Element;
use super::groups::{GROUP, choose, level, run_with};
use super::{Feedback, Found, Gather};
use crate::Input;

mod avx2_vector;
mod avx512_vector;

level!(avx2, "avx2,bmi1,bmi2,f16c,lzcnt,popcnt", avx2_vector::Pair);
level!(avx512, "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt", avx512_vector::Whole);

pub(super) mod steps {
    use super::super::Moment;
    use super::super::groups::{choose_steps, run_steps_with, steps_level};
    use super::{Feedback, Found, GROUP, Gather, avx2_vector, avx512_vector};

    steps_level!(avx2, "avx2,bmi1,bmi2,f16c,lzcnt,popcnt", avx2_vector::Pair);
    steps_level!(
        avx512,
        "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt",
        avx512_vector::Whole
    );
}
