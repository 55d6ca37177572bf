//! Any scalars, residual and momentum, as a checkpoint has them: an error that changes nothing, or a
//! state that has taken them over, and encodes as it does at every level.
#![no_main]

use gradwire_core::simd::{Kernels, Level};
use gradwire_fuzz::{Bytes, Run, Step, codec};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let bytes = &mut Bytes(data);
    let numel = bytes.numel();
    let Some(codec) = codec(bytes, numel) else { return };
    let (lowest, highest) = (Kernels::of(Level::Scalar).unwrap(), Kernels::current());
    let mut saved = Run::new(codec, numel, highest);
    let _ = saved.step(&Step::draw(bytes, &codec, numel));
    let scalars = bytes.scalars(saved.state.scalars());
    let (residual, momentum) = (bytes.floats(numel), bytes.floats(numel));
    let mut runs = [lowest, highest].map(|kernels| Run::new(codec, numel, kernels));
    runs.iter_mut().for_each(|run| run.load(&scalars, &residual, &momentum));
    while !bytes.0.is_empty() {
        let step = Step::draw(bytes, &codec, numel);
        let [low, high] = runs.each_mut().map(|run| (run.checked(&step), run.seen()));
        assert_eq!(low, high);
        assert_eq!(runs[0].frame, runs[1].frame);
    }
});
