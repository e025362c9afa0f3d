//! The key of a command, on its way to its partition.

use wire::kv::Key;

/// The key of a command: in the command itself, or in its data, where it may be longer.
#[derive(Clone, Debug)]
pub enum KeyName {
    /// In the command.
    Short(Key),
    /// In its data.
    Long(Box<[u8]>),
}

impl KeyName {
    /// Its bytes.
    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(key) => key.as_bytes(),
            Self::Long(key) => key,
        }
    }
}

impl From<Key> for KeyName {
    fn from(key: Key) -> Self {
        Self::Short(key)
    }
}

impl From<&[u8]> for KeyName {
    fn from(key: &[u8]) -> Self {
        Key::new(key).map_or_else(|| Self::Long(key.into()), Self::Short)
    }
}
