//! The identities that a ClientHello offers, read before the TLS library sees it. RFC 8446 sections 4.1.2, 4.2.11, 5.1
//!
//! A target has a key for each host, and derives it from the names in the identity. The library wants to have it before
//! the handshake begins. Nothing else of the message is judged here.

/// Longest ClientHello with its records, bytes. Those of OpenSSL and GnuTLS have 300 to 1,500.
pub(super) const HELLO_BYTES_MAX: usize = 8192;

/// Identities of one ClientHello that are examined.
const IDENTITY_COUNT_MAX: usize = 8;

pub(super) const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const PRE_SHARED_KEY: u16 = 41;

/// The result of reading the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// The message is not complete.
    Incomplete,
    /// Complete: the offered PSK identities, at most [`IDENTITY_COUNT_MAX`] of them.
    Offers(Vec<Vec<u8>>),
    /// It offers no PSK.
    NoPsk,
    /// This is no ClientHello.
    Malformed,
}

/// Reads big-endian lengths and the bytes that they count.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*first))
    }

    fn counted_u8(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    fn counted_u16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }
}

/// Reads the ClientHello at the begin of a stream.
pub(super) fn read(stream: &[u8]) -> Hello {
    let mut records = Reader(stream);
    let mut message = Vec::new();
    loop {
        // An error is reported as soon as its bytes are there.
        match records.0 {
            [] => return Hello::Incomplete,
            [HANDSHAKE_RECORD] | [HANDSHAKE_RECORD, 3] => return Hello::Incomplete,
            [HANDSHAKE_RECORD, 3, ..] => {}
            _ => return Hello::Malformed,
        }
        let _ = records.take(3);
        let Some(length) = records.u16() else { return Hello::Incomplete };
        if length == 0 || usize::from(length) > HELLO_BYTES_MAX {
            return Hello::Malformed;
        }
        let fragment = records.0.get(..usize::from(length).min(records.0.len())).unwrap_or_default();
        message.extend_from_slice(fragment);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Hello::Malformed;
        }
        if let Some([_, high, middle, low, body @ ..]) = message.get(..) {
            let wanted = u32::from_be_bytes([0, *high, *middle, *low]);
            let Ok(wanted) = usize::try_from(wanted) else { return Hello::Malformed };
            if wanted > HELLO_BYTES_MAX {
                return Hello::Malformed;
            }
            if let Some(body) = body.get(..wanted) {
                return offers(body).unwrap_or(Hello::Malformed);
            }
        }
        if records.take(length.into()).is_none() {
            return Hello::Incomplete;
        }
    }
}

/// Reads the body of a ClientHello; `None` if a length in it is wrong.
fn offers(body: &[u8]) -> Option<Hello> {
    let mut body = Reader(body);
    // Version and random.
    body.take(34)?;
    let _session = body.counted_u8()?;
    let _suites = body.counted_u16()?;
    let _compressions = body.counted_u8()?;
    let mut extensions = Reader(body.counted_u16()?);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let mut content = Reader(extensions.counted_u16()?);
        if kind != PRE_SHARED_KEY {
            continue;
        }
        let mut list = Reader(content.counted_u16()?);
        let mut identities = Vec::new();
        while !list.0.is_empty() {
            let identity = list.counted_u16()?;
            let _age = list.take(4)?;
            if identities.len() < IDENTITY_COUNT_MAX {
                identities.push(identity.to_vec());
            }
        }
        return Some(if identities.is_empty() { Hello::Malformed } else { Hello::Offers(identities) });
    }
    Some(Hello::NoPsk)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(length_bytes: usize, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).expect("short").to_be_bytes();
        [&length[4 - length_bytes..], content].concat()
    }

    /// A ClientHello with these identities, cut into records of `record_bytes`.
    pub(in super::super) fn hello(identities: &[&[u8]], record_bytes: usize) -> Vec<u8> {
        let list: Vec<u8> =
            identities.iter().flat_map(|identity| [&counted(2, identity)[..], &[0; 4]].concat()).collect();
        let binders = counted(2, &counted(1, &[7; 32]));
        let psk = [&counted(2, &list)[..], &binders].concat();
        let extensions = [
            [&43_u16.to_be_bytes()[..], &counted(2, &[2, 3, 4])].concat(),
            [&PRE_SHARED_KEY.to_be_bytes()[..], &counted(2, &psk)].concat(),
        ];
        let extensions = if identities.is_empty() { extensions[0].clone() } else { extensions.concat() };
        let body = [
            &[3, 3][..],
            &[9; 32],
            &counted(1, &[1; 32]),
            &counted(2, &[0x13, 1]),
            &counted(1, &[0]),
            &counted(2, &extensions),
        ]
        .concat();
        let message = [&[CLIENT_HELLO][..], &counted(3, &body)].concat();
        message
            .chunks(record_bytes)
            .flat_map(|chunk| [&[HANDSHAKE_RECORD, 3, 1][..], &counted(2, chunk)].concat())
            .collect()
    }

    #[test]
    fn identities_are_found_whatever_the_records_are() {
        let offered: [&[u8]; 2] = [b"NVMe1R01 a b c", b"NVMe0R01 a b"];
        for record_bytes in [1, 2, 5, 64, 4096] {
            let stream = hello(&offered, record_bytes);
            for end in 0..stream.len() {
                assert_eq!(read(&stream[..end]), Hello::Incomplete, "{end} of {}", stream.len());
            }
            let expected = Hello::Offers(offered.map(<[u8]>::to_vec).to_vec());
            assert_eq!(read(&stream), expected);
            assert_eq!(read(&[&stream[..], b"more"].concat()), expected);
        }
    }

    #[test]
    fn a_hello_without_psk_and_other_protocols_are_told_apart() {
        assert_eq!(read(&hello(&[], 4096)), Hello::NoPsk);
        // ICReq, HTTP, an alert, a record of an unknown version, a ServerHello, an empty record.
        for stream in [
            &[0, 0, 128, 0, 128][..],
            b"GET / HTTP/1.1",
            &[21, 3, 3, 0, 2, 2, 40],
            &[22, 2, 0],
            &[22, 3, 3, 0, 4, 2],
            &[22, 3, 3, 0, 0],
        ] {
            assert_eq!(read(stream), Hello::Malformed, "{stream:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in any::<proptest::sample::Index>()) {
            read(&bytes);
            let mut damaged = hello(&[b"NVMe1R01 a b c"], 100);
            let at = at.index(damaged.len());
            damaged[at] ^= bytes.first().copied().unwrap_or(1);
            read(&damaged);
        }
    }
}
