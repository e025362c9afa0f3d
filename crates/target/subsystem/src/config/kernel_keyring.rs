//! Secrets in the kernel's keyrings, by the description of their key. keyrings(7)

use linux_keyutils::{Key, KeyError, KeyRing, KeyRingIdentifier};
use zeroize::Zeroizing;

/// Longest text of a secret, bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// The text of a key of type `user`, from the session keyring or else the user's.
///
/// # Errors
/// There is no such key, this process must not read it, or it is not text.
pub(super) fn read(description: &str) -> Result<Zeroizing<String>, String> {
    let key = find(description)?;
    let mut bytes = Zeroizing::new([0; TEXT_BYTES_MAX]);
    let length = key.read(&mut *bytes).map_err(|error| why(error, description))?;
    // The kernel gives the length of the key, and nothing of it if the buffer is shorter.
    let text = bytes.get(..length).ok_or_else(|| format!("more than {TEXT_BYTES_MAX} bytes: not a key"))?;
    let text = str::from_utf8(text).map_err(|_| "it is not text: add the key as text, such as DHHC-1:…")?;
    Ok(Zeroizing::new(text.to_owned()))
}

fn find(description: &str) -> Result<Key, String> {
    let rings = [KeyRingIdentifier::Session, KeyRingIdentifier::User];
    let mut missing = KeyError::KeyDoesNotExist;
    for ring in rings {
        match KeyRing::from_special_id(ring, false).and_then(|ring| ring.search(description)) {
            Ok(key) => return Ok(key),
            Err(KeyError::KeyDoesNotExist | KeyError::KeyringDoesNotExist) => {}
            Err(error) => missing = error,
        }
    }
    Err(why(missing, description))
}

/// The failure, and the remedy.
fn why(error: KeyError, description: &str) -> String {
    match error {
        KeyError::KeyDoesNotExist => format!(
            "no key of type user has this description in the session or user keyring: add it with keyctl padd user {description} @u"
        ),
        KeyError::AccessDenied => "this process may not read the key: a key of the user keyring must be linked to the session \
             (keyctl link @u @s; KeyringMode=shared in a systemd unit)"
            .into(),
        KeyError::PermissionDenied => {
            "the kernel's keyrings are not allowed here: a container, or a systemd unit without SystemCallFilter=keyctl".into()
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The session keyring, if keyrings are allowed here: containers often forbid them.
    fn session() -> Option<KeyRing> {
        let ring = KeyRing::from_special_id(KeyRingIdentifier::Session, true).ok()?;
        ring.add_key("nvlane-test-probe", "x").ok()?.invalidate().ok()?;
        Some(ring)
    }

    #[test]
    fn a_key_is_found_by_its_description() {
        let Some(ring) = session() else { return eprintln!("skipped: no keyrings here") };
        let description = format!("nvlane-test:{}", std::process::id());
        let missing = read(&description).expect_err("not yet");
        assert!(missing.contains("keyctl padd user nvlane-test:"), "{missing}");
        let key = ring.add_key(&description, "DHHC-1:00:text\n").expect("added");
        assert_eq!(read(&description).as_deref().map(String::as_str), Ok("DHHC-1:00:text\n"));
        ring.add_key(&description, &[b'x'; TEXT_BYTES_MAX + 1]).expect("changed");
        assert!(read(&description).expect_err("too long").contains("more than 4096 bytes"));
        ring.add_key(&description, &[0xFF; 32]).expect("changed");
        assert!(read(&description).expect_err("no text").contains("not text"));
        key.invalidate().expect("removed");
        assert!(read(&description).is_err());
    }
}
