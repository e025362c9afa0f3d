//! Files with keys.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use security::secret_bytes::SecretBytes;
use zeroize::Zeroizing;

use crate::exit::Failure;
use crate::output::is_standard;

/// A text of a key is shorter by far.
const FILE_BYTES_MAX: usize = 4096;

/// Reads a key from a file, or from standard input if the path is `-`, without the space around it.
pub(super) fn read(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let failed = |error| Failure::usage(format!("cannot read {}: {error}", path.display()));
    // Of the full size at once: a buffer that grows would leave copies behind.
    let mut buffer = Zeroizing::new(vec![0; FILE_BYTES_MAX + 1]);
    let length = if is_standard(path) {
        read_up_to(&mut std::io::stdin().lock(), &mut buffer)
    } else {
        let mut file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o044 != 0 {
            tracing::warn!("other users can read the key in {}; run chmod 600 on it", path.display());
        }
        read_up_to(&mut file, &mut buffer)
    };
    let bytes = &buffer[..length.map_err(failed)?];
    if bytes.len() > FILE_BYTES_MAX {
        return Err(Failure::usage(format!(
            "{} has more than {FILE_BYTES_MAX} bytes: not a key",
            path.display()
        )));
    }
    let text =
        std::str::from_utf8(bytes).map_err(|_| Failure::usage(format!("{} is not text", path.display())))?;
    Ok(Zeroizing::new(text.trim().to_owned()))
}

fn read_up_to(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    loop {
        match from.read(&mut buffer[length..]) {
            Ok(0) => return Ok(length),
            Ok(count) => length += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads hexadecimal digits.
pub(super) fn read_hex(path: &Path) -> Result<SecretBytes, Failure> {
    from_hex(&read(path)?).ok_or_else(|| {
        Failure::usage(format!("{}: expected an even number of hexadecimal digits", path.display()))
    })
}

/// The bytes of hexadecimal digits.
pub(super) fn from_hex(digits: &str) -> Option<SecretBytes> {
    let pairs = digits.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> = pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect();
    bytes.filter(|bytes| !bytes.is_empty()).map(SecretBytes::from)
}

fn digit(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

/// The hexadecimal digits of bytes.
pub(super) fn to_hex(bytes: &SecretBytes) -> Zeroizing<String> {
    let mut digits = Zeroizing::new(String::with_capacity(2 * bytes.expose().len()));
    for byte in bytes.expose() {
        for half in [byte >> 4, byte & 15] {
            digits.push(char::from_digit(u32::from(half), 16).unwrap_or_default());
        }
    }
    digits
}

/// Writes a key into a new file that only its owner can read.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error| Failure::usage(format!("cannot write {}: {error}", path.display()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_read_as_they_were_written() {
        for (digits, bytes) in [("00ff10", Some(&[0, 255, 16][..])), ("FFaB", Some(&[255, 0xAB])), ("", None)]
        {
            assert_eq!(from_hex(digits).map(|bytes| bytes.expose().to_vec()).as_deref(), bytes);
        }
        for digits in ["0", "0g", "+1", "123", "\u{e9}"] {
            assert!(from_hex(digits).is_none(), "{digits}");
        }
        assert_eq!(*to_hex(&SecretBytes::from(vec![0, 0xAB, 0x1F])), "00ab1f");
    }

    #[test]
    fn a_written_key_is_its_owner_s_and_replaces_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key");
        write(&path, "secret\n").expect("written");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(*read(&path).expect("read"), "secret");
        assert!(write(&path, "other").is_err());
        assert_eq!(*read(&path).expect("read"), "secret");
    }

    #[test]
    fn a_file_that_is_no_key_is_refused() {
        assert!(
            read(Path::new("/dev/zero")).is_err_and(|error| error.to_string().contains("more than 4096"))
        );
        assert!(read(Path::new("/nowhere/key")).is_err());
    }
}
