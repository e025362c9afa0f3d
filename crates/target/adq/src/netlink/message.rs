//! Netlink messages and attributes, to bytes and from bytes (`linux/netlink.h`). Integers are in host order.

/// Bytes of a message header (`struct nlmsghdr`).
pub const HEADER_BYTES: usize = 16;
/// Flag of a message: it is a request.
pub const REQUEST: u16 = 0x001;
/// Flag of a request: the kernel acknowledges it.
pub const ACK: u16 = 0x004;
/// Flags of a request: the kernel answers with all objects.
pub const DUMP: u16 = 0x300;
/// Flags of a request: it creates an object, and fails if the object exists.
pub const CREATE_NEW: u16 = 0x600;

/// Flag of an attribute's type: the attribute contains attributes.
const NESTED: u16 = 0x8000;
/// Bits of an attribute's type that are flags.
const TYPE_FLAGS: u16 = 0xc000;
/// Bytes of an attribute header (`struct nlattr`).
const ATTRIBUTE_HEADER_BYTES: usize = 4;

/// A request that is being written.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A message of `kind` that begins with `fixed`, the fixed part of its family.
    #[must_use]
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(fixed);
        let mut message = Self { bytes };
        message.pad();
        message
    }

    /// Appends an attribute.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        let start = self.open(kind);
        self.bytes.extend_from_slice(value);
        self.close(start);
    }

    /// Appends an attribute that is a text, with the terminating zero.
    pub fn text(&mut self, kind: u16, value: &str) {
        let start = self.open(kind);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.close(start);
    }

    /// Appends an attribute whose content `write` appends, without the flag that says so: traffic control's
    /// `TCA_OPTIONS` has none.
    pub fn content(&mut self, kind: u16, write: impl FnOnce(&mut Self)) {
        let start = self.open(kind);
        write(self);
        self.close(start);
    }

    /// Appends a nested attribute whose attributes `write` appends.
    pub fn nest(&mut self, kind: u16, write: impl FnOnce(&mut Self)) {
        self.content(kind | NESTED, write);
    }

    /// Appends bytes that are no attribute, padded to four bytes.
    pub fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// The bytes to send, as request number `sequence`.
    #[must_use]
    pub fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("a request has a few hundred bytes");
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn close(&mut self, start: usize) {
        let length = u16::try_from(self.bytes.len() - start).expect("an attribute has a few hundred bytes");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// Its type.
    pub kind: u16,
    /// Its flags.
    pub flags: u16,
    /// Number of the request that it answers.
    pub sequence: u32,
    /// Everything behind the header.
    pub body: &'a [u8],
}

/// The messages of one received datagram. Ends at the first message that is cut short.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let message = bytes.get(..length).filter(|_| length >= HEADER_BYTES)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Received {
            kind: u16_at(message, 4)?,
            flags: u16_at(message, 6)?,
            sequence: u32_at(message, 8)?,
            body: &message[HEADER_BYTES..],
        })
    })
}

/// The attributes in `bytes`: type without its flags, and content. Ends at the first attribute that is cut short.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let attribute = bytes.get(..length).filter(|_| length >= ATTRIBUTE_HEADER_BYTES)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16_at(attribute, 2)? & !TYPE_FLAGS, &attribute[ATTRIBUTE_HEADER_BYTES..]))
    })
}

/// Content of the first attribute of type `kind` in `bytes`.
#[must_use]
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// The text of an attribute, up to its terminating zero.
#[must_use]
pub fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// The integer of two bytes at `offset`.
#[must_use]
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..offset + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

/// The integer of four bytes at `offset`.
#[must_use]
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..offset + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The integer of eight bytes at `offset`.
#[must_use]
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..offset + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes of a recording, two hexadecimal digits each.
    pub(crate) fn bytes_of(digits: &str) -> Vec<u8> {
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    proptest! {
        #[test]
        fn attributes_come_back_as_written(values in prop::collection::vec((1u16..0x3fff, prop::collection::vec(any::<u8>(), 0..40)), 0..12)) {
            let mut message = Message::new(20, ACK, &[7; 8]);
            for (kind, value) in &values {
                message.attribute(*kind, value);
            }
            let bytes = message.finish(9);
            let received: Vec<_> = messages(&bytes).collect();
            prop_assert_eq!(received.len(), 1);
            prop_assert_eq!((received[0].kind, received[0].flags, received[0].sequence), (20, REQUEST | ACK, 9));
            let read: Vec<_> = attributes(&received[0].body[8..]).map(|(kind, value)| (kind, value.to_vec())).collect();
            prop_assert_eq!(read, values);
        }

        #[test]
        fn bytes_of_any_content_end(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            for message in messages(&bytes) {
                for (_, value) in attributes(message.body) {
                    prop_assert!(attributes(value).count() <= value.len());
                }
            }
        }
    }
}
