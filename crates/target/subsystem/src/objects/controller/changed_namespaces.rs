//! Namespaces that have changed since a host last read their list. wire §11
//!
//! A host may read the list in parts. Its read from offset 0 takes the list as it is; the later parts are of that list,
//! and changes in the meantime are in the next one.

use std::collections::BTreeSet;

use wire::id::Nsid;
use wire::log::namespaces::{CHANGED_NAMESPACES_BYTES, write_changed_namespaces};

/// The changed namespaces of one controller.
#[derive(Debug, Default)]
pub struct ChangedNamespaces {
    /// In the list that the host reads, or has read without clearing it.
    listed: BTreeSet<Nsid>,
    /// Changed since that list was taken.
    later: BTreeSet<Nsid>,
}

impl ChangedNamespaces {
    /// These were added, removed or changed.
    pub fn extend(&mut self, nsids: impl IntoIterator<Item = Nsid>) {
        self.later.extend(nsids);
    }

    /// The page for a read from `offset`.
    pub(crate) fn page(&mut self, offset: u64) -> [u8; CHANGED_NAMESPACES_BYTES] {
        if offset == 0 {
            self.listed.append(&mut self.later);
        }
        write_changed_namespaces(self.listed.iter().copied())
    }

    /// The page was read up to `end` without RAE: the list is cleared if that is its end or beyond.
    pub(crate) fn on_read(&mut self, end: u64) {
        // A page of more than it has room for says so in its first entry.
        let entries = if self.listed.len() > CHANGED_NAMESPACES_BYTES / 4 { 1 } else { self.listed.len() };
        if end >= (entries as u64).saturating_mul(4) {
            self.listed.clear();
        }
    }

    /// Forgets all, as a reset does.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(changed: &mut ChangedNamespaces, offset: u64) -> Vec<u32> {
        let page = changed.page(offset);
        let entries = page.chunks_exact(4).map(|entry| u32::from_le_bytes(entry.try_into().unwrap()));
        entries.take_while(|nsid| *nsid != 0).collect()
    }

    #[test]
    fn a_change_between_two_parts_is_in_the_next_list() {
        let mut changed = ChangedNamespaces::default();
        changed.extend([3, 5].map(Nsid::new));
        assert_eq!(listed(&mut changed, 0), [3, 5]);
        changed.on_read(4);
        changed.extend([1, 5].map(Nsid::new));
        assert_eq!(listed(&mut changed, 4), [3, 5], "the list that the first part is of");
        changed.on_read(8);
        assert_eq!(listed(&mut changed, 8), [0; 0], "parts behind the end");
        changed.on_read(64);
        assert_eq!(listed(&mut changed, 0), [1, 5]);
        changed.clear();
        assert_eq!(listed(&mut changed, 0), [0; 0]);
    }

    #[test]
    fn a_list_that_is_too_long_is_read_with_its_first_entry() {
        let mut changed = ChangedNamespaces::default();
        changed.extend((1..=1024).map(Nsid::new));
        assert_eq!(listed(&mut changed, 0).len(), 1024);
        changed.on_read(4092);
        changed.extend([Nsid::new(1025)]);
        assert_eq!(listed(&mut changed, 0), [u32::MAX]);
        changed.on_read(4);
        assert_eq!(listed(&mut changed, 0), [0; 0]);
    }
}
