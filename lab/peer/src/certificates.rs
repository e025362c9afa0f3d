//! Certificates for tests, made by the program `openssl`: an authority, and what it signs.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The file of the certificate.
    pub certificate: PathBuf,
    /// The file of its private key.
    pub key: PathBuf,
}

/// An authority, with its files in a directory.
#[derive(Clone, Debug)]
pub struct Authority {
    directory: PathBuf,
    own: Certificate,
}

/// Runs `openssl`.
///
/// # Panics
/// If it fails: tests need it.
fn openssl<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) {
    let output = Command::new("openssl").args(arguments).output().expect("openssl is installed");
    assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
}

/// Arguments for a new key on P-256 without a password.
const NEW_KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

impl Authority {
    /// Makes an authority of this name.
    ///
    /// # Panics
    /// If `openssl` fails.
    pub fn new(directory: &Path, name: &str) -> Self {
        let own = files(directory, name);
        let (subject, days) = (format!("/CN={name}"), "30");
        let mut arguments: Vec<&OsStr> = ["req", "-x509"].iter().chain(&NEW_KEY).map(OsStr::new).collect();
        let rest =
            [OsStr::new("-days"), days.as_ref(), "-subj".as_ref(), subject.as_ref(), "-keyout".as_ref()];
        arguments.extend(rest);
        arguments.extend([own.key.as_os_str(), "-out".as_ref(), own.certificate.as_os_str()]);
        openssl(arguments);
        Self { directory: directory.to_owned(), own }
    }

    /// Its own certificate.
    pub fn certificate(&self) -> &Path {
        &self.own.certificate
    }

    /// Makes a certificate of this name for loopback addresses, valid for some days from now on.
    ///
    /// # Panics
    /// If `openssl` fails.
    pub fn issue(&self, name: &str) -> Certificate {
        let made = files(&self.directory, name);
        let (request, extensions) =
            (self.directory.join(format!("{name}.csr")), self.directory.join(format!("{name}.ext")));
        fs::write(&extensions, "subjectAltName=DNS:localhost,IP:127.0.0.1\n").expect("a directory");
        let subject = format!("/O=Example/CN={name}");
        let mut arguments: Vec<&OsStr> = ["req"].iter().chain(&NEW_KEY).map(OsStr::new).collect();
        arguments.extend([OsStr::new("-subj"), subject.as_ref(), "-keyout".as_ref(), made.key.as_os_str()]);
        arguments.extend([OsStr::new("-out"), request.as_os_str()]);
        openssl(arguments);
        let mut arguments: Vec<&OsStr> =
            ["x509", "-req", "-days", "30", "-CAcreateserial"].map(OsStr::new).into();
        arguments.extend([
            OsStr::new("-in"),
            request.as_os_str(),
            "-CA".as_ref(),
            self.own.certificate.as_os_str(),
        ]);
        arguments.extend([OsStr::new("-CAkey"), self.own.key.as_os_str(), "-extfile".as_ref()]);
        arguments.extend([extensions.as_os_str(), "-out".as_ref(), made.certificate.as_os_str()]);
        openssl(arguments);
        made
    }
}

fn files(directory: &Path, name: &str) -> Certificate {
    let file = |suffix: &str| directory.join(format!("{name}.{suffix}"));
    Certificate { certificate: file("pem"), key: file("key") }
}
