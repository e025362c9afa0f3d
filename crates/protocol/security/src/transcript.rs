//! Responses: the values by which each side proves its key. wire §22.4

use crate::hash::HashFunction;
use crate::names::Names;
use crate::psk::Psk;
use crate::secret_bytes::SecretBytes;
use crate::secure_channel::SecureChannel;

/// The side that responds.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// With R1.
    Host,
    /// With R2.
    Controller,
}

/// The values that both responses of a transaction cover.
pub(crate) struct Transcript<'a> {
    pub(crate) hash: HashFunction,
    pub(crate) transaction: u16,
    pub(crate) secure_channel: SecureChannel,
    pub(crate) names: &'a Names,
    /// The secret of the Diffie-Hellman exchange, if there was one.
    pub(crate) shared: Option<&'a SecretBytes>,
}

impl Transcript<'_> {
    /// The response of a side, with its key, to the other side's challenge.
    pub(crate) fn response(
        &self,
        side: Side,
        key: &SecretBytes,
        challenge: &[u8],
        sequence: u32,
    ) -> SecretBytes {
        self.with_parts(side, challenge, sequence, |parts| self.hash.hmac(key.expose(), parts))
    }

    /// Whether this is that response, in constant time.
    pub(crate) fn is_response(
        &self,
        response: &[u8],
        side: Side,
        key: &SecretBytes,
        challenge: &[u8],
        sequence: u32,
    ) -> bool {
        self.with_parts(side, challenge, sequence, |parts| self.hash.hmac_is(key.expose(), parts, response))
    }

    /// The PSK that the transaction generates from both challenges; `None` without a Diffie-Hellman exchange, or with a
    /// hash function of no cipher suite. wire §22.5
    pub(crate) fn generated_psk(&self, c1: &[u8], c2: &[u8]) -> Option<Psk> {
        Psk::generated(self.hash, &self.session_key(self.shared?), c1, c2)
    }

    /// The session key is the digest of the shared secret.
    fn session_key(&self, shared: &SecretBytes) -> SecretBytes {
        self.hash.digest(shared.expose())
    }

    fn with_parts<R>(
        &self,
        side: Side,
        challenge: &[u8],
        sequence: u32,
        then: impl FnOnce(&[&[u8]]) -> R,
    ) -> R {
        let (host, subsystem) = (self.names.host.as_str().as_bytes(), self.names.subsystem.as_bytes());
        let (role, own, other): (&[u8], _, _) = match side {
            Side::Host => (b"HostHost", host, subsystem),
            // Linux before 7.1 writes 0 in place of SC_C here, which is the same without concatenation.
            Side::Controller => (b"Controller", subsystem, host),
        };
        let challenge = match self.shared {
            None => challenge.into(),
            Some(shared) => self.hash.hmac(self.session_key(shared).expose(), &[challenge]),
        };
        then(&[
            challenge.expose(),
            &sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            &[self.secure_channel.code()],
            role,
            own,
            &[0],
            other,
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    fn hex(bytes: &SecretBytes) -> String {
        bytes.expose().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Values of an independent host, with whose formulas Linux 6.12.117 targets authenticated it. wire §22.4
    #[test]
    fn responses_are_those_that_linux_accepts() {
        let secret: Secret =
            "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:".parse().expect("a secret");
        let host = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
        let subsystem = "nqn.2016-06.io.nvlane:sub1";
        let names =
            Names { host: host.parse().expect("a name"), subsystem: subsystem.parse().expect("a name") };
        let (host_key, controller_key) = (secret.key_of(host), secret.key_of(subsystem));
        let c1: Vec<u8> = (0..32).collect();
        let c2: Vec<u8> = (0..32).map(|at| 255 - at).collect();
        let shared = SecretBytes::from(vec![0x5A; 256]);
        let null = Transcript {
            hash: HashFunction::Sha256,
            transaction: 7,
            secure_channel: SecureChannel::None,
            names: &names,
            shared: None,
        };
        let ffdhe = Transcript { shared: Some(&shared), ..null };
        for (transcript, side, key, challenge, sequence, expected) in [
            (&null, Side::Host, &host_key, &c1, 0x0102_0304, "ba2a31924488e57b2f4241c76314e0b7"),
            (&null, Side::Controller, &controller_key, &c2, 0x0102_0305, "fec275a5bfded09f786be0fa4896580a"),
            (&ffdhe, Side::Host, &host_key, &c1, 0x0102_0304, "abb45ea13b291f9c61415be3c7478320"),
        ] {
            let response = transcript.response(side, key, challenge, sequence);
            assert!(hex(&response).starts_with(expected), "{}", hex(&response));
            assert!(transcript.is_response(response.expose(), side, key, challenge, sequence));
            let cut = &response.expose()[..31];
            assert!(!transcript.is_response(cut, side, key, challenge, sequence));
            assert!(!transcript.is_response(&[], side, key, challenge, sequence));
        }
    }
}
