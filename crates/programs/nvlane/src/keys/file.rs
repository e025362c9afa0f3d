//! Files with keys.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use command_line::exit::Failure;
use command_line::output::is_standard;
use security::secret_bytes::SecretBytes;
use subsystem::config::{read_secret, read_secret_file};
use zeroize::Zeroizing;

/// Reads a key from a file, or from standard input if the path is `-`, without the space around it.
pub(super) fn read(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let text = if is_standard(path) { read_secret(std::io::stdin().lock()) } else { read_secret_file(path) };
    text.map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
}

/// Reads hexadecimal digits.
pub(super) fn read_hex(path: &Path) -> Result<SecretBytes, Failure> {
    from_hex(&read(path)?).ok_or_else(|| {
        Failure::usage(format!("{}: expected an even number of hexadecimal digits", path.display()))
    })
}

/// The bytes of hexadecimal digits.
pub(super) fn from_hex(digits: &str) -> Option<SecretBytes> {
    wire::text::from_hex(digits.as_bytes()).filter(|bytes| !bytes.is_empty()).map(SecretBytes::from)
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
    use std::os::unix::fs::PermissionsExt;

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
            read(Path::new("/dev/zero")).is_err_and(|error| error.to_string().contains("it is a device"))
        );
        assert!(read(Path::new("/nowhere/key")).is_err());
    }
}
