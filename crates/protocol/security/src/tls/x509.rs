//! The fields of an X.509 certificate that are shown or checked here: validity and subject. RFC 5280 clause 4.1
//!
//! The TLS library verifies certificates; nothing here decides whether one is trusted.

use core::fmt;

/// The fields that are read of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFields {
    /// The first second of its validity, Unix time.
    pub not_before_unix_s: i64,
    /// The last second of its validity, Unix time.
    pub not_after_unix_s: i64,
    /// The names of its subject: `CN=client-1, O=Example`. Empty if it has none of the usual kinds.
    pub subject: String,
}

const INTEGER: u8 = 0x02;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// The version of the certificate, `[0] EXPLICIT`.
const VERSION: u8 = 0xa0;

/// Attributes of a subject that are shown: the rest of `2.5.4.…`.
const ATTRIBUTES: [(&[u8], &str); 3] = [(&[0x55, 4, 3], "CN"), (&[0x55, 4, 10], "O"), (&[0x55, 4, 11], "OU")];

/// Longest subject that is kept, bytes.
const SUBJECT_BYTES_MAX: usize = 256;

/// Values in DER, one behind the other. X.690 clause 10
#[derive(Clone, Copy)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The tag and the contents of the next value.
    fn next(&mut self) -> Option<(u8, Der<'a>)> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut length = usize::from(first);
        if first >= 0x80 {
            let count = usize::from(first & 0x7f);
            if count == 0 || count > 3 {
                return None;
            }
            let (bytes, after) = rest.split_at_checked(count)?;
            length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            rest = after;
        }
        let (contents, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, Der(contents)))
    }

    /// The contents of the next value, which has this tag.
    fn take(&mut self, tag: u8) -> Option<Der<'a>> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, contents)| contents)
    }
}

impl CertificateFields {
    /// Reads a certificate in DER. `None` if it is malformed.
    #[must_use]
    pub fn read(der: &[u8]) -> Option<Self> {
        let mut certificate = Der(der).take(SEQUENCE)?.take(SEQUENCE)?;
        let mut next = certificate.next()?;
        if next.0 == VERSION {
            next = certificate.next()?;
        }
        // Serial number, signature algorithm, issuer.
        if next.0 != INTEGER {
            return None;
        }
        certificate.take(SEQUENCE)?;
        certificate.take(SEQUENCE)?;
        let mut validity = certificate.take(SEQUENCE)?;
        let (not_before_unix_s, not_after_unix_s) = (time(validity.next()?)?, time(validity.next()?)?);
        let subject = subject(certificate.take(SEQUENCE)?);
        Some(Self { not_before_unix_s, not_after_unix_s, subject })
    }
}

/// Reads a name: a sequence of sets of attributes.
fn subject(mut names: Der<'_>) -> String {
    let mut subject = String::new();
    while let Some((SET, mut attributes)) = names.next() {
        while let Some((SEQUENCE, mut attribute)) = attributes.next() {
            let (Some((OBJECT_IDENTIFIER, kind)), Some((_, value))) = (attribute.next(), attribute.next())
            else {
                continue;
            };
            let Some((_, name)) = ATTRIBUTES.iter().find(|(identifier, _)| *identifier == kind.0) else {
                continue;
            };
            let separator = if subject.is_empty() { "" } else { ", " };
            subject.push_str(&format!("{separator}{name}={}", String::from_utf8_lossy(value.0)));
        }
    }
    subject.truncate(subject.floor_char_boundary(SUBJECT_BYTES_MAX));
    subject
}

/// Reads `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`. RFC 5280 clause 4.1.2.5
fn time((tag, digits): (u8, Der<'_>)) -> Option<i64> {
    let digits = digits.0.strip_suffix(b"Z")?;
    let two = |at: usize| {
        let pair = digits.get(at..at.checked_add(2)?)?;
        pair.iter().all(u8::is_ascii_digit).then_some(())?;
        core::str::from_utf8(pair).ok()?.parse::<i64>().ok()
    };
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = two(0)?;
            (year.checked_add(if year >= 50 { 1900 } else { 2000 })?, 2)
        }
        (GENERALIZED_TIME, 14) => (two(0)?.checked_mul(100)?.checked_add(two(2)?)?, 4_usize),
        _ => return None,
    };
    let field = |index: usize| two(rest.checked_add(index.checked_mul(2)?)?);
    let (month, day, hour, minute, second) = (field(0)?, field(1)?, field(2)?, field(3)?, field(4)?);
    let is_valid = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    is_valid.then_some(())?;
    Some(unix_s(year, month, day, [hour, minute, second]))
}

/// Unix time of a date of the Gregorian calendar, s. The fields are in their ranges.
#[expect(clippy::arithmetic_side_effects, reason = "years have four digits")]
const fn unix_s(year: i64, month: i64, day: i64, [hour, minute, second]: [i64; 3]) -> i64 {
    // Years that begin in March end with the leap day.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 1
        - 719_468;
    ((days * 24 + hour) * 60 + minute) * 60 + second
}

/// A Unix time as a date: `2026-11-26 06:40:00 UTC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtcTime(pub i64);

impl fmt::Display for UtcTime {
    #[expect(clippy::arithmetic_side_effects, reason = "quotients and remainders of 64 bits")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0.div_euclid(86_400), self.0.rem_euclid(86_400));
        let days = days + 719_468;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let year = era * 400 + year + later;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A value in DER of less than 128 bytes.
    fn value(tag: u8, contents: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(contents.len()).expect("short")], contents].concat()
    }

    fn certificate(not_before: &[u8], not_after: &[u8]) -> Vec<u8> {
        let name = |identifier: &[u8], text: &[u8]| {
            value(SET, &value(SEQUENCE, &[value(OBJECT_IDENTIFIER, identifier), value(0x0c, text)].concat()))
        };
        let subject = [name(&[0x55, 4, 6], b"DE"), name(&[0x55, 4, 10], b"Ex"), name(&[0x55, 4, 3], b"c1")];
        let fields = [
            value(VERSION, &value(INTEGER, &[2])),
            value(INTEGER, &[1]),
            value(SEQUENCE, &[]),
            value(SEQUENCE, &[]),
            value(SEQUENCE, &[not_before, not_after].concat()),
            value(SEQUENCE, &subject.concat()),
        ];
        value(SEQUENCE, &value(SEQUENCE, &fields.concat()))
    }

    #[test]
    fn validity_and_subject_are_read_from_both_forms_of_time() {
        let der =
            certificate(&value(UTC_TIME, b"700101000000Z"), &value(GENERALIZED_TIME, b"20500301123456Z"));
        let fields = CertificateFields::read(&der).expect("a certificate");
        assert_eq!((fields.not_before_unix_s, fields.not_after_unix_s), (0, 2_529_750_896));
        assert_eq!(fields.subject, "O=Ex, CN=c1");
        assert_eq!(UtcTime(2_529_750_896).to_string(), "2050-03-01 12:34:56 UTC");
    }

    #[test]
    fn malformed_times_and_cut_certificates_are_none() {
        for time in
            [&b"7001010000Z"[..], b"701301000000Z", b"70010100000 Z", b"700101000000", b"7001010000+1Z"]
        {
            let time = value(UTC_TIME, time);
            assert_eq!(CertificateFields::read(&certificate(&time, &time)), None);
        }
        let whole = certificate(&value(UTC_TIME, b"491231235959Z"), &value(UTC_TIME, b"500101000000Z"));
        let fields = CertificateFields::read(&whole).expect("a certificate");
        assert_eq!((fields.not_before_unix_s, fields.not_after_unix_s), (2_524_607_999, -631_152_000));
        for length in 0..whole.len() {
            assert_eq!(CertificateFields::read(&whole[..length]), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = CertificateFields::read(&bytes);
        }

        #[test]
        fn a_time_that_is_shown_is_the_time_that_was_read(at in 0_i64..253_402_300_800) {
            let digits: String = UtcTime(at).to_string().chars().filter(char::is_ascii_digit).collect();
            let text = value(GENERALIZED_TIME, format!("{digits}Z").as_bytes());
            prop_assert_eq!(time(Der(&text).next().expect("a value")), Some(at));
        }
    }
}
