//! The operations of a batch, sorted by the partition of their keys.

/// The numbers of operations, by partition; those of one partition in the order of the batch.
#[derive(Debug, Default)]
pub struct Parts {
    /// The partition of each operation; none has [`NONE`].
    owners: Vec<u16>,
    order: Vec<u32>,
    /// By partition: the end of its part in `order`.
    ends: Vec<u32>,
    /// Partitions that are still to be visited.
    pub(crate) left: Vec<usize>,
}

/// The partition of what belongs to none.
const NONE: u16 = u16::MAX;

impl Parts {
    /// Sorts anew: `owners` has the partition of each operation, of `count`, or `None` for what belongs to none.
    pub fn sort(&mut self, count: usize, owners: impl Iterator<Item = Option<usize>>) {
        let Self { owners: own, order, ends, .. } = self;
        own.clear();
        ends.clear();
        ends.resize(count + 1, 0);
        own.extend(owners.map(|owner| {
            let Some(owner) = owner else { return NONE };
            ends[owner + 1] += 1;
            owner as u16
        }));
        // First the beginning of each part; it moves to the end as the part is filled.
        for number in 1..=count {
            ends[number] += ends[number - 1];
        }
        order.clear();
        order.resize(ends[count] as usize, 0);
        for (number, &owner) in own.iter().enumerate().filter(|(_, owner)| **owner != NONE) {
            let at = &mut ends[usize::from(owner)];
            order[*at as usize] = number as u32;
            *at += 1;
        }
        ends.truncate(count);
    }

    /// The operations of a partition, in order.
    #[must_use]
    pub fn of(&self, partition: usize) -> &[u32] {
        let start = if partition == 0 { 0 } else { self.ends[partition - 1] };
        &self.order[start as usize..self.ends[partition] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_the_order_of_the_batch() {
        let mut parts = Parts::default();
        let owners = [Some(2), None, Some(0), Some(2), Some(0), Some(2), None];
        for _ in 0..2 {
            parts.sort(4, owners.into_iter());
            let found: [&[u32]; 4] = std::array::from_fn(|partition| parts.of(partition));
            assert_eq!(found, [&[2, 4][..], &[], &[0, 3, 5], &[]]);
        }
        parts.sort(2, [Some(1), Some(1)].into_iter());
        assert_eq!((parts.of(0), parts.of(1)), (&[][..], &[0, 1][..]));
        parts.sort(2, std::iter::empty());
        assert_eq!((parts.of(0), parts.of(1)), (&[][..], &[][..]));
    }
}
