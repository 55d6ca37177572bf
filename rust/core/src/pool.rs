//! The threads of this crate: one pool, made on first use, that a forked child replaces by its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::environment;

/// How many threads to use; zero before anybody asked.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The pool, the process that made it, and how many threads it has.
static POOL: Mutex<Option<(u32, usize, Arc<ThreadPool>)>> = Mutex::new(None);

/// Uses `threads` threads from now on, at least one.
pub fn set_num_threads(threads: usize) {
    THREADS.store(threads.max(1), Ordering::Relaxed);
}

/// How many threads a call on a large tensor uses: what [`set_num_threads`] said, or else the
/// environment variable `GRADWIRE_NUM_THREADS`, or else `OMP_NUM_THREADS` (of a list, its first
/// number), or else the cores of the machine, eight at most (by then memory is the limit). What is
/// not a number of threads is passed over; [`environment::complaints`] tells.
pub fn num_threads() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => {
            let threads = from_environment();
            THREADS.store(threads, Ordering::Relaxed);
            threads
        }
        threads => threads,
    }
}

fn from_environment() -> usize {
    let own = environment::value(environment::NUM_THREADS);
    let openmp = || {
        let list = environment::value("OMP_NUM_THREADS")?;
        environment::threads(list.split(',').next()?.trim())
    };
    own.and_then(|text| environment::threads(&text))
        .or_else(openmp)
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get().min(8)))
}

/// A pool of that many threads, or none: then the caller does the work itself. Never blocks, so a
/// child that was forked while another thread was in here goes on alone instead of waiting for a
/// thread that it does not have.
pub(crate) fn acquire(threads: usize) -> Option<Arc<ThreadPool>> {
    if threads < 2 {
        return None;
    }
    let mut guard = POOL.try_lock().ok()?;
    let process = std::process::id();
    if let Some((owner, size, pool)) = guard.as_ref()
        && *owner == process
        && *size == threads
    {
        return Some(Arc::clone(pool));
    }
    let name = |i| format!("gradwire-{i}");
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build().ok()?;
    let pool = Arc::new(pool);
    if let Some((owner, _, old)) = guard.replace((process, threads, Arc::clone(&pool)))
        && owner != process
    {
        // Its threads stayed behind in the parent: shutting it down would wait for them.
        std::mem::forget(old);
    }
    Some(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_needs_no_pool_and_more_share_one() {
        assert!(acquire(1).is_none());
        let sizes: Vec<_> =
            (0..3).filter_map(|_| acquire(2)).map(|p| p.current_num_threads()).collect();
        assert!(sizes.iter().all(|&size| size == 2));
    }

    #[test]
    fn there_is_always_a_thread() {
        assert!(num_threads() >= 1);
    }
}
