//! The configuration: its mistakes and warnings, which `nvlane check` has, too, its secrets and certificates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use subsystem::config::{ConfigErrors, ConfigFile, SecretSource};

use super::finding::Finding;
use super::shell;

/// A certificate that expires within this time is a warning, s.
const SOON_S: i64 = 30 * 86_400;

pub(super) fn examine(path: Option<&Path>, file: Option<&Result<ConfigFile, ConfigErrors>>) -> Vec<Finding> {
    const CHECK: &str = "configuration";
    let shown = path.map(shell).unwrap_or_default();
    let by = format!("nvlane check --config {shown}");
    let file = match file {
        None => {
            return vec![
                Finding::note(CHECK, "none was looked at")
                    .change("name one")
                    .by("nvlane doctor --config FILE"),
            ];
        }
        Some(Err(errors)) => {
            let error = |error: &subsystem::config::ConfigError| {
                Finding::error(CHECK, error.to_string()).by(by.clone())
            };
            return errors.0.iter().map(error).collect();
        }
        Some(Ok(file)) => file,
    };
    let mut findings = Vec::new();
    match file.inspect() {
        Ok(()) => findings
            .push(Finding::ok(CHECK, format!("{shown}: no mistakes in it, its storage and its secrets"))),
        Err(errors) => {
            let error = |error: &subsystem::config::ConfigError| {
                Finding::error(CHECK, error.to_string())
                    .because("the target does not start with it")
                    .by(by.clone())
            };
            findings.extend(errors.0.iter().map(error));
        }
    }
    let warning = |warning: &subsystem::config::ConfigError| {
        Finding::warning(CHECK, warning.to_string()).by(by.clone())
    };
    findings.extend(file.located(&file.config.warnings()).0.iter().map(warning));
    let open = file.config.private_sources().into_iter().filter_map(open_to_others);
    findings.extend(open);
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now_s = i64::try_from(now_s).unwrap_or(i64::MAX);
    let expiries = file.config.certificate_expiries();
    findings.extend(expiries.iter().map(|(source, expires_s)| certificate(source, *expires_s, now_s)));
    findings
}

/// A secret in a file that every user can read.
fn open_to_others(source: &SecretSource) -> Option<Finding> {
    let SecretSource::File(path) = source else { return None };
    let mode = fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o004 != 0).then(|| {
        Finding::warning("secrets", format!("every user can read {}", path.display()))
            .because("who has the secret can connect as that host, or pass for the target")
            .change("take that right away")
            .by(format!("chmod o-r {}", shell(path)))
    })
}

fn certificate(source: &SecretSource, expires_s: i64, now_s: i64) -> Finding {
    const CHECK: &str = "certificate";
    let left_s = expires_s.saturating_sub(now_s);
    let days = left_s / 86_400;
    let finding = match left_s {
        ..=0 => Finding::error(CHECK, format!("{source} has expired")),
        1..SOON_S => Finding::warning(CHECK, format!("{source} expires in {days} days")),
        _ => return Finding::ok(CHECK, format!("{source} expires in {days} days")),
    };
    finding
        .because("memcached clients refuse it then")
        .change("put a new certificate in its place, and have the target read it")
        .by("nvlane ctl reload")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn an_expiring_certificate_is_told_in_time() {
        let source: SecretSource = "file:/c.pem".parse().expect("a reference");
        let day = 86_400;
        for (left, level) in
            [(-1, Level::Error), (3 * day, Level::Warning), (29 * day, Level::Warning), (31 * day, Level::Ok)]
        {
            assert_eq!(certificate(&source, 1000 + left, 1000).level, level, "{left}");
        }
    }

    #[test]
    fn a_secret_that_all_can_read_is_told() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let source = format!("file:{}", file.path().display()).parse::<SecretSource>().expect("a reference");
        assert!(open_to_others(&source).is_none());
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).expect("set");
        let finding = open_to_others(&source).expect("a finding");
        assert!(finding.command.expect("a command").starts_with("chmod o-r /"));
    }
}
