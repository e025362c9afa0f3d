//! The certificate with which a target answers, and its demands on the certificates of clients.

use s2n_tls::error::Error;

use super::certificate_texts::{CertificateText, CertificateTexts, ClientCertificates};
use super::library::CertificateConfig;
use super::x509::{CertificateFields, UtcTime};

/// Why a certificate cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct CertificateError {
    /// Which text.
    pub text: CertificateText,
    /// The problem.
    pub problem: CertificateProblem,
}

/// A problem of a certificate, its key, or the certificates of authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateProblem {
    /// No certificate.
    #[error("there is no certificate: expected PEM with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    /// No private key.
    #[error("there is no private key: expected PEM with -----BEGIN PRIVATE KEY-----")]
    NoKey,
    /// The key needs a password.
    #[error("the private key is encrypted: write it without a password (openssl pkey -in FILE -out FILE)")]
    EncryptedKey,
    /// The key belongs to another certificate.
    #[error("the private key does not belong to the certificate")]
    OtherKey,
    /// The certificate has expired.
    #[error("the certificate expired on {0}")]
    Expired(UtcTime),
    /// The certificate is not valid yet.
    #[error("the certificate is valid from {0} on")]
    NotYetValid(UtcTime),
    /// The TLS library cannot use it, in its words.
    #[error("it cannot be used: {0}")]
    Library(&'static str),
}

/// A certificate with its key, and the certificates that clients are asked for. Sessions that have begun keep it.
#[derive(Debug)]
pub struct ServerCertificate {
    pub(super) config: CertificateConfig,
    fields: CertificateFields,
    clients: ClientCertificates,
    /// The texts, except for the key, to compare certificates.
    public: String,
}

impl ServerCertificate {
    /// Reads a certificate, whether or not it is [valid now](Self::invalid_at). Clients are asked for one if there are
    /// authorities.
    ///
    /// # Errors
    /// The text that cannot be used, and why.
    pub fn new(texts: CertificateTexts<'_>, clients: ClientCertificates) -> Result<Self, CertificateError> {
        let CertificateTexts { chain, key, client_ca } = texts;
        let wrong = |text, problem| CertificateError { text, problem };
        let has_certificate = |text: &str| text.contains("-----BEGIN CERTIFICATE-----");
        if !has_certificate(chain) {
            return Err(wrong(CertificateText::Chain, CertificateProblem::NoCertificate));
        }
        if key.contains("ENCRYPTED") {
            return Err(wrong(CertificateText::Key, CertificateProblem::EncryptedKey));
        }
        if !key.contains("PRIVATE KEY-----") {
            return Err(wrong(CertificateText::Key, CertificateProblem::NoKey));
        }
        if client_ca.is_some_and(|text| !has_certificate(text)) {
            return Err(wrong(CertificateText::ClientCa, CertificateProblem::NoCertificate));
        }
        let clients = if client_ca.is_some() { clients } else { ClientCertificates::Off };
        let (config, leaf) =
            CertificateConfig::new(texts, clients).map_err(|(text, error)| library(text, &error))?;
        let fields = CertificateFields::read(&leaf)
            .ok_or(wrong(CertificateText::Chain, CertificateProblem::NoCertificate))?;
        Ok(Self { config, fields, clients, public: [chain, client_ca.unwrap_or_default()].join("\n") })
    }

    /// Why clients refuse it at this time, if it is not valid then.
    #[must_use]
    pub fn invalid_at(&self, unix_s: i64) -> Option<CertificateProblem> {
        let CertificateFields { not_before_unix_s, not_after_unix_s, .. } = self.fields;
        if unix_s > not_after_unix_s {
            Some(CertificateProblem::Expired(UtcTime(not_after_unix_s)))
        } else if unix_s < not_before_unix_s {
            Some(CertificateProblem::NotYetValid(UtcTime(not_before_unix_s)))
        } else {
            None
        }
    }

    /// Validity and subject.
    #[must_use]
    pub fn fields(&self) -> &CertificateFields {
        &self.fields
    }

    /// Whether clients have to show a certificate.
    #[must_use]
    pub fn clients(&self) -> ClientCertificates {
        self.clients
    }

    /// Whether it is the same certificate, with the same demand on clients.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.clients == other.clients && self.public == other.public
    }
}

/// An error of the TLS library: which text it is about.
fn library(text: CertificateText, error: &Error) -> CertificateError {
    let (text, problem) = match error.name() {
        "S2N_ERR_KEY_MISMATCH" | "S2N_ERR_KEY_CHECK" => (CertificateText::Key, CertificateProblem::OtherKey),
        "S2N_ERR_DECODE_PRIVATE_KEY" => (CertificateText::Key, CertificateProblem::Library(error.message())),
        _ => (text, CertificateProblem::Library(error.message())),
    };
    CertificateError { text, problem }
}
