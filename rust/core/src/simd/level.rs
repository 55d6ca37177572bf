//! Instruction-set levels: which this CPU has, and which one to use.

use crate::environment;

/// An instruction-set level. All levels give the same bytes; they differ in speed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// What the target's baseline offers, by plain Rust.
    Scalar,
    /// 128-bit Advanced SIMD, the baseline of AArch64.
    Neon,
    /// 256-bit vectors: AVX2, BMI1, BMI2, F16C, FMA, LZCNT and POPCNT.
    Avx2,
    /// 512-bit vectors: AVX-512 F, BW, DQ and VL on top of AVX2.
    Avx512,
}

impl Level {
    pub(super) const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// The name that `GRADWIRE_SIMD` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The level of that name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(name))
    }

    /// Whether this CPU can run the level.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Neon => cfg!(target_arch = "aarch64"),
            Self::Avx2 => has_avx2(),
            Self::Avx512 => has_avx2() && has_avx512(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

/// The levels of this CPU, lowest first.
pub fn available_levels() -> Vec<Level> {
    Level::ALL.into_iter().filter(|level| level.is_available()).collect()
}

/// The highest available level, unless the environment variable `GRADWIRE_SIMD` names a lower one. A
/// name that is unknown, or not available here, is ignored, because the variable may only lower the
/// level; [`environment::complaints`] then says so.
pub(super) fn preferred() -> Level {
    let wanted = environment::value(environment::SIMD);
    let named = wanted.as_deref().and_then(Level::from_name).filter(|l| l.is_available());
    let highest = available_levels().into_iter().next_back().unwrap_or(Level::Scalar);
    named.unwrap_or(highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_there_and_levels_ascend() {
        let levels = available_levels();
        assert_eq!(levels[0], Level::Scalar);
        assert!(levels.windows(2).all(|w| w[0] < w[1]));
        assert!(levels.contains(&preferred()));
    }

    #[test]
    fn names_round_trip() {
        for level in Level::ALL {
            assert_eq!(Level::from_name(level.name()), Some(level));
            assert_eq!(Level::from_name(&level.name().to_uppercase()), Some(level));
        }
        assert_eq!(Level::from_name("avx1024"), None);
    }

    /// By the kernel's list of this CPU's features, which asks the CPU by itself.
    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[cfg_attr(miri, ignore = "there is no list of features")]
    fn a_level_is_there_where_the_cpu_has_its_features() {
        const AVX2: &[&str] = &["avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "popcnt"];
        const AVX512: &[&str] = &["avx512f", "avx512bw", "avx512dq", "avx512vl"];
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = cpus.lines().find(|line| line.starts_with("flags")).unwrap();
        let has =
            |wanted: &[&str]| wanted.iter().all(|w| flags.split_whitespace().any(|f| f == *w));
        assert_eq!(Level::Avx2.is_available(), has(AVX2));
        assert_eq!(Level::Avx512.is_available(), has(AVX2) && has(AVX512));
        assert!(!Level::Neon.is_available());
    }
}
