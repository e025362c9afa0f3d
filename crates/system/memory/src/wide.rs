//! Loops compiled for the widest vector instructions of the running processor instead of the baseline.

/// Runs `work` compiled for wide vector instructions if the processor has them. Only code inlined into it profits.
/// Results are the same.
#[inline(always)]
pub fn with_wide_vectors<R>(work: impl FnOnce() -> R) -> R {
    // Miri interprets, and knows few of these instructions.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the instructions, as just asked.
        return unsafe { wide(work) };
    }
    work()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
fn wide<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_once_wherever_it_runs() {
        let mut values = [1u64; 1000];
        let sum = with_wide_vectors(|| {
            values.iter_mut().for_each(|value| *value = value.wrapping_add(2));
            values.iter().sum::<u64>()
        });
        assert_eq!((sum, values[999]), (3000, 3));
    }
}
