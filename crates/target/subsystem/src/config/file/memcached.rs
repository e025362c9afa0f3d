//! Memcached listeners in the configuration file: an address, or a table with an address and requirements on clients.

use config_file::{RawMemcached, RawTable};
use security::tls::ClientCertificates;
use toml::Spanned;

use super::Reader;
use crate::config::{ConfigPlace, MemcachedAddress, MemcachedListenerConfig, ServerTlsConfig};

impl Reader<'_> {
    pub(super) fn memcached(&mut self, raw: Vec<Spanned<RawMemcached>>) -> Vec<MemcachedListenerConfig> {
        let mut listeners = Vec::new();
        for listener in raw {
            let span = listener.span();
            let read = match listener.into_inner() {
                RawMemcached::Address(text) => match text.parse() {
                    Ok(listener) => Some((listener, span)),
                    Err(error) => {
                        self.wrong(span, error);
                        None
                    }
                },
                RawMemcached::Table(table) => {
                    let span = table.address.span();
                    self.memcached_table(*table).map(|listener| (listener, span))
                }
            };
            if let Some((listener, span)) = read {
                self.spans.insert(ConfigPlace::Memcached(listeners.len()), span);
                listeners.push(listener);
            }
        }
        listeners
    }

    fn memcached_table(&mut self, raw: RawTable) -> Option<MemcachedListenerConfig> {
        let address = self.parsed::<MemcachedAddress>(&raw.address, "");
        let certificate = raw.tls_certificate.as_ref();
        let alone = |key: &'static str, other: &'static str| format!("{key} is of no use without {other}");
        match (certificate, &raw.tls_key) {
            (Some(certificate), None) => {
                self.wrong(certificate.span(), alone("tls_certificate", "its tls_key"));
            }
            (None, Some(key)) => self.wrong(key.span(), alone("tls_key", "its tls_certificate")),
            _ => {}
        }
        if let (None, Some(ca)) = (certificate, &raw.tls_client_ca) {
            self.wrong(ca.span(), alone("tls_client_ca", "tls_certificate and tls_key"));
        }
        if let (None, Some(clients)) = (&raw.tls_client_ca, &raw.tls_clients) {
            self.wrong(clients.span(), alone("tls_clients", "tls_client_ca"));
        }
        let clients = raw.tls_clients.and_then(|clients| self.parsed(&clients, ""));
        let certificate = raw.tls_certificate.and_then(|source| self.parsed(&source, ""));
        let key = raw.tls_key.and_then(|source| self.parsed(&source, ""));
        let client_ca = raw.tls_client_ca.and_then(|source| self.parsed(&source, ""));
        let users = raw.users.and_then(|source| self.parsed(&source, ""));
        let allow = self.allowed(raw.allow);
        let tls = certificate.zip(key).map(|(certificate, key)| ServerTlsConfig {
            certificate,
            key,
            client_ca,
            clients: clients.unwrap_or(ClientCertificates::Required),
        });
        Some(MemcachedListenerConfig { address: address?, tls, users, allow })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use peer::certificates::Authority;

    use crate::config::{ClientCertificates, ConfigFile, SecretSource};
    use crate::names::allow_list::AllowList;

    const KEYS: &str = "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = \"any\"\n\
         [[subsystem.namespace]]\nstorage = \"kv:ram:64M\"\n";

    fn parse(memcached: &str) -> Result<ConfigFile, String> {
        // Tables come last, keys first.
        let text = match memcached.starts_with('[') {
            true => format!("{KEYS}{memcached}"),
            false => format!("{memcached}\n{KEYS}"),
        };
        ConfigFile::parse("nvlane.toml", &text).map_err(|errors| errors.to_string())
    }

    #[test]
    fn listeners_are_addresses_and_tables() {
        let file = parse(
            "memcached = [\"127.0.0.1:11211\", { address = \"unix:/run/x.sock\", users = \"file:/u\" }, { address = \"[::]:11212\", \
             tls_certificate = \"file:/c\", tls_key = \"credential:k\", tls_client_ca = \"file:/a\", tls_clients = \"optional\", \
             allow = [\"10.0.0.0/8\", \"192.0.2.7\"] }]",
        )
        .expect("a configuration");
        let listeners = &file.config.memcached;
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.address.to_string()).collect();
        assert_eq!(addresses, ["127.0.0.1:11211", "unix:/run/x.sock", "[::]:11212"]);
        assert!(
            !listeners[0].authenticates() && listeners[1].authenticates() && !listeners[2].authenticates()
        );
        assert_eq!(listeners[1].users, Some(SecretSource::File("/u".into())));
        let tls = listeners[2].tls.as_ref().expect("TLS");
        assert_eq!(
            (&tls.key, tls.clients),
            (&SecretSource::Credential("k".into()), ClientCertificates::Optional)
        );
        assert_eq!(listeners[2].allow.prefixes(), Some(vec!["10.0.0.0/8".into(), "192.0.2.7".into()]));
        let file =
            parse("[[memcached]]\naddress = \"127.0.0.1:1\"\n[[memcached]]\naddress = \"127.0.0.1:2\"\n");
        let file = file.expect("a configuration");
        assert_eq!(file.config.memcached.len(), 2);
        assert_eq!(file.config.memcached[1].allow, AllowList::Any);
    }

    #[test]
    fn mistakes_have_a_place_and_a_remedy() {
        for (text, error) in [
            ("memcached = [\"localhost\"]", "1:14: expected ADDR:PORT or unix:PATH, not 'localhost'"),
            ("[[memcached]]\nadress = \"127.0.0.1:1\"", "9:1: unknown key `adress`"),
            ("[[memcached]]\nallow = []", "missing key `address`"),
            ("[[memcached]]\naddress = \"127.0.0.1:1\"\nallow = []", "10:9: nobody may connect"),
            (
                "[[memcached]]\naddress = \"127.0.0.1:1\"\nallow = [\"10.0.0.1/8\"]",
                "10:9: '10.0.0.1/8' has bits set behind the first 8: write 10.0.0.0/8, or 10.0.0.1 for this address alone",
            ),
            (
                "[[memcached]]\naddress = \"unix:/x\"\nallow = [\"10.0.0.0/8\"]",
                "9:11: unix:/x is a Unix socket, whose clients have no address: leave allow out",
            ),
            (
                "[[memcached]]\naddress = \"127.0.0.1:1\"\ntls_certificate = \"file:/c\"",
                "10:19: tls_certificate is of no use without its tls_key",
            ),
            (
                "[[memcached]]\naddress = \"127.0.0.1:1\"\ntls_key = \"file:/c\"",
                "10:11: tls_key is of no use without its tls_certificate",
            ),
            (
                "[[memcached]]\naddress = \"127.0.0.1:1\"\ntls_client_ca = \"file:/c\"",
                "10:17: tls_client_ca is of no use without tls_certificate and tls_key",
            ),
            (
                "[[memcached]]\naddress = \"127.0.0.1:1\"\ntls_clients = \"required\"",
                "10:15: tls_clients is of no use without tls_client_ca",
            ),
            (
                "[[memcached]]\naddress = \"127.0.0.1:1\"\nusers = \"/etc/users\"",
                "10:9: expected file:PATH, env:NAME, credential:NAME or keyring:NAME",
            ),
            ("memcached = [7]", "an address, such as \"127.0.0.1:11211\", or a table with an address"),
        ] {
            let errors = parse(text).expect_err(text);
            assert!(errors.contains(error), "{text}: {errors}");
        }
        let errors = parse(
            "[[memcached]]\naddress = \"127.0.0.1:1\"\ntls_certificate = \"file:/c\"\ntls_key = \"file:/k\"\ntls_client_ca = \"file:/a\"\ntls_clients = \"always\"",
        );
        assert!(
            errors
                .expect_err("no such word")
                .contains("13:15: unknown demand \"always\" for client certificates")
        );
    }

    #[test]
    fn open_listeners_and_passwords_in_clear_are_warned_of() {
        let tls = "tls_certificate = \"file:/c\"\ntls_key = \"file:/k\"\n";
        let warnings = |address: &str, more: &str| {
            let file =
                parse(&format!("[[memcached]]\naddress = \"{address}\"\n{more}")).expect("a configuration");
            file.located(&file.config.warnings()).to_string()
        };
        for (more, warning) in [
            ("", "9:11: anyone who reaches the memcached listener on 0.0.0.0:1 may read and change its keys"),
            (tls, "9:11: anyone who reaches the memcached listener"),
            (
                "allow = [\"10.0.0.0/8\"]",
                "anyone who reaches, from an address that it allows, the memcached listener",
            ),
            (
                "users = \"file:/u\"",
                "9:11: passwords and values of the memcached listener on 0.0.0.0:1 travel in cleartext",
            ),
        ] {
            assert!(warnings("0.0.0.0:1", more).contains(warning), "{}", warnings("0.0.0.0:1", more));
        }
        let optional = format!("{tls}tls_client_ca = \"file:/a\"\ntls_clients = \"optional\"\n");
        assert!(warnings("0.0.0.0:1", &optional).contains("anyone who reaches"));
        for (address, more) in [
            ("127.0.0.1:1", String::new()),
            ("[::1]:1", String::new()),
            ("unix:/x", String::new()),
            ("0.0.0.0:1", format!("{tls}users = \"file:/u\"")),
            ("0.0.0.0:1", format!("{tls}tls_client_ca = \"file:/a\"")),
        ] {
            assert_eq!(warnings(address, &more), "", "{address} {more}");
        }
    }

    #[test]
    fn files_are_looked_at_before_the_start() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::new(directory.path(), "authority");
        let (one, other) = (authority.issue("one"), authority.issue("other"));
        let users = directory.path().join("users");
        fs::write(&users, "web\n").expect("a file");
        let inspect = |more: &str| {
            let file =
                parse(&format!("[[memcached]]\naddress = \"127.0.0.1:1\"\n{more}")).expect("a configuration");
            file.inspect().err().map(|errors| errors.to_string()).unwrap_or_default()
        };
        let (certificate, key, other_key) =
            (one.certificate.display(), one.key.display(), other.key.display());
        assert_eq!(
            inspect(&format!("tls_certificate = \"file:{certificate}\"\ntls_key = \"file:{key}\"\n")),
            ""
        );
        for (more, error) in [
            (
                format!("tls_certificate = \"file:{certificate}\"\ntls_key = \"file:{other_key}\"\n"),
                format!(
                    "nvlane.toml:9:11: file:{other_key}: the private key does not belong to the certificate"
                ),
            ),
            (
                format!("tls_certificate = \"file:/nowhere\"\ntls_key = \"file:{key}\"\n"),
                "nvlane.toml:9:11: file:/nowhere: No such file or directory".into(),
            ),
            (
                format!("users = \"file:{}\"\n", users.display()),
                format!("nvlane.toml:9:11: file:{}: line 1: expected user:password", users.display()),
            ),
        ] {
            assert!(inspect(&more).starts_with(&error), "{}", inspect(&more));
        }
    }
}
