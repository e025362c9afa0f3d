//! How many descriptors this process may have: each connection takes one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process, and those it starts from now on, have as many descriptors as its user may; gives their number. The usual limit is for
/// programs that use `select`, which we do not.
pub fn allow_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let allowed = if setrlimit(Resource::Nofile, all).is_ok() { limit.maximum } else { limit.current };
    allowed.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_stays_allowed() {
        let count = allow_descriptors();
        assert!(count > 2, "standard streams at least");
        assert_eq!(allow_descriptors(), count);
    }
}
