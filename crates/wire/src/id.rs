//! Identifiers that would be plain integers otherwise, and easily swapped.

use core::fmt;

/// Namespace id. wire §5.1
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nsid(u32);

impl Nsid {
    /// No namespace: commands that concern the controller.
    pub const NONE: Self = Self(0);
    /// Every namespace of the controller.
    pub const ALL: Self = Self(0xFFFF_FFFF);

    /// Takes the value as the wire has it; any is accepted.
    #[inline]
    #[must_use]
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// The value as the wire has it.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether it can name one namespace, which 0 and 0xFFFFFFFF cannot.
    #[inline]
    #[must_use]
    pub const fn is_one_namespace(self) -> bool {
        self.0 != Self::NONE.0 && self.0 != Self::ALL.0
    }
}

impl From<u32> for Nsid {
    #[inline]
    fn from(raw: u32) -> Self {
        Self(raw)
    }
}

impl fmt::Display for Nsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Queue id: 0 is the admin queue, 1 and up are I/O queues. wire §1
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qid(u16);

impl Qid {
    /// The admin queue.
    pub const ADMIN: Self = Self(0);

    /// Takes the value as the wire has it; any is accepted.
    #[inline]
    #[must_use]
    pub const fn new(raw: u16) -> Self {
        Self(raw)
    }

    /// The value as the wire has it.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether this is the admin queue.
    #[inline]
    #[must_use]
    pub const fn is_admin(self) -> bool {
        self.0 == Self::ADMIN.0
    }
}

impl From<u16> for Qid {
    #[inline]
    fn from(raw: u16) -> Self {
        Self(raw)
    }
}

impl fmt::Display for Qid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Controller id, unique within a subsystem. wire §6.2
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cntlid(u16);

impl Cntlid {
    /// In a Connect of the admin queue: make a controller.
    pub const DYNAMIC: Self = Self(0xFFFF);
    /// In a Connect of the admin queue: any static controller.
    pub const ANY_STATIC: Self = Self(0xFFFE);
    /// The highest id that a controller may have. wire §28.14
    pub const MAX: Self = Self(0xFFEF);

    /// Takes the value as the wire has it; any is accepted.
    #[inline]
    #[must_use]
    pub const fn new(raw: u16) -> Self {
        Self(raw)
    }

    /// The value as the wire has it.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl From<u16> for Cntlid {
    #[inline]
    fn from(raw: u16) -> Self {
        Self(raw)
    }
}

impl fmt::Display for Cntlid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

codes! {
    /// Command set identifier: the I/O command set of a namespace. wire §10
    pub struct Csi: u8 {
        NVM = 0, "NVM";
        KV = 1, "key value";
        ZNS = 2, "zoned namespace";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_all_ones_name_no_single_namespace() {
        assert!(!Nsid::NONE.is_one_namespace());
        assert!(!Nsid::ALL.is_one_namespace());
        assert!(Nsid::new(1).is_one_namespace());
        assert!(Nsid::new(0xFFFF_FFFE).is_one_namespace());
    }

    #[test]
    fn queue_zero_is_the_admin_queue() {
        assert!(Qid::ADMIN.is_admin());
        assert!(!Qid::new(1).is_admin());
    }

    /// wire §28.14
    #[test]
    fn ids_are_shown_as_the_numbers_that_they_come_from() {
        assert_eq!(Nsid::from(0xFFFF_FFFE).to_string(), "4294967294");
        assert_eq!(format!("{:>3}|{:<3}|", Qid::from(7), Qid::ADMIN), "  7|0  |");
        assert_eq!(Cntlid::from(0xFFEF).to_string(), "65519");
        assert_eq!(Cntlid::from(0xFFEF), Cntlid::MAX);
    }
}
