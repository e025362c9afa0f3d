//! Changed namespaces log (LID 04). wire §11

use crate::id::Nsid;
/// Bytes of the page. nvmet refuses a read of any other length.
pub const CHANGED_NAMESPACES_BYTES: usize = 4096;

/// The content of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedNamespaces<I> {
    /// These, in ascending order.
    These(I),
    /// More than the page has room for: any may have changed.
    Any,
}

/// Writes a page. `nsids` ascends; more than 1024 of them are written as "any".
#[must_use]
pub fn write_changed_namespaces(nsids: impl IntoIterator<Item = Nsid>) -> [u8; CHANGED_NAMESPACES_BYTES] {
    let mut page = [0; CHANGED_NAMESPACES_BYTES];
    let mut nsids = nsids.into_iter();
    let (slots, _) = page.as_chunks_mut::<4>();
    for (slot, nsid) in slots.iter_mut().zip(&mut nsids) {
        *slot = nsid.get().to_le_bytes();
    }
    if nsids.next().is_some() {
        page.fill(0);
        page[..4].copy_from_slice(&Nsid::ALL.get().to_le_bytes());
    }
    page
}

/// Reads a page, in part or whole.
pub fn read_changed_namespaces(page: &[u8]) -> ChangedNamespaces<impl Iterator<Item = Nsid>> {
    let (slots, _) = page.as_chunks::<4>();
    let nsids = slots.iter().map(|slot| Nsid::new(u32::from_le_bytes(*slot)));
    let mut nsids = nsids.take_while(|nsid| *nsid != Nsid::NONE).peekable();
    if nsids.peek() == Some(&Nsid::ALL) { ChangedNamespaces::Any } else { ChangedNamespaces::These(nsids) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn collected(page: &[u8]) -> ChangedNamespaces<Vec<Nsid>> {
        match read_changed_namespaces(page) {
            ChangedNamespaces::These(nsids) => ChangedNamespaces::These(nsids.collect()),
            ChangedNamespaces::Any => ChangedNamespaces::Any,
        }
    }

    #[test]
    fn a_page_lists_ids_and_ends_with_zero() {
        let page = write_changed_namespaces([1, 0x0102].map(Nsid::new));
        assert_eq!(page[..12], [1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(collected(&page), ChangedNamespaces::These([1, 0x0102].map(Nsid::new).to_vec()));
    }

    #[test]
    fn more_than_1024_ids_mean_any() {
        let full = write_changed_namespaces((1..=1024).map(Nsid::new));
        assert_eq!(collected(&full), ChangedNamespaces::These((1..=1024).map(Nsid::new).collect()));
        let over = write_changed_namespaces((1..=1025).map(Nsid::new));
        assert_eq!(over[..8], [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]);
        assert_eq!(collected(&over), ChangedNamespaces::Any);
    }

    proptest! {
        #[test]
        fn any_page_is_read_within_its_bounds(page in prop::collection::vec(any::<u8>(), 0..100)) {
            if let ChangedNamespaces::These(nsids) = read_changed_namespaces(&page) {
                prop_assert!(nsids.count() <= page.len() / 4);
            }
        }

        #[test]
        fn a_page_reads_back(ids in prop::collection::btree_set(1u32..0xFFFF_FFFF, 0..50)) {
            let ids: Vec<_> = ids.into_iter().map(Nsid::new).collect();
            let page = write_changed_namespaces(ids.iter().copied());
            prop_assert_eq!(collected(&page), ChangedNamespaces::These(ids));
        }
    }
}
