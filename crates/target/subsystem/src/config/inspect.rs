//! Looks at the storage of a configuration without changing anything.

use std::io;
use std::path::Path;

use linux::CoreList;
use store::{OpenError, Source, Spec};

use super::{ConfigPlace, Problem, TargetConfig, Threads};
use crate::audit;

impl TargetConfig {
    /// Problems of the storage, the cores, the secrets and the audit log, as far as they can be found without creating
    /// or growing anything. May block.
    #[must_use]
    pub fn inspect(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let reactor_count = self.reactors.threads.count();
        for (subsystem_at, subsystem) in self.subsystems.iter().enumerate() {
            for (at, namespace) in subsystem.namespaces.iter().enumerate() {
                if let Err(error) = inspect(&namespace.storage, reactor_count) {
                    let place = ConfigPlace::Namespace(subsystem_at, at, "storage");
                    problems.push(Problem { place, message: error.to_string() });
                }
            }
        }
        problems.extend(self.inspect_pools());
        if let Threads::Cores(list) = &self.reactors.threads
            && let Err(error) = try_cores(list)
        {
            problems.push(Problem { place: ConfigPlace::Reactors("cores"), message: error.to_string() });
        }
        if let Some(Err(message)) = self.audit.file.as_deref().map(audit::inspect) {
            problems.push(Problem { place: ConfigPlace::Audit, message });
        }
        problems.extend(self.read_secrets().err().unwrap_or_default());
        problems.extend(self.read_tls_keys().err().unwrap_or_default());
        problems.extend(self.read_control_keys().err().unwrap_or_default());
        problems.extend(self.read_memcached_trust().err().unwrap_or_default());
        problems
    }
}

/// Pins a thread to each of these cores: the present affinity may have fewer cores than there are to choose from.
fn try_cores(list: &CoreList) -> io::Result<()> {
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| list.cores().iter().try_for_each(|core| linux::pin(*core)));
        tried.join().unwrap_or_else(|_| Err(io::Error::other("the thread that tried the cores has failed")))
    })
}

fn inspect(spec: &Spec, reactor_count: usize) -> Result<(), OpenError> {
    spec.check_shares(reactor_count)?;
    if let Source::Memory { bytes, .. } | Source::Null { bytes } = spec.source {
        // Available memory is only known when it is allocated: check the shape alone.
        let shape = Spec { source: Source::Null { bytes }, filters: Vec::new(), ..spec.clone() };
        return shape.open(false).map(drop).map_err(|error| match error {
            OpenError::SizeNotBlocks { bytes, block_bytes, .. }
                if matches!(spec.source, Source::Memory { .. }) =>
            {
                OpenError::SizeNotBlocks { name: "the RAM namespace".into(), bytes, block_bytes }
            }
            error => error,
        });
    }
    match spec.inspect() {
        // A running target has it, perhaps with this very configuration.
        Err(OpenError::Locked { .. }) => Ok(()),
        Err(OpenError::Missing { path, remedy }) => {
            let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
            let has_place = directory.is_none_or(Path::is_dir);
            let remedy = match spec.source {
                Source::File { .. } | Source::KeyValueFile { .. } if !has_place => {
                    "make its directory first, with mkdir -p"
                }
                Source::File { .. } | Source::KeyValueFile { .. } if !spec.is_read_only => {
                    "add size= to have it made"
                }
                _ => remedy,
            };
            Err(OpenError::Missing { path, remedy })
        }
        result => result,
    }
}
