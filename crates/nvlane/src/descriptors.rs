//! Descriptors: one for each connection, and by default systems give few.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes as many descriptors as this process may have. The usual thousand is a limit for programs that use `select`; a
/// target with a thousand idle connections would turn everybody else away. hostile R1
pub(crate) fn allow_all() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}
