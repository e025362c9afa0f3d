//! Sizes that namespaces prefer for writes and for deallocation, as reported to hosts.

use host_core::Namespace;

use super::World;

impl World {
    /// Judges a host's knowledge of the sizes that the namespaces prefer.
    pub(super) fn judge_grains(&mut self, index: usize) {
        let host = &self.hosts[index];
        let known =
            [&host.namespace, &host.second, &host.third].map(|known| known.as_ref().map(Namespace::info));
        for (number, info) in (1..).zip(known) {
            let scenario = &self.shared.scenario;
            // Its knowledge of the first one may be of the second machine, which has a disk.
            let is_of_disk = number == 1 && scenario.first.is_memory && scenario.disk_count() > 1;
            let Some(info) = info.filter(|_| !is_of_disk) else { continue };
            let said = (info.write_granularity_blocks, info.deallocate_granularity_blocks);
            let is = scenario.preferred_blocks(info);
            if said != is {
                self.shared.find(format!(
                    "host {index}: preferred blocks of namespace {number} are {said:?}, and should be {is:?}"
                ));
                return;
            }
            let event = match (number, scenario.first.page_bytes >> 10) {
                (1, _) if !scenario.first.is_memory && scenario.first.deallocate_grain_bytes > 64 << 10 => {
                    "space in grains above a page"
                }
                (1, _) if !scenario.first.is_memory => continue,
                (1, 16) => "memory in pages of 16 KiB",
                (1, 64) => "memory in pages of 64 KiB",
                (2, 16) => "second namespace in pages of 16 KiB",
                (2, 64) => "second namespace in pages of 64 KiB",
                (3, 16) => "third namespace in pages of 16 KiB",
                (3, 64) => "third namespace in pages of 64 KiB",
                _ => continue,
            };
            self.shared.reach_event(event);
        }
    }
}
