//! The index of a partition: which line is the bucket of a hash. It has groups of lines in proportion to the pairs.
//!
//! ```text
//! group, eight lines:  bucket 0 │ bucket 1 │ … │ bucket 6 │ overflow of all of them ─▶ further lines
//!
//! hashes   0 ─────────── frontier ─────────── 2^32
//! spread over    `groups_below`     `groups_above`         a resize moves the frontier, bucket by bucket
//! ```
//!
//! Buckets are in the order of the hashes that they hold: hashes are divided evenly among them. A resize to any number
//! of groups passes over the old buckets once and in place: a larger index from the last bucket down, since no bucket's
//! new position is before its old one, a smaller one from the first bucket up. Groups are in whole regions, 128 in
//! each. A directory, small enough to stay in the near caches, lists these regions. Between the last new bucket of a
//! shrinking index and the next old one, its regions are empty: they are released as the frontier passes, except the
//! one into which the new buckets grow next.

use std::ops::Range;

use crate::regions::REGION_LINES;

/// Lines of a group.
pub(crate) const GROUP_LINES: u32 = 8;
/// The line of a group that holds overflow; those before it are buckets.
pub(crate) const OVERFLOW_SLOT: u32 = GROUP_LINES - 1;
/// Buckets of a group.
pub(crate) const GROUP_BUCKETS: u64 = OVERFLOW_SLOT as u64;
/// Groups of a region.
pub(crate) const REGION_GROUPS: u64 = REGION_LINES as u64 / GROUP_LINES as u64;

/// Minimum number of groups.
pub(crate) const GROUPS_MIN: u64 = 8;
/// Lines of the smallest index.
pub(crate) const INDEX_LINES_MIN: u32 = GROUPS_MIN as u32 * GROUP_LINES;

/// Marks a place in the directory without a region.
const NONE: u32 = u32::MAX;

/// One past the last hash. Only the half of a hash that selects the bucket counts.
const HASHES: u64 = 1 << 32;

/// The index of a partition: maps hashes to the lines of their buckets.
#[derive(Debug)]
pub(crate) struct Index {
    /// The first lines of its regions, in order.
    directory: Vec<u32>,
    /// Groups for the hashes before the frontier, and for those from it on.
    groups_below: u64,
    groups_above: u64,
    frontier: u64,
    resize: Option<Resize>,
    /// Cells taken by entries.
    pub(crate) used_cells: u64,
    /// While the cells used are in this range no resize is needed: its start and its length.
    right_from: u64,
    right_count: u64,
    /// Buckets moved so far.
    #[cfg(test)]
    pub(crate) moved_count: u64,
}

/// A resize under way.
#[derive(Clone, Copy, Debug)]
struct Resize {
    is_growing: bool,
    /// Whether entries that do not fit into the smaller index are evicted.
    evicts: bool,
    /// Old buckets still to be moved: the first ones if the index grows, else the last.
    left_count: u64,
    /// A growing index is ready for use from this group on.
    ready_from: u64,
}

/// A bucket and the range of hashes that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketRange {
    /// The line of the bucket.
    pub(crate) home: u32,
    /// One past the last of its hashes.
    pub(crate) end: u64,
}

/// The first hash of a bucket, if all are divided among `groups` groups.
fn first_hash(bucket: u64, groups: u64) -> u64 {
    (bucket << 32).div_ceil(groups * GROUP_BUCKETS)
}

impl Index {
    /// Bytes of the directory per region.
    pub(crate) const RECORD_BYTES: usize = size_of::<u32>();

    /// The smallest index, in the region that begins at `first_line`, with at most `region_count` regions later.
    pub(crate) fn new(first_line: u32, region_count: usize) -> Self {
        let mut directory = Vec::with_capacity(region_count);
        directory.push(first_line);
        Self {
            directory,
            groups_below: GROUPS_MIN,
            groups_above: GROUPS_MIN,
            frontier: 0,
            resize: None,
            used_cells: 0,
            right_from: 0,
            right_count: 0,
            #[cfg(test)]
            moved_count: 0,
        }
    }

    /// The line of the bucket of a hash.
    #[inline(always)]
    pub(crate) fn home(&self, hash: u32) -> u32 {
        let hash = u64::from(hash);
        let groups = if hash < self.frontier { self.groups_below } else { self.groups_above };
        let at = hash * groups;
        let slot = ((at & (HASHES - 1)) * GROUP_BUCKETS) >> 32;
        self.group_line(at >> 32) + slot as u32
    }

    /// The bucket of a hash, and which hashes it holds.
    pub(crate) fn bucket_range(&self, hash: u32) -> BucketRange {
        let before_frontier = u64::from(hash) < self.frontier;
        let groups = if before_frontier { self.groups_below } else { self.groups_above };
        let bucket = (u64::from(hash) * groups * GROUP_BUCKETS) >> 32;
        let end = first_hash(bucket + 1, groups);
        BucketRange { home: self.home(hash), end: if before_frontier { end.min(self.frontier) } else { end } }
    }

    #[inline(always)]
    fn group_line(&self, group: u64) -> u32 {
        debug_assert!(
            (group / REGION_GROUPS) < self.directory.len() as u64,
            "group {group} of an index of {} regions",
            self.directory.len()
        );
        self.directory[(group / REGION_GROUPS) as usize] + (group % REGION_GROUPS) as u32 * GROUP_LINES
    }

    fn bucket_line(&self, bucket: u64) -> u32 {
        self.group_line(bucket / GROUP_BUCKETS) + (bucket % GROUP_BUCKETS) as u32
    }

    /// The lines of a group.
    pub(crate) fn group_lines(&self, group: u64) -> Range<u32> {
        let first = self.group_line(group);
        first..first + GROUP_LINES
    }

    /// Number of groups; during a resize, that of the larger index.
    pub(crate) fn group_count(&self) -> u64 {
        self.groups_below.max(self.groups_above)
    }

    /// First lines of its regions.
    pub(crate) fn directory(&self) -> &[u32] {
        &self.directory
    }

    /// Regions needed for `groups` groups.
    fn regions_for(groups: u64) -> usize {
        groups.div_ceil(REGION_GROUPS) as usize
    }

    /// Whether a resize is under way.
    pub(crate) fn is_resizing(&self) -> bool {
        self.resize.is_some()
    }

    /// Whether the resize under way adds groups.
    pub(crate) fn is_growing(&self) -> bool {
        self.resize.is_some_and(|resize| resize.is_growing)
    }

    /// Whether the number of cells used calls for no resize.
    #[inline(always)]
    pub(crate) fn has_right_size(&self) -> bool {
        self.used_cells.wrapping_sub(self.right_from) < self.right_count
    }

    /// Sets the range of cells used that calls for no resize.
    pub(crate) fn set_right_cells(&mut self, cells: Range<u64>) {
        (self.right_from, self.right_count) = (cells.start, cells.end.saturating_sub(cells.start));
    }

    /// Regions missing for `groups` groups.
    pub(crate) fn regions_missing(&self, groups: u64) -> usize {
        Self::regions_for(groups).saturating_sub(self.directory.len())
    }

    /// Appends a region.
    pub(crate) fn add_region(&mut self, first_line: u32) {
        self.directory.push(first_line);
    }

    /// Puts a region in the place of another, whose content has been copied.
    pub(crate) fn replace_region(&mut self, first_line: u32, by: u32) {
        let known = self.directory.iter_mut().find(|line| **line == first_line);
        *known.expect("a region of the index is in its directory") = by;
    }

    /// Removes a region that no group needs.
    pub(crate) fn remove_region(&mut self) -> Option<u32> {
        while self.directory.len() > Self::regions_for(self.group_count()) {
            if let Some(line) = self.directory.pop().filter(|&line| line != NONE) {
                return Some(line);
            }
        }
        None
    }

    /// Removes the region that the last step of a shrinking index has emptied, if there is one that is not needed soon.
    pub(crate) fn remove_emptied(&mut self) -> Option<u32> {
        let resize = self.resize.filter(|resize| !resize.is_growing)?;
        let moved_count = self.groups_above * GROUP_BUCKETS - resize.left_count;
        if !moved_count.is_multiple_of(REGION_GROUPS * GROUP_BUCKETS) {
            return None;
        }
        let emptied = (moved_count / (REGION_GROUPS * GROUP_BUCKETS)) as usize - 1;
        let next = (((self.frontier * self.groups_below) >> 32) / REGION_GROUPS) as usize + 1;
        if emptied <= next {
            return None;
        }
        let line = std::mem::replace(&mut self.directory[emptied], NONE);
        if self.directory[next] == NONE {
            self.directory[next] = line;
            return None;
        }
        Some(line)
    }

    /// Resets an index without entries to the smallest size.
    pub(crate) fn reset(&mut self) {
        (self.groups_below, self.groups_above, self.frontier, self.resize) =
            (GROUPS_MIN, GROUPS_MIN, 0, None);
        self.used_cells = 0;
        self.set_right_cells(0..0);
    }

    /// Begins a resize to `groups` groups, for which there are regions.
    pub(crate) fn begin(&mut self, groups: u64) {
        self.begin_resize(groups, false);
    }

    /// Begins to shrink to `groups` groups, into which not all entries may fit.
    pub(crate) fn begin_squeeze(&mut self, groups: u64) {
        self.begin_resize(groups, true);
    }

    /// Lets the resize under way evict the entries that do not fit.
    pub(crate) fn squeeze(&mut self) {
        if let Some(resize) = &mut self.resize {
            resize.evicts = true;
        }
    }

    /// Whether a resize evicts the entries that do not fit.
    pub(crate) fn is_squeezed(&self) -> bool {
        self.resize.is_some_and(|resize| resize.evicts)
    }

    fn begin_resize(&mut self, groups: u64, evicts: bool) {
        debug_assert!(self.resize.is_none() && self.regions_missing(groups) == 0);
        let (old, is_growing) = (self.groups_above, groups > self.groups_above);
        self.resize =
            Some(Resize { is_growing, evicts, left_count: old * GROUP_BUCKETS, ready_from: groups });
        (self.groups_below, self.groups_above, self.frontier) =
            if is_growing { (old, groups, HASHES) } else { (groups, old, 0) };
        self.set_right_cells(0..0);
    }

    /// The line of the old bucket that is moved after `ahead` others.
    pub(crate) fn next_to_move(&self, ahead: u64) -> Option<u32> {
        let resize = self.resize?;
        let left_count = resize.left_count.checked_sub(ahead).filter(|&left| left > 0)?;
        let bucket =
            if resize.is_growing { left_count - 1 } else { self.groups_above * GROUP_BUCKETS - left_count };
        Some(self.bucket_line(bucket))
    }

    /// Moves the frontier over the next bucket to be moved, which is already empty. Its keys then belong elsewhere, and
    /// the groups returned must be emptied first. The last step ends the resize.
    #[inline(always)]
    pub(crate) fn advance(&mut self) -> Range<u64> {
        let Some(resize) = &mut self.resize else { return 0..0 };
        resize.left_count -= 1;
        #[cfg(test)]
        {
            self.moved_count += 1;
        }
        let left_count = resize.left_count;
        let mut unready = 0..0;
        if resize.is_growing {
            self.frontier = first_hash(left_count, self.groups_below);
            let first = ((self.frontier * self.groups_above) >> 32).max(self.groups_below);
            unready = first..resize.ready_from.max(first);
            resize.ready_from = resize.ready_from.min(first);
        } else {
            self.frontier = first_hash(self.groups_above * GROUP_BUCKETS - left_count, self.groups_above);
        }
        if left_count == 0 {
            let groups = if resize.is_growing { self.groups_above } else { self.groups_below };
            (self.groups_below, self.groups_above, self.frontier, self.resize) = (groups, groups, 0, None);
        }
        unready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(groups: u64) -> Index {
        let mut index = Index::new(0, 64);
        for region in 1..64 {
            index.add_region(region * REGION_LINES as u32);
        }
        (index.groups_below, index.groups_above) = (groups, groups);
        index
    }

    /// All buckets with their hashes, in order.
    fn shares(index: &Index) -> Vec<(u64, BucketRange)> {
        let (mut shares, mut from) = (Vec::new(), 0);
        while let Ok(hash) = u32::try_from(from) {
            let share = index.bucket_range(hash);
            assert_eq!(index.home(hash), share.home);
            assert_eq!(index.home((share.end - 1) as u32), share.home, "the last of its share");
            shares.push((from, share));
            from = share.end;
        }
        assert_eq!(from, HASHES);
        shares
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// After every step each hash has one bucket, no bucket has two roles, and a step moves entries only to buckets
        /// that are empty or already in their final position.
        #[test]
        fn a_resize_keeps_every_bucket_apart(from in 8u64..40, to in 8u64..80) {
            prop_assume!(from != to);
            let mut index = index(from);
            let bucket_count = from * GROUP_BUCKETS;
            index.begin(to);
            for step in 0..bucket_count {
                let line = index.next_to_move(0).expect("more buckets");
                let before = shares(&index);
                prop_assert_eq!(before.iter().filter(|(_, share)| share.home == line).count(), 1);
                let unready = index.advance();
                prop_assert!(unready.is_empty() || unready.start >= from && unready.end <= to);
                prop_assert_eq!(index.is_resizing(), step + 1 < bucket_count);
                let after = shares(&index);
                let mut homes: Vec<u32> = after.iter().map(|(_, share)| share.home).collect();
                homes.sort_unstable();
                homes.dedup();
                prop_assert_eq!(homes.len(), after.len(), "a bucket has two shares");
            }
            prop_assert_eq!(index.group_count(), to);
            prop_assert_eq!(shares(&index).len() as u64, to * GROUP_BUCKETS);
        }
    }

    #[test]
    fn the_largest_index_has_a_place_for_every_hash() {
        let groups = 1 << 29;
        for bucket in [0, 1, groups * GROUP_BUCKETS - 1] {
            let first = first_hash(bucket, groups);
            assert_eq!((first * groups * GROUP_BUCKETS) >> 32, bucket);
        }
        assert_eq!(first_hash(groups * GROUP_BUCKETS, groups), HASHES);
    }
}
