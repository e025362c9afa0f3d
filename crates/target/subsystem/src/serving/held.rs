//! State that a reactor holds for its connections: lanes, commands, ranges of blocks, and their counters.

use std::sync::Arc;

use super::Serving;
use crate::objects::association::Association;

impl Serving {
    /// Counts of the state that this reactor holds for its connections, without those that are 0. All are 0 once every
    /// connection and its work have ended.
    #[must_use]
    pub fn held(&self) -> Vec<(&'static str, usize)> {
        let commands = &self.commands;
        let mut all = vec![
            ("lanes", self.lanes.lanes.count()),
            ("lanes that wait for buffers", commands.quota.waiting_count()),
            ("commands", commands.running.count()),
            ("bytes taken by commands", commands.running.all_taken_bytes()),
            ("commands that wait", commands.waiting_count()),
            ("associations of lanes", commands.association_count()),
            ("Batch Collects that wait", commands.collecting.len()),
            ("operations of namespaces", commands.namespaces.running_count()),
            ("ranges of blocks kept out of", commands.namespaces.exclusion_count()),
            ("memcached connections", self.memcached.count()),
        ];
        if let Some(home) = &self.home {
            all.push(("locks", home.locks.count()));
            all.push(("lanes that the placement counts", home.placement.lane_count()));
            all.extend(home.control.held());
        }
        all.retain(|(_, count)| *count > 0);
        all
    }

    /// The associations that have lanes here, by each lane.
    pub fn associations(&self) -> impl Iterator<Item = &Arc<Association>> {
        self.lanes.lanes.iter().filter_map(|lane| lane.state.association())
    }
}
