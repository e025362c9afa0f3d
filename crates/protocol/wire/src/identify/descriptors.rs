//! Namespace identification descriptors (CNS 03). wire §10.3

use crate::id::Csi;
use crate::uuid::Uuid;

const HEADER_BYTES: usize = 4;

tables! {
    /// Kind of a namespace identifier. wire §10.3
    pub codes Nidt: u8 {
        1 EUI64, "EUI64";
        2 NGUID, "NGUID";
        3 UUID, "UUID";
        4 CSI, "command set identifier";
    }
}

/// One identifier of a namespace. wire §10.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDescriptor<'a> {
    /// 64-bit identifier, big-endian.
    Eui64([u8; 8]),
    /// 128-bit identifier, big-endian.
    Nguid([u8; 16]),
    /// UUID; every namespace should have one.
    Uuid(Uuid),
    /// Command set; mandatory where hosts choose by CSI.
    Csi(Csi),
    /// A kind without a meaning here.
    Other {
        /// The kind.
        kind: Nidt,
        /// The identifier.
        identifier: &'a [u8],
    },
}

/// A descriptor that cannot be read; nor can those that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// It runs past the end of the list.
    #[error("descriptor at byte {offset} runs past the end of the list")]
    Truncated {
        /// Where it begins.
        offset: usize,
    },
    /// Its length is not that of its kind.
    #[error("{kind} descriptor at byte {offset} has {length} bytes")]
    Length {
        /// Where it begins.
        offset: usize,
        /// Its kind.
        kind: Nidt,
        /// Its length.
        length: u8,
    },
}

/// Writes a list of descriptors into a buffer and zeroes the rest, which ends the list.
///
/// `None` if they do not fit, or if an [`NamespaceDescriptor::Other`] is longer than 255 bytes or of kind 0.
/// On success the bytes the descriptors take.
#[must_use]
pub fn write_namespace_descriptors(
    buffer: &mut [u8],
    descriptors: &[NamespaceDescriptor<'_>],
) -> Option<usize> {
    let mut at = 0;
    for descriptor in descriptors {
        let csi;
        let (kind, identifier): (Nidt, &[u8]) = match descriptor {
            NamespaceDescriptor::Eui64(eui64) => (Nidt::EUI64, eui64),
            NamespaceDescriptor::Nguid(nguid) => (Nidt::NGUID, nguid),
            NamespaceDescriptor::Uuid(uuid) => (Nidt::UUID, zerocopy::IntoBytes::as_bytes(uuid)),
            NamespaceDescriptor::Csi(set) => {
                csi = [set.raw()];
                (Nidt::CSI, &csi)
            }
            NamespaceDescriptor::Other { kind, identifier } => (*kind, identifier),
        };
        let length = u8::try_from(identifier.len()).ok()?;
        let slot = buffer.get_mut(at..)?.get_mut(..HEADER_BYTES.checked_add(identifier.len())?)?;
        if kind.raw() == 0 {
            return None;
        }
        let used = slot.len();
        let (head, body) = slot.split_first_chunk_mut::<HEADER_BYTES>()?;
        *head = [kind.raw(), length, 0, 0];
        body.copy_from_slice(identifier);
        at = at.checked_add(used)?;
    }
    buffer.get_mut(at..)?.fill(0);
    Some(at)
}

/// Reads a list of descriptors up to its end or the buffer's. After an error it ends.
#[derive(Clone, Debug)]
pub struct NamespaceDescriptors<'a> {
    list: &'a [u8],
    offset: usize,
}

impl<'a> NamespaceDescriptors<'a> {
    /// Of what an Identify returned, in part or whole.
    #[must_use]
    pub const fn new(list: &'a [u8]) -> Self {
        Self { list, offset: 0 }
    }

    fn fail(&mut self, error: DescriptorError) -> Option<Result<NamespaceDescriptor<'a>, DescriptorError>> {
        self.offset = self.list.len();
        Some(Err(error))
    }
}

impl<'a> Iterator for NamespaceDescriptors<'a> {
    type Item = Result<NamespaceDescriptor<'a>, DescriptorError>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        let rest = self.list.get(offset..)?;
        let kind = Nidt::from_raw(*rest.first()?);
        if kind.raw() == 0 {
            self.offset = self.list.len();
            return None;
        }
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else {
            return self.fail(DescriptorError::Truncated { offset });
        };
        let length = header[1];
        let Some(identifier) = rest.get(..usize::from(length)) else {
            return self.fail(DescriptorError::Truncated { offset });
        };
        let descriptor = match kind {
            Nidt::EUI64 => identifier.try_into().ok().map(NamespaceDescriptor::Eui64),
            Nidt::NGUID => identifier.try_into().ok().map(NamespaceDescriptor::Nguid),
            Nidt::UUID => {
                identifier.try_into().ok().map(|bytes| NamespaceDescriptor::Uuid(Uuid::from_bytes(bytes)))
            }
            Nidt::CSI => match identifier {
                [csi] => Some(NamespaceDescriptor::Csi(Csi::from_raw(*csi))),
                _ => None,
            },
            _ => Some(NamespaceDescriptor::Other { kind, identifier }),
        };
        let Some(descriptor) = descriptor else {
            return self.fail(DescriptorError::Length { offset, kind, length });
        };
        self.offset = offset.saturating_add(HEADER_BYTES).saturating_add(identifier.len());
        Some(Ok(descriptor))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// wire §10.3
    #[test]
    fn a_list_has_the_bytes_of_the_reference() {
        let mut buffer = [0xAA; 32];
        let descriptors =
            [NamespaceDescriptor::Eui64([1, 2, 3, 4, 5, 6, 7, 8]), NamespaceDescriptor::Csi(Csi::KV)];
        assert_eq!(write_namespace_descriptors(&mut buffer, &descriptors), Some(17));
        assert_eq!(buffer[..12], [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(buffer[12..], [4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let read: Vec<_> = NamespaceDescriptors::new(&buffer).collect();
        assert_eq!(read, descriptors.map(Ok));
    }

    #[test]
    fn a_list_that_does_not_fit_is_refused() {
        let uuid = NamespaceDescriptor::Uuid(Uuid::from_bytes([9; 16]));
        assert_eq!(write_namespace_descriptors(&mut [0; 19], &[uuid]), None);
        assert_eq!(write_namespace_descriptors(&mut [0; 20], &[uuid]), Some(20));
        assert_eq!(write_namespace_descriptors(&mut [0; 20], &[]), Some(0));
        let long = NamespaceDescriptor::Other { kind: Nidt::from_raw(9), identifier: &[0; 256] };
        assert_eq!(write_namespace_descriptors(&mut [0; 512], &[long]), None);
        let ended = NamespaceDescriptor::Other { kind: Nidt::from_raw(0), identifier: &[] };
        assert_eq!(write_namespace_descriptors(&mut [0; 512], &[ended]), None);
    }

    #[test]
    fn a_full_buffer_needs_no_ending() {
        let mut buffer = [0; 20];
        let nguid = NamespaceDescriptor::Nguid([7; 16]);
        assert_eq!(write_namespace_descriptors(&mut buffer, &[nguid]), Some(20));
        assert_eq!(NamespaceDescriptors::new(&buffer).collect::<Vec<_>>(), [Ok(nguid)]);
    }

    #[test]
    fn a_malformed_descriptor_ends_the_list() {
        let read = |list: &[u8]| -> Vec<String> {
            NamespaceDescriptors::new(list)
                .map(|descriptor| match descriptor {
                    Ok(descriptor) => format!("{descriptor:?}"),
                    Err(error) => error.to_string(),
                })
                .collect()
        };
        insta::assert_snapshot!(
            [
                read(&[4, 1, 0, 0, 0, 3, 16, 0, 0, 1, 2]),
                read(&[4, 1, 0, 0, 1, 3]),
                read(&[1, 4, 0, 0, 1, 2, 3, 4, 4, 1, 0, 0, 0]),
                read(&[4, 0, 0, 0]),
                read(&[9, 2, 0, 0, 7, 8, 0, 1]),
                read(&[]),
            ]
            .concat()
            .join("\n"),
            @r"
        Csi(Csi(0x00 NVM))
        descriptor at byte 5 runs past the end of the list
        Csi(Csi(0x01 key value))
        descriptor at byte 5 runs past the end of the list
        EUI64 descriptor at byte 0 has 4 bytes
        command set identifier descriptor at byte 0 has 0 bytes
        Other { kind: Nidt(0x09 unknown), identifier: [7, 8] }
        "
        );
    }

    proptest! {
        #[test]
        fn any_list_is_read_within_its_bounds(list in prop::collection::vec(any::<u8>(), 0..200)) {
            let count = NamespaceDescriptors::new(&list).count();
            prop_assert!(count <= list.len());
        }

        #[test]
        fn written_descriptors_read_back(
            eui64: [u8; 8], nguid: [u8; 16], uuid: [u8; 16], csi: u8, kind in 5u8.., length in 0usize..40,
        ) {
            let identifier = vec![csi; length];
            let descriptors = [
                NamespaceDescriptor::Eui64(eui64),
                NamespaceDescriptor::Nguid(nguid),
                NamespaceDescriptor::Uuid(Uuid::from_bytes(uuid)),
                NamespaceDescriptor::Csi(Csi::from_raw(csi)),
                NamespaceDescriptor::Other { kind: Nidt::from_raw(kind), identifier: &identifier },
            ];
            let mut buffer = [0xAA; 4096];
            let used = write_namespace_descriptors(&mut buffer, &descriptors);
            prop_assert_eq!(used, Some(5 * 4 + 8 + 16 + 16 + 1 + length));
            let read: Vec<_> = NamespaceDescriptors::new(&buffer).collect();
            prop_assert_eq!(read, descriptors.map(Ok));
        }
    }
}
