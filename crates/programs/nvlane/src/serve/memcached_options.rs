//! Options of `nvlane target` for the requirements of its memcached listeners on clients.

use std::path::PathBuf;

use clap::Args;
use command_line::exit::Failure;
use command_line::secret_argument::source_of;
use subsystem::allow_list::{AllowList, Prefix};
use subsystem::config::{ClientCertificates, MemcachedListenerConfig, ServerTlsConfig};

/// The requirements of all memcached listeners of the command line on clients.
#[derive(Debug, Args)]
pub(super) struct MemcachedOptions {
    /// File with the certificate of the --memcached listeners (PEM, with the chain to its root): clients use TLS 1.3
    /// or 1.2. SIGHUP reads certificates, keys and users again.
    #[arg(long, value_name = "FILE", requires_all = ["memcached", "memcached_tls_key"])]
    memcached_tls_certificate: Option<PathBuf>,
    /// File with the private key of the certificate (PEM, not encrypted), or a reference such as credential:NAME.
    #[arg(long, value_name = "FILE", requires = "memcached_tls_certificate")]
    memcached_tls_key: Option<PathBuf>,
    /// File with the certificates of authorities (PEM): clients must present a certificate signed by one of them.
    #[arg(long, value_name = "FILE", requires = "memcached_tls_certificate")]
    memcached_tls_client_ca: Option<PathBuf>,
    /// Whether each client must present a certificate: required, or optional (a presented one must be valid).
    /// [default: required]
    #[arg(long, value_name = "DEMAND", requires = "memcached_tls_client_ca")]
    memcached_tls_clients: Option<ClientCertificates>,
    /// File with lines of user:password, as memcached's -Y has it: the first command of a connection must be `set <key>
    /// <flags> <exptime> <bytes>` with `user password` as its value.
    #[arg(long, value_name = "FILE", requires = "memcached")]
    memcached_users: Option<PathBuf>,
    /// Address or prefix that memcached clients may connect from, such as 10.0.0.0/8. May be given several times.
    /// [default: any]
    #[arg(long, value_name = "PREFIX", requires = "memcached")]
    memcached_allow: Vec<Prefix>,
}

impl MemcachedOptions {
    /// Sets the requirements of listeners on clients.
    pub(super) fn apply(&self, listeners: &mut [MemcachedListenerConfig]) -> Result<(), Failure> {
        let tls = match (&self.memcached_tls_certificate, &self.memcached_tls_key) {
            (Some(certificate), Some(key)) => Some(ServerTlsConfig {
                certificate: source_of(certificate)?,
                key: source_of(key)?,
                client_ca: self.memcached_tls_client_ca.as_deref().map(source_of).transpose()?,
                clients: self.memcached_tls_clients.unwrap_or(ClientCertificates::Required),
            }),
            _ => None,
        };
        let users = self.memcached_users.as_deref().map(source_of).transpose()?;
        for listener in listeners {
            if tls.is_some() {
                listener.tls.clone_from(&tls);
            }
            if users.is_some() {
                listener.users.clone_from(&users);
            }
            if !self.memcached_allow.is_empty() {
                listener.allow = AllowList::Only(self.memcached_allow.clone());
            }
        }
        Ok(())
    }
}
