//! The thread pool of this crate, created on first use. A forked child replaces it with its own.
//!
//! Each call decides how many threads it uses, by splitting its work into that many parts. The pool
//! grows if a call needs more threads than it has, and never shrinks.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::environment;
use crate::simd::float_mode::keep_standard_mode;

/// How many threads to use; zero before anybody asked.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The pool of this process.
static POOL: Shared = Shared(Mutex::new(None));

/// A pool, and the process that made it.
struct Shared(Mutex<Option<(u32, Arc<ThreadPool>)>>);

/// Sets the number of threads that a call may use, at least one.
pub fn set_num_threads(threads: usize) {
    THREADS.store(threads.max(1), Ordering::Relaxed);
}

/// The number of threads for a call on a large tensor: the value passed to [`set_num_threads`], or
/// the environment variable `GRADWIRE_NUM_THREADS`, or `OMP_NUM_THREADS` (the first number of a list),
/// or the number of cores, at most eight (more do not help, because memory is the limit). Invalid
/// values are skipped; [`environment::complaints`] reports them.
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
    let (own, openmp) =
        (environment::value(environment::NUM_THREADS), environment::value("OMP_NUM_THREADS"));
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    wanted(own.as_deref(), openmp.as_deref(), cores)
}

/// The number of threads, given both variables and the number of cores.
fn wanted(own: Option<&str>, openmp: Option<&str>, cores: usize) -> usize {
    let first = |list: &str| environment::threads(list.split(',').next()?.trim());
    own.and_then(environment::threads).or_else(|| openmp.and_then(first)).unwrap_or(cores.min(8))
}

/// A pool of that many threads at least, or none: then the caller does the work itself. Never
/// blocks, so a child that was forked while another thread was in here goes on alone instead of
/// waiting for a thread that it does not have.
pub(crate) fn acquire(threads: usize) -> Option<Arc<ThreadPool>> {
    if threads < 2 { None } else { POOL.acquire(threads, num_threads()) }
}

/// Has so many threads do `count` pieces of work: `work` gets some, and `each` elements of `out` for every
/// one but the last, which may have fewer. The caller is one of them: it begins at once, while others wake up.
pub(crate) fn share<T: Send>(
    threads: usize,
    count: usize,
    each: usize,
    out: &mut [T],
    work: &(impl Fn(Range<usize>, &mut [T]) + Sync),
) {
    let threads = threads.min(count);
    let Some(pool) = acquire(threads) else { return work(0..count, out) };
    pool.in_place_scope(|scope| {
        let (mut start, mut rest) = (0, out);
        for thread in 1..=threads {
            let pieces = start..count * thread / threads;
            let (own, after) = rest.split_at_mut((pieces.len() * each).min(rest.len()));
            (start, rest) = (pieces.end, after);
            if thread == threads {
                work(pieces, own);
            } else {
                scope.spawn(move |_| work(pieces, own));
            }
        }
    });
}

impl Shared {
    /// A pool of `threads` at least; one that has to be made has `usual` threads at least.
    fn acquire(&self, threads: usize, usual: usize) -> Option<Arc<ThreadPool>> {
        let mut guard = self.0.try_lock().ok()?;
        let process = std::process::id();
        if let Some((owner, pool)) = guard.as_ref()
            && *owner == process
            && pool.current_num_threads() >= threads
        {
            return Some(Arc::clone(pool));
        }
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.max(usual))
            .thread_name(|i| format!("gradwire-{i}"))
            // They inherit the mode of whoever happens to need them first.
            .start_handler(|_| keep_standard_mode())
            .build()
            .ok()?;
        let pool = Arc::new(pool);
        if let Some((owner, old)) = guard.replace((process, Arc::clone(&pool)))
            && owner != process
        {
            // Its threads stayed behind in the parent: shutting it down would wait for them.
            std::mem::forget(old);
        }
        Some(pool)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hint::black_box;
    use std::thread;

    use super::*;
    use crate::simd::float_mode::testing::in_hostile_mode;

    #[test]
    fn one_thread_needs_no_pool_and_more_share_one() {
        assert!(acquire(1).is_none());
        let shared = Shared(Mutex::new(None));
        let pools = [(); 3].map(|()| shared.acquire(2, 2).unwrap());
        assert!(pools.iter().all(|pool| Arc::ptr_eq(pool, &pools[0])));
    }

    #[test]
    fn nobody_waits_for_a_pool_that_is_being_looked_up() {
        let shared = Shared(Mutex::new(None));
        let guard = shared.0.lock().unwrap();
        assert!(shared.acquire(2, 2).is_none());
        drop(guard);
        assert!(shared.acquire(2, 2).is_some());
    }

    /// As it is in a child after a fork: the pool is there, its threads are not.
    #[test]
    fn the_pool_of_another_process_is_replaced_and_never_shut_down() {
        let shared = Shared(Mutex::new(None));
        let parents = shared.acquire(2, 2).unwrap();
        shared.0.lock().unwrap().as_mut().unwrap().0 ^= 1;
        let own = shared.acquire(2, 2).unwrap();
        assert!(!Arc::ptr_eq(&own, &parents));
        assert_eq!(shared.0.lock().unwrap().as_ref().unwrap().0, std::process::id());
        // Shutting it down begins where the last owner lets go of it.
        assert_eq!(Arc::strong_count(&parents), 2);
    }

    /// Tensors of different sizes are worth different numbers of threads.
    #[test]
    fn threads_are_made_once_whatever_is_asked_for() {
        let shared = Shared(Mutex::new(None));
        let mut seen = HashSet::new();
        for step in 0..40 {
            let pool = shared.acquire(2 + step % 3, 4).unwrap();
            seen.extend(pool.broadcast(|_| thread::current().id()));
        }
        assert_eq!(seen.len(), 4);
        // More than usual: a larger pool, and no smaller one after it.
        assert_eq!(shared.acquire(5, 4).unwrap().current_num_threads(), 5);
        assert_eq!(shared.acquire(2, 4).unwrap().current_num_threads(), 5);
    }

    #[test]
    fn threads_do_not_inherit_the_floating_point_mode() {
        let shared = Shared(Mutex::new(None));
        let half = || black_box(f32::MIN_POSITIVE) * black_box(0.5);
        let found = in_hostile_mode(|| shared.acquire(3, 2).unwrap().broadcast(|_| half()));
        let found: Vec<_> = found.into_iter().map(f32::to_bits).collect();
        assert_eq!(found, [1 << 22; 3]);
    }

    #[test]
    fn threads_are_those_asked_for_or_one_for_each_of_at_most_eight_cores() {
        assert_eq!(wanted(Some("3"), Some("5"), 16), 3);
        assert_eq!(wanted(None, Some("5, 2"), 16), 5);
        for invalid in [None, Some("0"), Some("-1"), Some("many")] {
            assert_eq!(wanted(invalid, Some("5"), 16), 5);
            assert_eq!(wanted(invalid, invalid, 16), 8);
            assert_eq!(wanted(invalid, invalid, 2), 2);
        }
    }
}
