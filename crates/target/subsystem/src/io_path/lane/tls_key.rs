//! The key of a lane's TLS: whose it is, and what it protects.

use std::net::SocketAddr;

use security::psk::PskKind;
use security::tls::{Established, PskIdentity, Stream};
use wire::fabrics::ConnectData;
use wire::nqn::{HostName, Nqn};
use wire::text::quoted;
use zerocopy::FromBytes;

use crate::audit::TlsInUse;
use crate::messages::message::Channel;

/// Logs the parameters that a handshake has agreed on.
pub(crate) fn log_established(established: &Established, peer: Option<SocketAddr>) {
    let PskIdentity { host, subsystem, version, kind, .. } = &established.identity;
    tracing::info!(
        peer = peer.map(tracing::field::display),
        cipher = %established.cipher,
        host = %quoted(host.as_str()),
        subsystem = %quoted(subsystem.as_str()),
        ?version,
        key = ?kind,
        derivation = %established.derivation,
        "TLS established"
    );
}

/// The parameters that the handshake has agreed on, for the audit log.
pub(crate) fn in_use(stream: &Stream) -> Option<TlsInUse> {
    let established = stream.established()?;
    let (cipher, derivation) = (established.cipher, established.derivation);
    let (version, key) = (established.identity.version, established.identity.kind);
    Some(TlsInUse { cipher, version, derivation, key })
}

/// The protection of the connection; `Clear` until the handshake is complete.
pub(crate) fn channel(stream: &Stream) -> Channel {
    match stream.established() {
        None => Channel::Clear,
        Some(established) => match established.identity.kind {
            PskKind::Retained => Channel::ConfiguredKey,
            PskKind::Generated => Channel::GeneratedKey(established.text.as_str().into()),
        },
    }
}

/// Why a Connect with this data is refused: the key is for other names.
pub(crate) fn refusal(stream: &Stream, data: &[u8]) -> Option<String> {
    let Some(established) = stream.established() else { return Some("before TLS".into()) };
    // The control plane refuses data that is not of a Connect.
    let connect = ConnectData::read_from_bytes(data).ok()?;
    let PskIdentity { host, subsystem, .. } = &established.identity;
    let (host_asked, subsystem_asked) = (connect.host(), connect.subsystem());
    if host_asked.as_ref() == Ok(host) && subsystem_asked.as_ref() == Ok(subsystem) {
        return None;
    }
    let name = |name: Option<&str>| name.map_or("no name".to_owned(), |name| quoted(name).to_string());
    Some(format!(
        "host {} for subsystem {}, with the key of host {} for subsystem {}",
        name(host_asked.ok().as_ref().map(HostName::as_str)),
        name(subsystem_asked.ok().as_ref().map(Nqn::as_str)),
        quoted(host.as_str()),
        quoted(subsystem.as_str()),
    ))
}
