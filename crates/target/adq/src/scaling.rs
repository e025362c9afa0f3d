//! Receive-side scaling: tables that spread connections over receive queues, one for other traffic and one in each
//! context, and the rules that steer connections to a context.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::netlink::filter::{End, IpVersion};
use crate::netlink::qdisc::QueueRange;

/// How a device spreads arriving packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaling {
    /// Receive queue of each hash value, for packets that no rule steers; empty if the driver has no table.
    pub table: Vec<u32>,
    /// Tables of the contexts by their numbers; `None` if the driver of this kernel has no contexts.
    pub contexts: Option<BTreeMap<u32, Vec<u32>>>,
    /// The rules.
    pub rules: Vec<ListedRule>,
}

/// The wanted content of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Table {
    /// The kernel's choice: all receive queues, also after their number has changed.
    Default,
    /// These queues, one after the other.
    Queues(QueueRange),
    /// These entries, repeated if the device has more by now.
    Entries(Vec<u32>),
}

impl Table {
    /// Its entries on a device with `queue_count` receive queues and `length` entries.
    #[must_use]
    pub fn entries(&self, length: usize, queue_count: u16) -> Vec<u32> {
        let over = |first: u16, count: u16| {
            (first..first.saturating_add(count)).map(u32::from).cycle().take(length).collect()
        };
        match self {
            Self::Default => over(0, queue_count),
            Self::Queues(queues) => over(queues.first, queues.count),
            Self::Entries(entries) => entries.iter().copied().cycle().take(length).collect(),
        }
    }

    fn is(&self, entries: &[u32], queue_count: u16) -> bool {
        *entries == *self.entries(entries.len(), queue_count)
    }
}

/// The packets of a rule: TCP of an address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The IP version.
    pub version: IpVersion,
    /// The end of the connection that is matched.
    pub end: End,
    /// The address, or all of them.
    pub address: Option<IpAddr>,
    /// The TCP port.
    pub port: u16,
}

/// A rule that steers packets to the context of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The packets.
    pub flow: Flow,
    /// The queues of the class; its context spreads over them.
    pub queues: QueueRange,
}

/// A rule that the driver lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedRule {
    /// Its place in the driver's table.
    pub location: u32,
    /// The packets; `None` if it matches anything else than one TCP address or port.
    pub flow: Option<Flow>,
    /// The context that the packets get, or the queue.
    pub action: Action,
}

/// The effect of a listed rule on its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// They are spread by this context.
    Context(u32),
    /// They go to this queue, or are dropped: the largest number.
    Queue(u64),
}

impl Scaling {
    /// The context that spreads over exactly these queues.
    #[must_use]
    pub fn context_of(&self, queues: QueueRange) -> Option<u32> {
        let wanted = Table::Queues(queues);
        let contexts = self.contexts.iter().flatten();
        contexts
            .filter(|(_, table)| !table.is_empty())
            .find(|(_, table)| wanted.is(table, 0))
            .map(|(id, _)| *id)
    }

    fn has_context(&self, id: u32) -> bool {
        self.contexts.as_ref().is_some_and(|contexts| contexts.contains_key(&id))
    }
}

impl Rule {
    /// The packets, as a message names them.
    #[must_use]
    pub fn described(&self) -> String {
        let Flow { version, address, port, .. } = self.flow;
        let address = address.map_or_else(|| format!("any {} address", version.name()), |ip| ip.to_string());
        format!("port {port} of {address}")
    }

    /// The difference of `now` from the rule.
    pub(crate) fn deviation(&self, now: &Scaling) -> Option<String> {
        let what = self.described();
        let Some(listed) = now.rules.iter().find(|listed| listed.flow == Some(self.flow)) else {
            return Some(format!("the rule for {what} is missing"));
        };
        let wanted = now.context_of(self.queues);
        match listed.action {
            Action::Context(id) if Some(id) == wanted => None,
            Action::Context(id) => Some(format!(
                "the rule for {what} leads to RSS context {id}, not to one of its class's queues"
            )),
            Action::Queue(queue) => {
                Some(format!("the rule for {what} leads to queue {queue} instead of its class's context"))
            }
        }
    }

    /// Locations of remains of the rule: rules for its packets that lead to a context made after `before`.
    pub(crate) fn remains(&self, before: &Scaling, now: &Scaling) -> Vec<u32> {
        let is_ours = |listed: &&ListedRule| {
            listed.flow == Some(self.flow)
                && matches!(listed.action, Action::Context(id) if !before.has_context(id))
        };
        now.rules.iter().filter(is_ours).map(|listed| listed.location).collect()
    }
}

/// The difference from a table for packets that no rule steers, on a device with `queue_count` receive queues.
pub(crate) fn table_deviation(wanted: &Table, now: &Scaling, queue_count: u16) -> Option<String> {
    let now = &now.table;
    (now.is_empty() || !wanted.is(now, queue_count)).then(|| {
        let queues: std::collections::BTreeSet<_> = now.iter().collect();
        let (first, last) = (queues.first().copied().unwrap_or(&0), queues.last().copied().unwrap_or(&0));
        format!("other traffic is spread otherwise: over {} of the queues {first} to {last}", queues.len())
    })
}

/// The table that restores the one of before; each side with its number of receive queues. A table that a user has set
/// keeps some drivers (mlx5) from changing the number of queues: the kernel's choice comes first then, and the table of
/// before once the queues are back.
pub(crate) fn undo_table(before: (&Scaling, u16), now: (&Scaling, u16)) -> Option<Table> {
    let (old, new) = (&before.0.table, &now.0.table);
    if old.is_empty() || Table::Entries(old.clone()).is(new, 0) {
        return None;
    }
    if Table::Default.is(old, before.1) || before.1 != now.1 {
        return (!Table::Default.is(new, now.1)).then_some(Table::Default);
    }
    Some(Table::Entries(old.clone()))
}

/// The difference from a context over `queues`.
pub(crate) fn context_deviation(queues: QueueRange, now: &Scaling) -> Option<String> {
    now.context_of(queues).is_none().then(|| {
        let last = queues.first + queues.count.saturating_sub(1);
        format!("no RSS context spreads over the queues {} to {last}", queues.first)
    })
}

/// Contexts made after `before` that use only these queues.
pub(crate) fn remaining_contexts(queues: QueueRange, before: &Scaling, now: &Scaling) -> Vec<u32> {
    let range = u32::from(queues.first)..u32::from(queues.first + queues.count);
    let is_ours = |id: u32, table: &[u32]| {
        !before.has_context(id) && !table.is_empty() && table.iter().all(|queue| range.contains(queue))
    };
    let contexts = now.contexts.iter().flatten();
    contexts.filter(|(id, table)| is_ours(**id, table)).map(|(id, _)| *id).collect()
}

/// The command of `ethtool` that sets a table.
pub(crate) fn table_command(table: &Table, interface: &str) -> String {
    match table {
        Table::Default => format!("ethtool -X {interface} default"),
        Table::Queues(queues) if queues.first == 0 => {
            format!("ethtool -X {interface} equal {}", queues.count)
        }
        Table::Queues(queues) => {
            format!("ethtool -X {interface} start {} equal {}", queues.first, queues.count)
        }
        Table::Entries(entries) => {
            let last = entries.iter().max().copied().unwrap_or(0);
            let weight = |queue| entries.iter().filter(|entry| **entry == queue).count();
            let weights: String = (0..=last).map(|queue| format!(" {}", weight(queue))).collect();
            format!("ethtool -X {interface} weight{weights}")
        }
    }
}

/// The command of `ethtool` that adds a rule. The number of its context is known once the context exists.
pub(crate) fn rule_command(rule: &Rule, interface: &str) -> String {
    let kind = if rule.flow.version == IpVersion::V4 { "tcp4" } else { "tcp6" };
    let end = if rule.flow.end == End::Source { "src" } else { "dst" };
    let address = rule.flow.address.map(|address| format!(" {end}-ip {address}")).unwrap_or_default();
    let queues = rule.queues;
    format!(
        "ethtool -N {interface} flow-type {kind}{address} {end}-port {} context ID  # of queues {}-{}",
        rule.flow.port,
        queues.first,
        queues.first + queues.count.saturating_sub(1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_what_ethtool_makes_of_the_same_words() {
        // ethtool 6.1 with a table of 8 entries: `equal 8`, `start 8 equal 4`; `equal 3` goes round.
        let entries = |first, count| Table::Queues(QueueRange { first, count }).entries(8, 12);
        assert_eq!(entries(0, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(entries(8, 4), [8, 9, 10, 11, 8, 9, 10, 11]);
        assert_eq!(entries(0, 3), [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(Table::Default.entries(6, 4), [0, 1, 2, 3, 0, 1]);
        assert_eq!(Table::Entries(vec![5, 7]).entries(4, 12), [5, 7, 5, 7]);
    }

    #[test]
    fn a_table_of_somebody_comes_back_after_the_queues() {
        let undo = |(before, before_queues): (&[u32], u16), (now, now_queues): (&[u32], u16)| {
            let scaling = |table: &[u32]| Scaling { table: table.to_vec(), ..Scaling::default() };
            undo_table((&scaling(before), before_queues), (&scaling(now), now_queues))
        };
        // The kernel's choice before: it is asked for, and follows the number of queues.
        let before: (&[u32], u16) = (&[0, 1, 0, 1], 2);
        assert_eq!(undo(before, (&[0, 0, 0, 0], 4)), Some(Table::Default));
        assert_eq!(undo(before, (&[0, 1, 2, 3], 4)), None);
        assert_eq!(undo(before, (&[0, 1, 0, 1], 2)), None);
        // A table that a user has set: the queues first, also where the table has grown with them.
        let before: (&[u32], u16) = (&[0, 0, 0, 1], 2);
        assert_eq!(undo(before, (&[0, 1, 2, 0, 1, 2, 0, 1], 4)), Some(Table::Default));
        assert_eq!(undo(before, (&[0, 1, 2, 3], 4)), None);
        assert_eq!(undo(before, (&[0, 1, 0, 1], 2)), Some(Table::Entries(vec![0, 0, 0, 1])));
        assert_eq!(undo(before, (&[0, 0, 0, 1], 2)), None);
    }
}
