//! Lines of the audit log: JSON of printable ASCII only. Text of peers can break neither a line nor a terminal.

use std::fmt::Display;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// A line that is being written: the members of a JSON object.
pub(super) struct Line<'a> {
    text: &'a mut Vec<u8>,
    has_member: bool,
}

/// Appends a line for an event, with its fields.
pub(super) fn append(text: &mut Vec<u8>, time: SystemTime, event: &str, fields: impl FnOnce(&mut Line<'_>)) {
    object(text, |line| {
        line.text("time", &timestamp(time));
        line.text("event", event);
        fields(line);
    });
    text.push(b'\n');
}

fn object(text: &mut Vec<u8>, fields: impl FnOnce(&mut Line<'_>)) {
    text.push(b'{');
    fields(&mut Line { text, has_member: false });
    text.push(b'}');
}

impl Line<'_> {
    fn name(&mut self, name: &str) {
        if std::mem::replace(&mut self.has_member, true) {
            self.text.push(b',');
        }
        string(self.text, name);
        self.text.push(b':');
    }

    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        string(self.text, value);
    }

    /// A value in its `Display` form.
    pub(super) fn shown(&mut self, name: &str, value: impl Display) {
        self.text(name, &value.to_string());
    }

    /// A value in its `Display` form; no member if it is absent.
    pub(super) fn optional(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.shown(name, value);
        }
    }

    pub(super) fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        self.text.extend_from_slice(value.to_string().as_bytes());
    }

    pub(super) fn flag(&mut self, name: &str, value: bool) {
        self.name(name);
        self.text.extend_from_slice(if value { b"true" } else { b"false" });
    }

    pub(super) fn null(&mut self, name: &str) {
        self.name(name);
        self.text.extend_from_slice(b"null");
    }

    pub(super) fn object(&mut self, name: &str, fields: impl FnOnce(&mut Line<'_>)) {
        self.name(name);
        object(self.text, fields);
    }
}

/// Appends a string of printable ASCII: everything else becomes `\uXXXX`.
fn string(text: &mut Vec<u8>, value: &str) {
    text.push(b'"');
    let mut units = [0; 2];
    for char in value.chars() {
        match char {
            '"' | '\\' => text.extend_from_slice(&[b'\\', char as u8]),
            ' '..='~' => text.push(char as u8),
            _ => {
                for unit in char.encode_utf16(&mut units) {
                    // Writing to memory cannot fail.
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
        }
    }
    text.push(b'"');
}

/// Coordinated Universal Time in the form of RFC 3339, with microseconds.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, us) = (since.as_secs(), since.subsec_micros());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z")
}

/// Year, month and day of the Gregorian calendar, this many days after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Years that begin in March end with the leap day. An era has 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::{Event, OfQueue};
    use super::*;

    fn line_of(host: &str) -> String {
        let queue = OfQueue {
            peer: Some(([192, 0, 2, 1], 4000).into()),
            host: host.into(),
            host_id: "11111111-2222-3333-4444-555555555555".into(),
            subsystem: "nqn.2026-01.io.nvlane:disks".into(),
            controller: 1,
            queue: 0,
        };
        let mut text = Vec::new();
        let event =
            Event::Disconnected { queue, closed_by: "host", reason: "host disconnected", detail: None };
        let time = UNIX_EPOCH + Duration::from_micros(1_000_001);
        append(&mut text, time, event.name(), |line| event.write(line));
        String::from_utf8(text).expect("ASCII")
    }

    #[test]
    fn a_line_has_its_time_its_event_and_fields() {
        assert_eq!(
            line_of("h"),
            "{\"time\":\"1970-01-01T00:00:01.000001Z\",\"event\":\"disconnected\",\"peer\":\"192.0.2.1:4000\",\
             \"host\":\"h\",\"host_id\":\"11111111-2222-3333-4444-555555555555\",\
             \"subsystem\":\"nqn.2026-01.io.nvlane:disks\",\"controller\":1,\"queue\":0,\
             \"closed_by\":\"host\",\"reason\":\"host disconnected\"}\n"
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (789, (1972, 2, 29)),
            (10_956, (1999, 12, 31)),
            (11_016, (2000, 2, 29)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
            (20_783, (2026, 11, 26)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }

    proptest! {
        /// Any text is on one line of printable ASCII, and reads back as it was.
        #[test]
        fn any_text_is_one_line_and_reads_back(host in any::<String>()) {
            let line = line_of(&host);
            let inside = line.strip_suffix('\n').expect("a line");
            prop_assert!(inside.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{inside}");
            let value: serde_json::Value = serde_json::from_str(inside).expect("JSON");
            prop_assert_eq!(value["host"].as_str(), Some(host.as_str()));
        }
    }
}
