//! Looks at the storage of a configuration without changing anything.

use std::path::Path;

use store::{OpenError, Source, Spec};

use super::{Place, Problem, TargetConfig};
use crate::audit;

impl TargetConfig {
    /// What is not in order with the storage and the audit log, as far as can be seen without creating or growing anything.
    /// May block.
    #[must_use]
    pub fn inspect(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let reactor_count = self.reactors.threads.count();
        for (subsystem_at, subsystem) in self.subsystems.iter().enumerate() {
            for (at, namespace) in subsystem.namespaces.iter().enumerate() {
                if let Err(error) = inspect(&namespace.storage, reactor_count) {
                    let place = Place::Namespace(subsystem_at, at, "storage");
                    problems.push(Problem { place, message: error.to_string() });
                }
            }
        }
        if let Some(Err(message)) = self.audit.file.as_deref().map(audit::inspect) {
            problems.push(Problem { place: Place::Audit, message });
        }
        problems
    }
}

fn inspect(spec: &Spec, reactor_count: usize) -> Result<(), OpenError> {
    spec.check_shares(reactor_count)?;
    if let Source::KeyValue { .. } = spec.source {
        return Ok(());
    }
    if let Source::Memory { bytes, .. } = spec.source {
        // Available memory is only known when it is allocated: check the shape alone.
        let shape = Spec { source: Source::Null { bytes }, filters: Vec::new(), ..spec.clone() };
        return shape.open(false).map(drop).map_err(|error| match error {
            OpenError::SizeNotBlocks { bytes, block_bytes, .. } => {
                OpenError::SizeNotBlocks { name: "the RAM namespace".into(), bytes, block_bytes }
            }
            error => error,
        });
    }
    let read_only = Spec { is_read_only: true, filters: Vec::new(), ..spec.clone() };
    match read_only.open(false) {
        Ok(_) => Ok(()),
        // A running target has it, perhaps with this very configuration.
        Err(OpenError::Locked { .. }) => Ok(()),
        // It would be made, or made larger.
        Err(OpenError::CannotGrow { .. }) if !spec.is_read_only => Ok(()),
        Err(OpenError::Missing { path, remedy }) => {
            let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
            let has_place = directory.is_none_or(Path::is_dir);
            let remedy = match spec.source {
                Source::File { .. } | Source::KeyValueFile { .. } if !has_place => {
                    "make its directory first, with mkdir -p"
                }
                Source::File { bytes: Some(_), .. } | Source::KeyValueFile { bytes: Some(_), .. }
                    if !spec.is_read_only =>
                {
                    return Ok(());
                }
                Source::File { .. } | Source::KeyValueFile { .. } if !spec.is_read_only => {
                    "add size= to have it made"
                }
                _ => remedy,
            };
            Err(OpenError::Missing { path, remedy })
        }
        Err(error) => Err(error),
    }
}
