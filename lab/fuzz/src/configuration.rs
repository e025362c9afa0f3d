//! The target's configuration file.

use subsystem::config::ConfigFile;
use subsystem::identity::TargetIdentity;
use subsystem::machine::Machine;

/// Parses and resolves a configuration, or reports every mistake in it with its place.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ConfigFile::parse("fuzz.toml", text) {
        Ok(file) => {
            let first = ([127, 0, 0, 1], 4420).into();
            let identity = TargetIdentity::new(Machine::named("fuzz"), "fuzz", first);
            let subsystems = file.config.resolve(&identity);
            assert_eq!(subsystems.len(), file.config.subsystems.len());
        }
        Err(errors) => {
            assert!(!errors.0.is_empty(), "refused for no reason");
            for error in &errors.0 {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}
