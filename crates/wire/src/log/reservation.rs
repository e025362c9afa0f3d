//! Reservation notification log (LID 80): reading pops one page. wire §11

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::id::Nsid;
use crate::{U32, U64};

codes! {
    /// The type of a reservation notification. wire §11
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct ReservationEvent: u8 {
        EMPTY = 0, "empty log page";
        REGISTRATION_PREEMPTED = 1, "registration preempted";
        RELEASED = 2, "reservation released";
        PREEMPTED = 3, "reservation preempted";
    }
}

/// A page of the reservation notification log. wire §11
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReservationNotification {
    /// Pages so far.
    pub count: U64,
    /// The type of the notification.
    pub event: ReservationEvent,
    /// Pages left after this one.
    pub left: u8,
    reserved_10: [u8; 2],
    nsid: U32,
    reserved_16: [u8; 48],
}
const _: () = assert!(size_of::<ReservationNotification>() == 64);

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

    /// Namespace it happened to.
    #[must_use]
    pub const fn nsid(&self) -> Nsid {
        Nsid::new(self.nsid.get())
    }
}

default_zeroed! { ReservationNotification }

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// wire §11
    #[test]
    fn fields_lie_where_the_reference_says() {
        assert_offsets!(ReservationNotification: count @ 0, event @ 8, left @ 9, nsid @ 12);
    }

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
