//! The state of a connection with TLS 1.3 that s2n-tls hands over: the serialized connection, version 1 of its layout.
//!
//! ```text
//! version 8 │ TLS 2 │ suite 2 │ records of the host 8 │ of the target 8 │ fragment 2 │ secret of the host │ of the target │ resumption
//! ```

use super::records::{Traffic, TrafficOfBoth};
use crate::psk::Cipher;
use crate::secret_bytes::SecretBytes;

/// The only layout, "V1".
const VERSION: u64 = 1;

/// Major and minor number as the library writes them.
const TLS_1_3: [u8; 2] = [3, 4];

/// Reads a serialized connection with this cipher suite; `None` if it has another layout, version of TLS, cipher suite or
/// length.
pub(super) fn read(cipher: Cipher, serialized: &[u8]) -> Option<TrafficOfBoth> {
    let suite: [u8; 2] = match cipher {
        Cipher::Aes128GcmSha256 => [0x13, 1],
        Cipher::Aes256GcmSha384 => [0x13, 2],
    };
    let (version, rest) = serialized.split_first_chunk()?;
    let (tls, rest) = rest.split_first_chunk::<2>()?;
    let (serialized_suite, rest) = rest.split_first_chunk::<2>()?;
    if (u64::from_be_bytes(*version), *tls, *serialized_suite) != (VERSION, TLS_1_3, suite) {
        return None;
    }
    let (host_count, rest) = rest.split_first_chunk()?;
    let (target_count, rest) = rest.split_first_chunk()?;
    let (_fragment, secrets) = rest.split_first_chunk::<2>()?;
    let secret_bytes = cipher.hash().digest_bytes();
    let (host, rest) = secrets.split_at_checked(secret_bytes)?;
    let (target, resumption) = rest.split_at_checked(secret_bytes)?;
    // A library that no longer keeps a secret would leave zeros.
    let is_secret = |bytes: &[u8]| bytes.iter().any(|&byte| byte != 0);
    if resumption.len() != secret_bytes || !is_secret(host) || !is_secret(target) {
        return None;
    }
    let traffic = |secret: &[u8], count: &[u8; 8]| Traffic {
        secret: SecretBytes::from(secret),
        record_count: u64::from_be_bytes(*count),
    };
    Some(TrafficOfBoth { host: traffic(host, host_count), target: traffic(target, target_count) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serialized(secret_bytes: usize, suite: u8) -> Vec<u8> {
        let fields: [&[u8]; 9] = [
            &VERSION.to_be_bytes(),
            &[3, 4],
            &[0x13, suite],
            &5_u64.to_be_bytes(),
            &(1_u64 << 40).to_be_bytes(),
            &[0x40, 0],
            &vec![1; secret_bytes],
            &vec![2; secret_bytes],
            &vec![0; secret_bytes],
        ];
        fields.concat()
    }

    #[test]
    fn secrets_and_record_counts_of_both_directions_are_read() {
        for (cipher, secret_bytes, suite) in
            [(Cipher::Aes128GcmSha256, 32, 1), (Cipher::Aes256GcmSha384, 48, 2)]
        {
            let read = read(cipher, &serialized(secret_bytes, suite)).expect("the layout");
            assert_eq!((read.host.record_count, read.target.record_count), (5, 1 << 40));
            assert_eq!(read.host.secret.expose(), vec![1; secret_bytes]);
            assert_eq!(read.target.secret.expose(), vec![2; secret_bytes]);
        }
    }

    #[test]
    fn another_layout_is_refused() {
        let good = serialized(32, 1);
        for length in 0..good.len() {
            assert!(read(Cipher::Aes128GcmSha256, &good[..length]).is_none(), "{length}");
        }
        assert!(read(Cipher::Aes128GcmSha256, &[&good[..], &[0]].concat()).is_none());
        assert!(read(Cipher::Aes256GcmSha384, &good).is_none());
        // Version, version of TLS, cipher suite.
        for at in [7, 9, 11] {
            let mut changed = good.clone();
            changed[at] ^= 2;
            assert!(read(Cipher::Aes128GcmSha256, &changed).is_none(), "{at}");
        }
        // No secret.
        for secret in [30..62, 62..94] {
            let mut changed = good.clone();
            changed[secret].fill(0);
            assert!(read(Cipher::Aes128GcmSha256, &changed).is_none());
        }
    }
}
