//! The floating-point mode: what results depend on besides their operands.
//!
//! A thread's control register says how results are rounded, and whether subnormal numbers count as
//! zeros. Programs change it, knowingly (`torch.set_flush_denormal(True)`) or by loading a library
//! that was linked with `-ffast-math`; new threads inherit it. Frames must not depend on that, and
//! nothing that is small may get lost. So every entry of the crate that computes runs in the mode
//! that Rust takes for granted: to nearest, ties to even, with subnormal numbers, without traps.
//!
//! | architecture | register | what is found and not wanted |
//! |---|---|---|
//! | x86-64 | MXCSR | FTZ (bit 15), rounding (13, 14), unmasked exceptions (7 to 12), DAZ (6) |
//! | AArch64 | FPCR | FZ (bit 24), FZ16 (19), rounding (22, 23), DN (25), trapped exceptions, ... |

/// Runs `work` in the standard mode. The mode of before comes back after it, after a panic too.
///
/// Where the mode is the standard one already, this reads a register and compares.
#[inline]
pub fn in_standard_mode<T>(work: impl FnOnce() -> T) -> T {
    let _restored = Restored::enter();
    apart(work)
}

/// Enters the standard mode for good: for threads that run nothing else.
pub(crate) fn keep_standard_mode() {
    std::mem::forget(Restored::enter());
}

/// A call that no arithmetic is moved out of: compilers take it for independent of the mode.
#[inline(never)]
fn apart<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// What the mode was, if that was not the standard one.
struct Restored(Option<Word>);

impl Restored {
    #[inline]
    fn enter() -> Self {
        let found = read();
        if found & CONTROL == STANDARD {
            return Self(None);
        }
        // Exceptions that were noted stay noted.
        write(found & !CONTROL | STANDARD);
        Self(Some(found))
    }
}

impl Drop for Restored {
    #[inline]
    fn drop(&mut self) {
        if let Some(found) = self.0 {
            write(found);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod register {
    use std::arch::asm;

    pub(super) type Word = u32;

    /// All but the flags, which only note what happened.
    pub(super) const CONTROL: Word = 0xFFC0;

    /// All exceptions are masked; the rest is zero.
    pub(super) const STANDARD: Word = 0x1F80;

    #[inline]
    pub(super) fn read() -> Word {
        let mut word = 0;
        // SAFETY: stores the 32 bits of MXCSR to a place that has room for them.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: the word is one that was read, with other values of bits that every x86-64
        // processor has, so that no reserved bit is set. Between the two writes of a scope the mode
        // is the one that Rust takes for granted, and afterwards what the caller had chosen.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod register {
    use std::arch::asm;

    pub(super) type Word = u64;

    /// All of it: what happened is noted in another register.
    pub(super) const CONTROL: Word = Word::MAX;

    pub(super) const STANDARD: Word = 0;

    #[inline]
    pub(super) fn read() -> Word {
        let word;
        // SAFETY: FPCR can be read at any privilege level.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nomem, nostack, preserves_flags)) };
        word
    }

    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: the word is zero, which every processor takes, or one that was read. Between the
        // two writes of a scope the mode is the one that Rust takes for granted, and afterwards what
        // the caller had chosen.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod register {
    //! Nothing is known of other processors: their mode is taken as it is. Miri has no such register.

    pub(super) type Word = u32;

    pub(super) const CONTROL: Word = 0;

    pub(super) const STANDARD: Word = 0;

    pub(super) fn read() -> Word {
        0
    }

    pub(super) fn write(_word: Word) {}
}

use register::{CONTROL, STANDARD, Word, read, write};

#[cfg(test)]
pub(crate) mod testing {
    use super::{Restored, apart, read, write};

    /// Flushes subnormal numbers to zero, and rounds up.
    #[cfg(target_arch = "x86_64")]
    const HOSTILE: super::Word = 0x8000 | 0x4000 | 0x40;
    #[cfg(target_arch = "aarch64")]
    const HOSTILE: super::Word = 1 << 24 | 1 << 22;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    const HOSTILE: super::Word = 0;

    /// Runs `work` as a program would that has changed the mode; checks that it finds it as it was.
    pub(crate) fn in_hostile_mode<T>(work: impl FnOnce() -> T) -> T {
        let _restored = Restored(Some(read()));
        write(read() | HOSTILE);
        let before = read();
        let result = apart(work);
        assert_eq!(read() & super::CONTROL, before & super::CONTROL);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::testing::in_hostile_mode;
    use super::*;

    /// Half of the smallest normal number, and a little more than one.
    fn results() -> [u32; 2] {
        apart(|| [black_box(f32::MIN_POSITIVE) * 0.5, black_box(1.0) + black_box(1e-9_f32)])
            .map(f32::to_bits)
    }

    const EXPECTED: [u32; 2] = [1 << 22, 1_f32.to_bits()];

    #[test]
    fn results_are_those_of_the_standard_mode_inside_and_of_the_callers_outside() {
        assert_eq!(results(), EXPECTED);
        let (before, inside, after) =
            in_hostile_mode(|| (results(), in_standard_mode(results), results()));
        assert_eq!(inside, EXPECTED);
        assert_eq!(before, after);
        if CONTROL != 0 {
            assert_eq!(before, [0, 1_f32.next_up().to_bits()]);
        }
        assert_eq!(results(), EXPECTED);
    }

    #[test]
    fn a_panic_restores_the_mode_too() {
        in_hostile_mode(|| {
            let before = results();
            let caught = std::panic::catch_unwind(|| in_standard_mode(|| panic!("on purpose")));
            assert!(caught.is_err());
            assert_eq!(results(), before);
        });
    }

    #[test]
    fn a_thread_that_inherits_a_mode_can_leave_it_for_good() {
        let found = in_hostile_mode(|| {
            std::thread::spawn(|| {
                keep_standard_mode();
                results()
            })
            .join()
        });
        assert_eq!(found.unwrap(), EXPECTED);
    }
}
