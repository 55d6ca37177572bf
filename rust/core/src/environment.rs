//! The environment variables, and warnings about values that cannot be used.

use crate::simd::{self, Level};

/// Name of the variable that limits the SIMD level; see [`simd::level`].
pub const SIMD: &str = "GRADWIRE_SIMD";
/// Name of the variable that sets the number of threads; see [`crate::pool::num_threads`].
pub const NUM_THREADS: &str = "GRADWIRE_NUM_THREADS";

/// The most threads that can be asked for: more than any machine has, and few enough to be made.
pub const MOST_THREADS: usize = 4096;

/// The variable's value without surrounding blanks; none where it is not set, or set to nothing.
pub(crate) fn value(name: &str) -> Option<String> {
    let text = std::env::var_os(name)?;
    let text = text.to_string_lossy();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A count of threads, from one to [`MOST_THREADS`].
pub(crate) fn threads(text: &str) -> Option<usize> {
    text.parse().ok().filter(|threads| (1..=MOST_THREADS).contains(threads))
}

/// One message for each variable whose value is ignored: the value, what is allowed, and what is used
/// instead.
pub fn complaints() -> Vec<String> {
    let simd = value(SIMD).and_then(|text| about_simd(&text));
    let threads = value(NUM_THREADS).and_then(|text| about_threads(&text));
    simd.into_iter().chain(threads).collect()
}

fn about_simd(text: &str) -> Option<String> {
    let names: Vec<_> = simd::available_levels().into_iter().map(Level::name).collect();
    let why = match Level::from_name(text) {
        Some(level) if level.is_available() => return None,
        Some(_) => "this CPU does not support it",
        None => "there is no such level",
    };
    let used = simd::level().name();
    let known = names.join(", ");
    Some(format!("{SIMD}={text} is ignored: {why}. Set one of {known}; using {used}"))
}

fn about_threads(text: &str) -> Option<String> {
    threads(text).is_none().then(|| {
        format!(
            "{NUM_THREADS}={text} is ignored: it must be a whole number from 1 to {MOST_THREADS}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_that_are_there_in_any_case_are_no_matter() {
        for level in simd::available_levels() {
            assert_eq!(about_simd(level.name()), None);
            assert_eq!(about_simd(&level.name().to_uppercase()), None);
        }
    }

    #[test]
    fn unknown_and_missing_levels_are_named() {
        assert!(about_simd("avx1024").is_some_and(|text| text.contains("no such level")));
        let missing = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
        assert!(about_simd(missing).is_some_and(|text| text.contains("does not support")));
    }

    #[test]
    fn a_number_of_threads_is_one_that_a_machine_may_have() {
        assert_eq!(threads("3"), Some(3));
        assert_eq!(threads("4096"), Some(4096));
        for text in ["0", "-1", "abc", "1.5", "4097", "18446744073709551616"] {
            assert_eq!(threads(text), None);
            assert!(about_threads(text).is_some_and(|complaint| complaint.contains(text)));
        }
        assert_eq!(about_threads("2"), None);
    }
}
