//! Vectors computed by `tests/vectors.py`, which shares no code with the crate.

use nvlane_security::group::Group;
use nvlane_security::hash::HashFunction;
use nvlane_security::psk::{Cipher, IdentityVersion, Psk};
use nvlane_security::secret_bytes::SecretBytes;
use nvlane_security::secure_channel::SecureChannel;
use nvlane_security::tls_key::TlsKey;
use sha2::{Digest, Sha256};

use crate::exchange::{HOST, Outcome, Pair, SUBSYSTEM, run};

const DHCHAP: &str = include_str!("../vectors/dhchap.txt");
const CONCATENATION: &str = include_str!("../vectors/concatenation.txt");
const PSK: &str = include_str!("../vectors/psk.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(digits: &str) -> Vec<u8> {
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("digits"))
        .collect()
}

/// wire §22.2 wire §22.3 wire §22.4
#[test]
fn every_message_of_every_combination_is_that_of_independent_code() {
    let mut count = 0;
    for line in DHCHAP.lines().filter(|line| !line.starts_with('#')) {
        count += 1;
        let fields: Vec<&str> = line.split(' ').collect();
        let [hash, group, directions, form, host_secret, controller_secret, r1, r2, all] = fields[..] else {
            panic!("{line}")
        };
        let id = |text: &str| text.parse::<u8>().expect("an identifier");
        let hash = HashFunction::from_id(id(hash)).expect("a hash function");
        let group = Group::from_id(id(group)).expect("a group");
        let mut pair = Pair::new(hash, group, directions == "2", HashFunction::from_id(id(form)));
        pair.host.host = host_secret.parse().expect("a secret");
        assert_eq!(*pair.host.host.to_text(), host_secret);
        if let Some(secret) = &mut pair.controller.controller {
            *secret = controller_secret.parse().expect("a secret");
        }
        let outcome = run(&mut pair.host(), &mut pair.controller(), |_, _| ());
        assert!(outcome.host.is_ok(), "{line}");
        let messages = outcome.messages;
        assert_eq!(hex(&messages[2][16..16 + hash.digest_bytes()]), r1, "{line}");
        if r2 != "-" {
            assert_eq!(hex(&messages[3][16..]), r2, "{line}");
        }
        assert_eq!(hex(&Sha256::digest(messages.concat())), all, "{line}");
    }
    assert_eq!(count, 144);
}

/// wire §22.3 wire §22.4 wire §22.5
#[test]
fn both_ends_generate_the_key_of_independent_code() {
    let mut count = 0;
    for line in CONCATENATION.lines().filter(|line| !line.starts_with('#')) {
        count += 1;
        let fields: Vec<&str> = line.split('|').collect();
        let [sc_c, hash, group, directions, r1, r2, all, psk, identity, key] = fields[..] else {
            panic!("{line}")
        };
        let id = |text: &str| text.parse::<u8>().expect("an identifier");
        let hash = HashFunction::from_id(id(hash)).expect("a hash function");
        let group = Group::from_id(id(group)).expect("a group");
        let mut pair = Pair::new(hash, group, directions == "2", None);
        let secure_channel = SecureChannel::from_code(id(sc_c)).expect("a value with a meaning");
        (pair.host.secure_channel, pair.controller.secure_channel) = (secure_channel, secure_channel);
        let (mut host, mut controller) = (pair.host(), pair.controller());
        let Outcome { messages, host: outcome, controller: seen } =
            run(&mut host, &mut controller, |_, _| ());
        assert_eq!(outcome.expect(line), seen.expect(line), "{line}");
        assert_eq!(seen.expect(line).secure_channel, secure_channel, "{line}");
        assert_eq!(hex(&messages[2][16..16 + hash.digest_bytes()]), r1, "{line}");
        if r2 != "-" {
            assert_eq!(hex(&messages[3][16..]), r2, "{line}");
        }
        assert_eq!(hex(&Sha256::digest(messages.concat())), all, "{line}");
        for generated in [host.take_generated(), controller.take_generated()] {
            let generated = generated.expect("a key");
            let tls = generated.tls(IdentityVersion::One, HOST, SUBSYSTEM).expect("any names");
            let found = [hex(generated.key().expose()), tls.identity, hex(tls.key.expose())];
            assert_eq!(found, [psk, identity, key], "{line}");
        }
        assert!(host.take_generated().is_none() && controller.take_generated().is_none(), "only once");
    }
    assert_eq!(count, 40);
}

/// wire §22.5
#[test]
fn keys_of_tls_are_those_of_independent_code() {
    let mut count = 0;
    for line in PSK.lines().filter(|line| !line.starts_with('#')) {
        count += 1;
        let fields: Vec<&str> = line.split('|').collect();
        let (psk, expected, host, subsystem) = match fields[..] {
            ["retained", text, ..] => {
                let key: TlsKey = text.parse().expect("a key");
                assert_eq!(*key.to_text(), text);
                (key.retained("nqn.psk-test-host"), &fields[2..], "nqn.psk-test-host", "nqn.psk-test-subsys")
            }
            ["generated", hash, key, c1, c2, ..] => {
                let hash =
                    HashFunction::from_id(hash.parse().expect("an identifier")).expect("a hash function");
                let key = SecretBytes::from(from_hex(key));
                let psk = Psk::generated(hash, &key, &from_hex(c1), &from_hex(c2)).expect("a cipher");
                (psk, &fields[5..], "hostnqn", "subsysnqn")
            }
            _ => panic!("{line}"),
        };
        let zero = psk.tls(IdentityVersion::Zero, host, subsystem).expect("short names");
        let one = psk.tls(IdentityVersion::One, host, subsystem).expect("any names");
        let found = [
            hex(psk.key().expose()),
            zero.identity,
            hex(zero.key.expose()),
            one.identity,
            hex(one.key.expose()),
        ];
        assert_eq!(found, expected, "{line}");
    }
    assert_eq!(count, 6);
}

/// wire §22.5
#[test]
fn keys_of_tls_have_limits() {
    let key = SecretBytes::from(vec![7; 64]);
    assert!(Psk::generated(HashFunction::Sha512, &key, &[1; 64], &[2; 64]).is_none());
    for (hash, length, is_right) in [
        (None, 32, true),
        (None, 48, true),
        (None, 64, false),
        (Some(HashFunction::Sha256), 32, true),
        (Some(HashFunction::Sha256), 48, false),
        (Some(HashFunction::Sha384), 48, true),
        (Some(HashFunction::Sha384), 32, false),
        (Some(HashFunction::Sha512), 64, false),
    ] {
        assert_eq!(TlsKey::new(hash, vec![3; length].into()).is_ok(), is_right, "{hash:?} {length}");
    }
    let key = TlsKey::new(None, vec![5; 48].into()).expect("a key");
    assert_eq!(format!("{key:?}"), "TlsKey(48 bytes)");
    let psk = key.retained(HOST);
    assert_eq!(psk.cipher(), Cipher::Aes256GcmSha384);
    let host = |length: usize| format!("nqn.2016-06.io.nvlane:{}", "x".repeat(length));
    for (length, expected) in [(255, Some(255)), (256, None)] {
        let host = host(length - "NVMe0R02  ".len() - SUBSYSTEM.len() - host(0).len());
        let tls = psk.tls(IdentityVersion::Zero, &host, SUBSYSTEM);
        assert_eq!(tls.map(|tls| tls.identity.len()), expected);
    }
    let long = host(201);
    assert!(psk.tls(IdentityVersion::Zero, &long, &long).is_none());
    assert!(psk.tls(IdentityVersion::One, &long, &long).is_some());
}
