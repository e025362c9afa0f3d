//! Asynchronous events: their configuration, and the result of a completed request. wire §13

use crate::id::Nsid;
use crate::log::Lid;
use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;

tables! {
    /// Events a controller can send (Identify's oaes) and a host enables (feature 0x0B). wire §12, wire §13
    pub flags AsyncEvents: u32 {
        [7:0] SMART, "Critical warnings of the SMART log, a bit each.";
        [8] NAMESPACE_ATTRIBUTE, "Namespace attributes changed.";
        [9] FIRMWARE, "Firmware activation starting.";
        [10] TELEMETRY, "Telemetry log changed.";
        [11] ANA, "ANA state changed.";
        [31] DISCOVERY, "Discovery log changed.";
    }

    /// Type of an event. wire §13
    pub codes AsyncEventType: u8 {
        0 ERROR, "error";
        1 SMART, "SMART or health";
        2 NOTICE, "notice";
        6 COMMAND_SET, "I/O command set specific";
    }

    /// An event: dword 0 of a completed Asynchronous Event Request. wire §13
    pub bits AsyncEvent: u32 {
        [2:0] kind, with_kind: AsyncEventType, "Type.";
        [15:8] information, with_information: u8, "The type of an event.";
        [23:16] log, with_log: Lid, "Log page to read; reading it without RAE lets the event come again.";
    }
}

impl AsyncEvent {
    /// Persistent internal error: Linux resets the controller.
    pub const PERSISTENT_INTERNAL_ERROR: Self = Self::new(AsyncEventType::ERROR, 3, Lid::ERROR);
    /// Reliability degraded.
    pub const SMART_RELIABILITY: Self = Self::new(AsyncEventType::SMART, 0, Lid::SMART);
    /// Temperature outside its thresholds.
    pub const SMART_TEMPERATURE: Self = Self::new(AsyncEventType::SMART, 1, Lid::SMART);
    /// Spare below its threshold.
    pub const SMART_SPARE: Self = Self::new(AsyncEventType::SMART, 2, Lid::SMART);
    /// A namespace was added, removed or resized.
    pub const NAMESPACE_ATTRIBUTE: Self = Self::new(AsyncEventType::NOTICE, 0x00, Lid::CHANGED_NAMESPACES);
    /// Firmware activation starts.
    pub const FIRMWARE: Self = Self::new(AsyncEventType::NOTICE, 0x01, Lid::FIRMWARE_SLOTS);
    /// ANA state changed.
    pub const ANA_CHANGE: Self = Self::new(AsyncEventType::NOTICE, 0x03, Lid::ANA);
    /// Discovery log changed.
    pub const DISCOVERY_CHANGE: Self = Self::new(AsyncEventType::NOTICE, 0xF0, Lid::DISCOVERY);
    /// The reservation notification log has a page.
    pub const RESERVATION: Self = Self::new(AsyncEventType::COMMAND_SET, 0x00, Lid::RESERVATION_NOTIFICATION);
    /// A sanitize completed.
    pub const SANITIZE_COMPLETED: Self = Self::new(AsyncEventType::COMMAND_SET, 0x01, Lid::SANITIZE_STATUS);

    /// An event of this type and information whose details are in `log`.
    #[must_use]
    pub const fn new(kind: AsyncEventType, information: u8, log: Lid) -> Self {
        Self::from_bits(0).with_kind(kind).with_information(information).with_log(log)
    }
}

impl Sqe {
    /// An Asynchronous Event Request; it stays pending until there is an event.
    #[must_use]
    pub const fn async_event_request() -> Self {
        Self::new(AdminOpcode::ASYNC_EVENT_REQUEST.raw(), Nsid::NONE)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    /// wire §13: type, information, log page.
    #[test]
    fn events_have_the_bits_of_the_table() {
        for (event, bits) in [
            (AsyncEvent::PERSISTENT_INTERNAL_ERROR, 0x0001_0300),
            (AsyncEvent::SMART_RELIABILITY, 0x0002_0001),
            (AsyncEvent::SMART_TEMPERATURE, 0x0002_0101),
            (AsyncEvent::SMART_SPARE, 0x0002_0201),
            (AsyncEvent::NAMESPACE_ATTRIBUTE, 0x0004_0002),
            (AsyncEvent::FIRMWARE, 0x0003_0102),
            (AsyncEvent::ANA_CHANGE, 0x000C_0302),
            (AsyncEvent::DISCOVERY_CHANGE, 0x0070_F002),
            (AsyncEvent::RESERVATION, 0x0080_0006),
            (AsyncEvent::SANITIZE_COMPLETED, 0x0081_0106),
        ] {
            assert_eq!(event.bits(), bits, "{event:?}");
        }
        let made = AsyncEvent::new(AsyncEventType::NOTICE, 0x03, Lid::ANA);
        assert_eq!((made, made.information()), (AsyncEvent::ANA_CHANGE, 0x03));
    }

    /// wire §12
    #[test]
    fn event_configuration_has_the_bits_of_the_table() {
        let linux = AsyncEvents::NAMESPACE_ATTRIBUTE
            | AsyncEvents::FIRMWARE
            | AsyncEvents::ANA
            | AsyncEvents::DISCOVERY;
        assert_eq!(linux.bits(), 0x8000_0B00);
        assert_eq!((AsyncEvents::SMART | AsyncEvents::TELEMETRY).bits(), 0x0000_04FF);
        let unknown = AsyncEvents::from_bits_retain(0x0000_1100);
        assert_eq!(unknown.reserved(), 0x1000);
        assert_eq!(format!("{unknown:?}"), "AsyncEvents(NAMESPACE_ATTRIBUTE | 0x1000)");
    }

    #[test]
    fn a_request_is_an_opcode_and_nothing_else() {
        let mut expected = [0; 64];
        (expected[0], expected[1], expected[39]) = (0x0C, 0x40, 0x5A);
        assert_eq!(Sqe::async_event_request().as_bytes(), expected);
    }
}
