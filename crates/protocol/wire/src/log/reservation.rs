//! Reservation notification log (LID 80): reading pops one page. wire §11

use crate::id::Nsid;
use crate::{U32, U64};

tables! {
    /// The type of a reservation notification. wire §11
    pub codes ReservationEvent: u8 {
        0 EMPTY, "empty log page";
        1 REGISTRATION_PREEMPTED, "registration preempted";
        2 RELEASED, "reservation released";
        3 PREEMPTED, "reservation preempted";
    }

    /// A page of the reservation notification log. wire §11
    pub structure ReservationNotification: 64 {
        0 pub count: U64, "Pages so far.";
        8 pub event: ReservationEvent, "The type of the notification.";
        9 pub left: u8, "Pages left after this one.";
        10 reserved_10: [u8; 2];
        12 nsid: U32 as nsid: Nsid, "Namespace it happened to.";
        16 reserved_16: [u8; 48];
    }
}

impl ReservationNotification {
    /// A page about a namespace.
    #[must_use]
    pub const fn new(count: u64, event: ReservationEvent, left: u8, nsid: Nsid) -> Self {
        Self {
            count: U64::new(count),
            event,
            left,
            reserved_10: [0; 2],
            nsid: U32::new(nsid.get()),
            reserved_16: [0; 48],
        }
    }
}

default_zeroed! { ReservationNotification }

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    /// wire §11
    #[test]
    fn a_page_says_what_happened_where() {
        let page = ReservationNotification::new(2, ReservationEvent::RELEASED, 1, Nsid::new(0x0102));
        assert_eq!(page.as_bytes()[..16], [2, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0x02, 0x01, 0, 0]);
        assert_eq!(ReservationNotification::default().event, ReservationEvent::EMPTY);
    }

    proptest! {
        #[test]
        fn a_page_gives_back_what_it_was_made_of(count: u64, event: u8, left: u8, nsid: u32) {
            let happened = ReservationEvent::from_raw(event);
            let page = ReservationNotification::new(count, happened, left, Nsid::new(nsid));
            let page = ReservationNotification::read_from_bytes(page.as_bytes()).expect("64 bytes");
            prop_assert_eq!((page.count.get(), page.event.raw()), (count, event));
            prop_assert_eq!((page.left, page.nsid().get()), (left, nsid));
        }
    }
}
