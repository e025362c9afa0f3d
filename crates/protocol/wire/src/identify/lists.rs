//! Lists of ids: active namespaces (CNS 02, 07) and controllers (CNS 12, 13). wire §10

use crate::id::{Cntlid, Nsid};

/// Namespace ids in a list of 4096 bytes.
pub const NSID_LIST_ENTRIES: usize = 1024;
/// Controller ids in a list of 4096 bytes.
pub const CONTROLLER_LIST_ENTRIES: usize = 2047;

/// Writes the ids that are greater than `after`, as many as the buffer has room for, and zeroes the rest.
///
/// `nsids` ascends. Gives the number written.
pub fn write_nsid_list(buffer: &mut [u8], after: Nsid, nsids: impl IntoIterator<Item = Nsid>) -> usize {
    let mut count = 0;
    let mut nsids = nsids.into_iter().filter(|nsid| *nsid > after);
    let (slots, tail) = buffer.as_chunks_mut::<4>();
    tail.fill(0);
    for slot in slots {
        let nsid = nsids.next();
        count = usize::saturating_add(count, nsid.is_some().into());
        *slot = nsid.unwrap_or(Nsid::NONE).get().to_le_bytes();
    }
    count
}

/// Reads a list of namespace ids up to the first zero or the end of the buffer.
pub fn read_nsid_list(list: &[u8]) -> impl Iterator<Item = Nsid> {
    let (slots, _) = list.as_chunks::<4>();
    slots.iter().map(|slot| Nsid::new(u32::from_le_bytes(*slot))).take_while(|nsid| *nsid != Nsid::NONE)
}

/// Writes a count and the ids that are `from` or greater, as many as fit (2047 at most), and zeroes the rest.
///
/// `cntlids` ascends. Gives the number written; a buffer without room for the count is zeroed.
pub fn write_controller_list(
    buffer: &mut [u8],
    from: Cntlid,
    cntlids: impl IntoIterator<Item = Cntlid>,
) -> usize {
    buffer.fill(0);
    let Some((head, slots)) = buffer.split_first_chunk_mut::<2>() else { return 0 };
    let (slots, _) = slots.as_chunks_mut::<2>();
    let mut count: u16 = 0;
    let cntlids = cntlids.into_iter().filter(|cntlid| *cntlid >= from).take(CONTROLLER_LIST_ENTRIES);
    for (slot, cntlid) in slots.iter_mut().zip(cntlids) {
        *slot = cntlid.get().to_le_bytes();
        count = count.saturating_add(1);
    }
    *head = count.to_le_bytes();
    usize::from(count)
}

/// Reads a list of controller ids: as many as it says, 2047 at most, within the buffer.
pub fn read_controller_list(list: &[u8]) -> impl Iterator<Item = Cntlid> {
    let (head, slots) = list.split_first_chunk::<2>().unwrap_or((&[0; 2], &[]));
    let count = usize::from(u16::from_le_bytes(*head)).min(CONTROLLER_LIST_ENTRIES);
    let (slots, _) = slots.as_chunks::<2>();
    slots.iter().take(count).map(|slot| Cntlid::new(u16::from_le_bytes(*slot)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nsids(ids: &[u32]) -> Vec<Nsid> {
        ids.iter().copied().map(Nsid::new).collect()
    }

    #[test]
    fn a_namespace_list_begins_after_the_given_id_and_ends_with_zero() {
        let mut buffer = [0xAA; 18];
        assert_eq!(write_nsid_list(&mut buffer, Nsid::new(1), nsids(&[1, 2, 0x0403_0201])), 2);
        assert_eq!(buffer, [2, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read_nsid_list(&buffer).collect::<Vec<_>>(), nsids(&[2, 0x0403_0201]));
    }

    #[test]
    fn a_full_namespace_list_has_no_end_mark() {
        let mut buffer = [0; 4096];
        let all = (1..=3000).map(Nsid::new);
        assert_eq!(write_nsid_list(&mut buffer, Nsid::NONE, all), NSID_LIST_ENTRIES);
        assert_eq!(read_nsid_list(&buffer).count(), NSID_LIST_ENTRIES);
        assert_eq!(read_nsid_list(&buffer).last(), Some(Nsid::new(1024)));
    }

    #[test]
    fn a_controller_list_counts_its_ids() {
        let mut buffer = [0xAA; 9];
        let ids = [1, 2, 0x0102].map(Cntlid::new);
        assert_eq!(write_controller_list(&mut buffer, Cntlid::new(2), ids), 2);
        assert_eq!(buffer, [2, 0, 2, 0, 0x02, 0x01, 0, 0, 0]);
        assert_eq!(read_controller_list(&buffer).collect::<Vec<_>>(), ids[1..]);
    }

    #[test]
    fn a_controller_list_is_read_within_its_buffer() {
        assert_eq!(read_controller_list(&[0xFF, 0xFF, 1, 0, 2]).count(), 1);
        assert_eq!(read_controller_list(&[5]).count(), 0);
        assert_eq!(read_controller_list(&[]).count(), 0);
        assert_eq!(read_controller_list(&[0xFF; 8192]).count(), CONTROLLER_LIST_ENTRIES);
        assert_eq!(write_controller_list(&mut [1], Cntlid::new(0), [Cntlid::new(1)]), 0);
    }

    #[test]
    fn a_controller_list_stops_at_its_limit() {
        let mut buffer = vec![0; 8192];
        let all = (0..5000).map(Cntlid::new);
        assert_eq!(write_controller_list(&mut buffer, Cntlid::new(0), all), CONTROLLER_LIST_ENTRIES);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_of_bounded_length(list in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(read_nsid_list(&list).count() <= list.len() / 4);
            prop_assert!(read_controller_list(&list).count() <= list.len() / 2);
        }

        #[test]
        fn paging_through_a_namespace_list_finds_every_id(
            ids in prop::collection::btree_set(1u32..0xFFFF_FFFE, 0..40), room in 1usize..10,
        ) {
            let ids: Vec<Nsid> = ids.into_iter().map(Nsid::new).collect();
            let (mut found, mut after) = (Vec::new(), Nsid::NONE);
            loop {
                let mut page = vec![0xAA; room * 4];
                write_nsid_list(&mut page, after, ids.iter().copied());
                found.extend(read_nsid_list(&page));
                match found.last() {
                    Some(last) if *last != after => after = *last,
                    _ => break,
                }
            }
            prop_assert_eq!(found, ids);
        }

        #[test]
        fn a_controller_list_reads_back(ids in prop::collection::btree_set(any::<u16>(), 0..40), from: u16) {
            let ids: Vec<Cntlid> = ids.into_iter().map(Cntlid::new).collect();
            let mut buffer = [0xAA; 4096];
            write_controller_list(&mut buffer, Cntlid::new(from), ids.iter().copied());
            let expected: Vec<_> = ids.into_iter().filter(|id| id.get() >= from).collect();
            prop_assert_eq!(read_controller_list(&buffer).collect::<Vec<_>>(), expected);
        }
    }
}
