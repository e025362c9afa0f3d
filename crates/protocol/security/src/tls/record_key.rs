//! The key of one direction of a session: its nonces, and the next key. RFC 8446 sections 5.2, 5.3, 7.2 and 7.3

use core::fmt;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::psk::{Cipher, expand_secret};
use crate::secret_bytes::SecretBytes;

/// Bytes that protect a record from changes.
pub(super) const TAG_BYTES: usize = 16;

/// The key of the records of one direction.
pub(super) struct RecordKey {
    cipher: Cipher,
    /// The traffic secret, from which the next one follows.
    secret: SecretBytes,
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    /// Records so far: each has another nonce.
    record_count: u64,
}

impl RecordKey {
    /// The key of a traffic secret that has had this number of records.
    pub(super) fn new(cipher: Cipher, secret: SecretBytes, record_count: u64) -> Self {
        let algorithm = match cipher {
            Cipher::Aes128GcmSha256 => &AES_128_GCM,
            Cipher::Aes256GcmSha384 => &AES_256_GCM,
        };
        let key = expand_secret(cipher, &secret, "key", algorithm.key_len());
        let iv = expand_secret(cipher, &secret, "iv", NONCE_LEN);
        let mut own_iv = [0; NONCE_LEN];
        own_iv.copy_from_slice(iv.expose());
        #[expect(clippy::expect_used, reason = "the key has the length that the algorithm asks for")]
        let key = UnboundKey::new(algorithm, key.expose()).expect("of the right length");
        Self { cipher, secret, key: LessSafeKey::new(key), iv: own_iv, record_count }
    }

    /// Goes on to the next key.
    pub(super) fn update(&mut self) {
        let length = self.cipher.hash().digest_bytes();
        *self = Self::new(self.cipher, expand_secret(self.cipher, &self.secret, "traffic upd", length), 0);
    }

    /// Records of this key.
    pub(super) const fn record_count(&self) -> u64 {
        self.record_count
    }

    /// Decrypts `sealed`, which ends with its tag, into `into`, which is shorter by the tag. Returns whether the record
    /// is as the peer sealed it; if not, the content of `into` is arbitrary.
    pub(super) fn open(&mut self, header: &[u8], sealed: &[u8], into: &mut [u8]) -> bool {
        let Some((sealed, tag)) = sealed.split_last_chunk::<TAG_BYTES>() else { return false };
        let Some(nonce) = self.next_nonce() else { return false };
        self.key.open_separate_gather(nonce, Aad::from(header), sealed, tag, into).is_ok()
    }

    /// Encrypts `content` in place, and the type of the record and the tag into `tail`. Returns whether that was possible:
    /// always, with these lengths.
    pub(super) fn seal(
        &mut self,
        header: &[u8],
        content: &mut [u8],
        kind: u8,
        tail: &mut [u8; 1 + TAG_BYTES],
    ) -> bool {
        let Some(nonce) = self.next_nonce() else { return false };
        self.key.seal_in_place_scatter(nonce, Aad::from(header), content, &[kind], tail).is_ok()
    }

    fn next_nonce(&mut self) -> Option<Nonce> {
        let mut nonce = self.iv;
        let [_, _, _, _, low @ ..] = &mut nonce;
        for (byte, count) in low.iter_mut().zip(self.record_count.to_be_bytes()) {
            *byte ^= count;
        }
        self.record_count = self.record_count.checked_add(1)?;
        Some(Nonce::assume_unique_for_key(nonce))
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordKey").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        let text: String = text.split_whitespace().collect();
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    /// The application data of RFC 8448 section 3 ("Simple 1-RTT Handshake").
    #[test]
    fn the_records_of_rfc_8448_are_opened_and_sealed() {
        let client =
            "9e 40 64 6c e7 9a 7f 9d c0 5a f8 88 9b ce 65 52 87 5a fa 0b 06 df 00 87 f7 92 eb b7 c1 75 04 a5";
        let key = RecordKey::new(Cipher::Aes128GcmSha256, SecretBytes::from(bytes(client)), 0);
        assert_eq!(key.iv.to_vec(), bytes("5b 78 92 3d ee 08 57 90 33 e5 23 d9"));
        let sealed = bytes(
            "17 03 03 00 43 a2 3f 70 54 b6 2c 94 d0 af fa fe 82 28 ba 55 cb ef ac ea 42 f9 14 aa 66 bc ab 3f 2b 98 19 \
             a8 a5 b4 6b 39 5b d5 4a 9a 20 44 1e 2b 62 97 4e 1f 5a 62 92 a2 97 70 14 bd 1e 3d ea e6 3a ee bb 21 69 49 \
             15 e4",
        );
        let plain: Vec<u8> = (0..50).collect();
        let (header, record) = sealed.split_at(5);
        let mut opening = RecordKey::new(Cipher::Aes128GcmSha256, SecretBytes::from(bytes(client)), 0);
        let mut opened = vec![0; record.len() - TAG_BYTES];
        assert!(opening.open(header, record, &mut opened));
        assert_eq!((&opened[..50], opened[50]), (&plain[..], 23));
        // Each record has a nonce of its own.
        assert!(!opening.open(header, record, &mut opened));
        let (mut sealing, mut content, mut tail) = (key, plain, [0; 17]);
        assert!(sealing.seal(header, &mut content, 23, &mut tail));
        assert_eq!([&content[..], &tail].concat(), record);
        assert_eq!(sealing.record_count(), 1);
    }
}
