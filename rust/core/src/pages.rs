//! Large memory of which the kernel is asked to make huge pages.
//!
//! A step over 25 million entries touches 75 000 ordinary pages, more than the processor remembers
//! the addresses of, and 150 huge ones. Linux makes them where a program asks, for which the setting
//! is `madvise` on most systems; allocators do not ask.

use memmap2::{Advice, MmapMut};

/// A huge page where ordinary ones are of 4 KiB. Where they are not, less is gained.
const HUGE: usize = 2 << 20;

/// Bytes from which on the memory of an allocation is mapped in this way.
const LARGE: usize = 2 * HUGE;

/// Zeros that begin on a huge page. A process that forks shares them until either writes.
pub(crate) struct Pages {
    map: MmapMut,
    start: usize,
    len: usize,
}

impl Pages {
    /// `len` bytes of zeros; none where they are few or the kernel declines.
    pub fn zeros(len: usize) -> Option<Self> {
        if len < LARGE {
            return None;
        }
        let map = MmapMut::map_anon(len.checked_add(HUGE)?).ok()?;
        let start = (map.as_ptr() as usize).wrapping_neg() % HUGE;
        // Not for the last part of a page, which would take the memory of a whole one.
        map.advise_range(Advice::HugePage, start, len / HUGE * HUGE).ok()?;
        Some(Self { map, start, len })
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.map[self.start..][..self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.map[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel was told about the mapping at an address, as two-letter words.
    fn flags_at(address: usize) -> Option<String> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut inside = false;
        for line in smaps.lines() {
            let range = line.split(' ').next()?.split_once('-');
            let bound = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(from), Some(to))) = range.map(|(a, b)| (bound(a), bound(b))) {
                inside = (from..to).contains(&address);
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return Some(flags.to_owned());
            }
        }
        None
    }

    #[test]
    #[cfg_attr(not(target_arch = "x86_64"), ignore = "emulators take the advice and forget it")]
    fn the_kernel_is_asked_for_huge_pages() {
        let mut pages = Pages::zeros(8 * HUGE + 12345).unwrap();
        assert_eq!(pages.as_slice().len(), 8 * HUGE + 12345);
        assert_eq!(pages.as_slice().as_ptr() as usize % HUGE, 0);
        assert!(pages.as_slice().iter().all(|&byte| byte == 0));
        pages.as_mut_slice().fill(1);
        // Whether there are any to give is up to the kernel.
        if std::fs::exists("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or(false) {
            let flags = flags_at(pages.as_slice().as_ptr() as usize).unwrap();
            assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}");
        }
    }

    #[test]
    fn little_memory_is_left_to_the_allocator() {
        assert!(Pages::zeros(LARGE - 1).is_none());
        assert!(Pages::zeros(LARGE).is_some());
        assert!(Pages::zeros(usize::MAX).is_none());
    }
}
