//! The text form that both kinds of keys share: `PREFIX:XX:BASE64:`, where the encoded bytes are the key and its
//! CRC-32, little-endian.

use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

use crate::secret_bytes::SecretBytes;

/// Longest text of a key: prefix, form, and 68 bytes in base64.
const TEXT_BYTES_MAX: usize = 13 + 3 + 92 + 1;

/// The error of a malformed text of a key. The message never contains a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// Another prefix.
    #[error("does not begin with \"{prefix}:\"")]
    Prefix {
        /// The right one.
        prefix: &'static str,
    },
    /// Not two digits and a colon after the prefix, or a form that does not exist.
    #[error("no form from 00 to {last:02} after \"{prefix}:\"")]
    Form {
        /// The prefix.
        prefix: &'static str,
        /// The last form that exists.
        last: u8,
    },
    /// No colon at the end.
    #[error("does not end with \":\" (cut off?)")]
    End,
    /// The key is not base64.
    #[error("the key is not base64")]
    Base64,
    /// A key of another length.
    #[error("the key has {length} bytes, not {allowed}")]
    Length {
        /// Its bytes, without checksum.
        length: usize,
        /// The lengths there are.
        allowed: &'static str,
    },
    /// Another checksum.
    #[error("the checksum is wrong: a character differs from the original")]
    Checksum,
}

/// Reads a form and a key. Space around the text is ignored.
pub(crate) fn parse(prefix: &'static str, last: u8, text: &str) -> Result<(u8, SecretBytes), KeyTextError> {
    let rest = text.trim().strip_prefix(prefix).and_then(|rest| rest.strip_prefix(':'));
    let rest = rest.ok_or(KeyTextError::Prefix { prefix })?;
    let (form, rest) = rest.split_once(':').ok_or(KeyTextError::Form { prefix, last })?;
    let form = match form.as_bytes() {
        [b'0', digit @ b'0'..=b'9'] => digit.wrapping_sub(b'0'),
        _ => return Err(KeyTextError::Form { prefix, last }),
    };
    if form > last {
        return Err(KeyTextError::Form { prefix, last });
    }
    let base64 = rest.strip_suffix(':').ok_or(KeyTextError::End)?;
    // The decoder works in constant time, in a buffer that is wiped.
    let mut buffer = Zeroizing::new([0; TEXT_BYTES_MAX]);
    let buffer = buffer.get_mut(..base64.len()).ok_or(KeyTextError::Base64)?;
    let decoded = Base64::decode(base64, buffer).map_err(|_| KeyTextError::Base64)?;
    let Some((key, checksum)) = decoded.split_last_chunk::<4>() else { return Err(KeyTextError::Checksum) };
    if crc32(key) != u32::from_le_bytes(*checksum) {
        return Err(KeyTextError::Checksum);
    }
    Ok((form, key.into()))
}

/// The text of a key.
pub(crate) fn to_text(prefix: &str, form: u8, key: &SecretBytes) -> Zeroizing<String> {
    let key = key.expose();
    let bytes = Zeroizing::new([key, &crc32(key).to_le_bytes()].concat());
    let mut base64 = Zeroizing::new(vec![0; Base64::encoded_len(&bytes)]);
    let base64 = Base64::encode(&bytes, &mut base64).unwrap_or_default();
    let mut text = Zeroizing::new(String::with_capacity(TEXT_BYTES_MAX));
    for part in [prefix, ":0", form_digit(form), ":", base64, ":"] {
        text.push_str(part);
    }
    text
}

const fn form_digit(form: u8) -> &'static str {
    match form {
        0 => "0",
        1 => "1",
        2 => "2",
        _ => "3",
    }
}

/// The CRC-32 of zlib, one bit at a time: a key has 64 bytes at most.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |register, byte| {
        (0..8).fold(register ^ u32::from(*byte), |register: u32, _| {
            (register >> 1) ^ (0xEDB8_8320 & (register & 1).wrapping_neg())
        })
    })
}
