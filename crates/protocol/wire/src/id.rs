//! Identifiers that would be plain integers otherwise, and easily swapped.

tables! {
    /// Namespace id. wire §5.1
    pub id Nsid: u32 {
        0 NONE, "No namespace: commands that concern the controller.";
        0xFFFF_FFFF ALL, "Every namespace of the controller.";
    }

    /// Queue id: 0 is the admin queue, 1 and up are I/O queues. wire §1
    pub id Qid: u16 {
        0 ADMIN, "The admin queue.";
    }

    /// Controller id, unique within a subsystem. wire §6.2
    pub id Cntlid: u16 {
        0xFFFF DYNAMIC, "In a Connect of the admin queue: make a controller.";
        0xFFFE ANY_STATIC, "In a Connect of the admin queue: any static controller.";
        0xFFEF MAX, "The highest id that a controller may have. wire §28.14";
    }

    /// Command set identifier: the I/O command set of a namespace. wire §10
    pub codes Csi: u8 {
        0 NVM, "NVM";
        1 KV, "key value";
        2 ZNS, "zoned namespace";
    }
}

impl Nsid {
    /// Whether it can name one namespace, which 0 and 0xFFFFFFFF cannot.
    #[inline]
    #[must_use]
    pub const fn is_one_namespace(self) -> bool {
        self.0 != Self::NONE.0 && self.0 != Self::ALL.0
    }
}

impl Qid {
    /// Whether this is the admin queue.
    #[inline]
    #[must_use]
    pub const fn is_admin(self) -> bool {
        self.0 == Self::ADMIN.0
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
