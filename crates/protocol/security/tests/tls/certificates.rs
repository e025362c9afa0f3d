//! Certificates of a target: which texts are taken, and what is said of the others.

use std::fs;
use std::path::Path;
use std::process::Command;

use nvlane_security::tls::{
    CertificateError, CertificateProblem, CertificateText, CertificateTexts, ClientCertificates,
    ServerCertificate, UtcTime,
};
use peer::certificates::Authority;

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("a file")
}

/// Reads a certificate that requires those of clients.
fn read(chain: &str, key: &str, client_ca: Option<&str>) -> Result<ServerCertificate, CertificateError> {
    let texts = CertificateTexts { chain, key, client_ca };
    ServerCertificate::new(texts, ClientCertificates::Required)
}

#[test]
fn a_certificate_is_taken_with_its_own_key_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new(directory.path(), "authority");
    let (one, other) = (authority.issue("one"), authority.issue("other"));
    let (chain, key, root) = (text(&one.certificate), text(&one.key), text(authority.certificate()));
    let whole = [chain.clone(), root.clone()].concat();
    for chain in [&chain, &whole] {
        let certificate = read(chain, &key, None).expect("a certificate");
        assert_eq!(certificate.fields().subject, "O=Example, CN=one");
        assert_eq!(certificate.clients(), ClientCertificates::Off, "there are no authorities");
    }
    let certificate = read(&chain, &key, Some(&root)).expect("a certificate");
    assert_eq!(certificate.clients(), ClientCertificates::Required);
    assert!(!certificate.is_same(&read(&chain, &key, None).expect("a certificate")));
    assert!(certificate.is_same(&read(&chain, &key, Some(&root)).expect("a certificate")));

    let encrypted = directory.path().join("encrypted");
    let mut command = Command::new("openssl");
    command.args(["pkey", "-aes256", "-passout", "pass:x", "-in"]).arg(&one.key).arg("-out").arg(&encrypted);
    assert!(command.status().expect("openssl is installed").success());
    let (encrypted, other_key) = (text(&encrypted), text(&other.key));
    let broken = chain.replace("MII", "MIX");
    for (chain, key, client_ca, at, part) in [
        (&chain, &other_key, None, CertificateText::Key, "does not belong to the certificate"),
        (&chain, &encrypted, None, CertificateText::Key, "is encrypted"),
        (&chain, &chain, None, CertificateText::Key, "no private key"),
        (&key, &key, None, CertificateText::Chain, "no certificate"),
        (&String::new(), &key, None, CertificateText::Chain, "no certificate"),
        (&broken, &key, None, CertificateText::Chain, "cannot be used"),
        (&chain, &key, Some(&key), CertificateText::ClientCa, "no certificate"),
        (&chain, &key, Some(&broken), CertificateText::ClientCa, "cannot be used"),
    ] {
        let error = read(chain, key, client_ca.map(String::as_str)).expect_err(part);
        assert_eq!(error.text, at, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_certificate_that_is_not_valid_is_known() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new(directory.path(), "authority");
    let one = authority.issue("one");
    let (chain, key) = (text(&one.certificate), text(&one.key));
    let certificate = read(&chain, &key, None).expect("a certificate");
    let fields = certificate.fields();
    assert_eq!(fields.not_after_unix_s - fields.not_before_unix_s, 30 * 86_400);
    let (first, last) = (fields.not_before_unix_s, fields.not_after_unix_s);
    for (at, problem) in [
        (first, None),
        (last, None),
        (first - 1, Some(CertificateProblem::NotYetValid(UtcTime(first)))),
        (last + 1, Some(CertificateProblem::Expired(UtcTime(last)))),
    ] {
        assert_eq!(certificate.invalid_at(at), problem);
    }
}
