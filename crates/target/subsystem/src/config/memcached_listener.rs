//! Listeners for memcached clients: their addresses, and their requirements on clients.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use linux::randomness::Randomness;
use security::tls::{
    CertificateError, CertificateText, CertificateTexts, ClientCertificates, ServerCertificate,
};
use security::users::Users;

use super::secrets::Kind;
use super::{ConfigPlace, MemcachedAddress, Problem, SecretSource, TargetConfig};
use crate::names::allow_list::AllowList;
use crate::names::memcached_trust::MemcachedTrust;

/// Longest text of a private key, or of a list of users, bytes.
const SECRET_BYTES_MAX: usize = 128 << 10;
/// Longest text of certificates, bytes: systems trust some 150 authorities, in less than 300 KiB.
const CERTIFICATES_BYTES_MAX: usize = 1 << 20;

/// A listener for memcached clients; they use the oldest key-value namespace, or one partition of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemcachedListenerConfig {
    /// Where clients connect.
    pub address: MemcachedAddress,
    /// TLS; `None` for unencrypted connections.
    pub tls: Option<ServerTlsConfig>,
    /// Where the users and their passwords are; `None` if clients do not authenticate.
    pub users: Option<SecretSource>,
    /// The addresses that clients may connect from.
    pub allow: AllowList,
}

/// TLS with a certificate, as of a memcached listener: where it is, and which certificates clients are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsConfig {
    /// The certificate chain.
    pub certificate: SecretSource,
    /// Its private key.
    pub key: SecretSource,
    /// The authorities of clients' certificates; `None` if clients are not asked for one.
    pub client_ca: Option<SecretSource>,
    /// Whether a client has to show a certificate, if there are authorities.
    pub clients: ClientCertificates,
}

impl From<MemcachedAddress> for MemcachedListenerConfig {
    fn from(address: MemcachedAddress) -> Self {
        Self { address, tls: None, users: None, allow: AllowList::Any }
    }
}

impl From<SocketAddr> for MemcachedListenerConfig {
    fn from(address: SocketAddr) -> Self {
        MemcachedAddress::from(address).into()
    }
}

impl FromStr for MemcachedListenerConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<MemcachedAddress>().map(Self::from)
    }
}

impl MemcachedListenerConfig {
    /// Whether clients prove who they are, by a password or a certificate.
    #[must_use]
    pub fn authenticates(&self) -> bool {
        let demands =
            |tls: &ServerTlsConfig| tls.client_ca.is_some() && tls.clients == ClientCertificates::Required;
        self.users.is_some() || self.tls.as_ref().is_some_and(demands)
    }

    /// The listeners to open, with this number of partitions.
    pub(crate) fn of_ports(&self, partition_count: u16) -> impl Iterator<Item = Self> + '_ {
        let addresses = self.address.of_ports(partition_count);
        addresses.into_iter().map(|address| Self { address, ..self.clone() })
    }

    /// Reads certificates and users. May block.
    ///
    /// # Errors
    /// The text that cannot be read or used, and why.
    pub(crate) fn read_trust(&self) -> Result<MemcachedTrust, String> {
        let tls = self.tls.as_ref().map(ServerTlsConfig::read).transpose()?;
        let users = self.users.as_ref().map(read_users).transpose()?;
        Ok(MemcachedTrust { tls: tls.map(Arc::new), users: users.into_iter().map(Arc::new).collect() })
    }
}

impl ServerTlsConfig {
    /// Reads the certificate. May block.
    ///
    /// # Errors
    /// The text that cannot be read or used, and why.
    pub fn read(&self) -> Result<ServerCertificate, String> {
        let chain = self.certificate.read_text(CERTIFICATES_BYTES_MAX, Kind::Public)?;
        let key = self.key.read_text(SECRET_BYTES_MAX, Kind::Secret)?;
        let authorities = self.client_ca.as_ref();
        let authorities =
            authorities.map(|source| source.read_text(CERTIFICATES_BYTES_MAX, Kind::Public)).transpose()?;
        let texts = CertificateTexts {
            chain: &chain,
            key: &key,
            client_ca: authorities.as_ref().map(|text| text.as_str()),
        };
        let certificate = ServerCertificate::new(texts, self.clients).map_err(|error| self.located(error))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Not an error: a target that is restarted must still serve everybody else.
        if let Some(problem) = certificate.invalid_at(i64::try_from(since.as_secs()).unwrap_or(i64::MAX)) {
            tracing::warn!("{}: {problem}: clients will refuse it", self.certificate);
        }
        Ok(certificate)
    }

    /// The error with the source of the text.
    fn located(&self, error: CertificateError) -> String {
        let source = match error.text {
            CertificateText::Chain => &self.certificate,
            CertificateText::Key => &self.key,
            CertificateText::ClientCa => self.client_ca.as_ref().unwrap_or(&self.certificate),
        };
        format!("{source}: {error}")
    }
}

/// The key under which this process keeps passwords: one for all lists, so that changes of a list are detected.
fn users_key() -> Result<[u8; 32], String> {
    static KEY: OnceLock<[u8; 32]> = OnceLock::new();
    if let Some(key) = KEY.get() {
        return Ok(*key);
    }
    let mut key = [0; 32];
    Randomness::System.fill(&mut key).map_err(|error| format!("no random numbers: {error}"))?;
    Ok(*KEY.get_or_init(|| key))
}

fn read_users(source: &SecretSource) -> Result<Users, String> {
    let text = source.read_text(SECRET_BYTES_MAX, Kind::Secret)?;
    let key = users_key().map_err(|error| format!("{source}: {error}"))?;
    Users::parse(&text, key).map_err(|error| format!("{source}: {error}"))
}

impl TargetConfig {
    /// Whether memcached clients use partitions one by one, each on a port of its own: hosts then see no keys.
    #[must_use]
    pub fn is_memcached_by_partition(&self) -> bool {
        self.memcached.iter().any(|listener| listener.address.is_by_partition())
    }

    /// The configuration with the listeners to open, with this number of partitions.
    pub(crate) fn with_ports(&self, partition_count: u16) -> Self {
        let memcached = self.memcached.iter().flat_map(|listener| listener.of_ports(partition_count));
        Self { memcached: memcached.collect(), ..self.clone() }
    }

    /// Reads the requirements of each memcached listener on its clients, in order. May block.
    ///
    /// # Errors
    /// The files that cannot be read or used.
    pub(crate) fn read_memcached_trust(&self) -> Result<Vec<MemcachedTrust>, Vec<Problem>> {
        let (mut read, mut problems) = (Vec::<MemcachedTrust>::new(), Vec::new());
        for (at, listener) in self.memcached.iter().enumerate() {
            // The ports of a listener, which are in order, have what was read for the first one.
            let of_first =
                read.last().filter(|_| listener.address.partition().is_some_and(|number| number > 0));
            match of_first.map_or_else(|| listener.read_trust(), |trust| Ok(trust.clone())) {
                Ok(trust) => read.push(trust),
                Err(message) => problems.push(Problem { place: ConfigPlace::Memcached(at), message }),
            }
        }
        if problems.is_empty() { Ok(read) } else { Err(problems) }
    }
}
