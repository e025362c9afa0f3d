//! Modules of the kernel, loaded or built in.

use std::path::Path;

/// Whether a module is loaded or built into the kernel.
fn is_there(name: &str) -> bool {
    Path::new("/sys/module").join(name).exists()
}

/// Checks that these modules are loaded.
pub(super) fn need(names: &[&str]) -> Result<(), String> {
    missing(names, is_there)
}

fn missing(names: &[&str], is_there: impl Fn(&str) -> bool) -> Result<(), String> {
    let missing: Vec<_> =
        names.iter().filter(|name| !is_there(name)).map(|name| name.replace('_', "-")).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("modprobe -a {}", missing.join(" "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_what_is_missing_only() {
        assert_eq!(missing(&["nvmet", "nvmet_tcp"], |_| true), Ok(()));
        let said = missing(&["nvme_fabrics", "nvme_tcp"], |name| name == "nvme_fabrics");
        assert_eq!(said, Err("modprobe -a nvme-tcp".into()));
    }
}
