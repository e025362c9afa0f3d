//! The ANA groups of a controller as its host sees them: when the log is read, and which namespaces are inaccessible.
//! wire §19
//!
//! ```text
//! Off                Idle ──(event, a command's status, poll due)──▶ ToRead ──next_command──▶ Asked
//! (no ANA reporting)   ▲                                                                        │
//!                      └──────────────────────────── the log, or its failure ───────────────────┘
//! ```
//!
//! While a group is inaccessible or changes the log is also read by time, at growing intervals: a host that missed the
//! event (or whose controller sends none) still learns of the change.

use wire::id::Nsid;
use wire::identify::capabilities::Cmic;
use wire::identify::controller::IdentifyController;
use wire::log::ana::{ANA_GROUPS_ONLY, AnaLog, AnaState, ana_log_bytes};
use wire::log::{GetLogPage, Lid};
use wire::sqe::Sqe;
use wire::status::Status;

use crate::host_namespaces::NamespaceInfo;

/// Most groups of a log that are read.
const GROUP_COUNT_MAX: u32 = 1024;

/// Interval of reads while a group is not accessible, ns; it doubles up to the longest.
const POLL_NS_FIRST: u64 = 100_000_000;
const POLL_NS_MAX: u64 = 5_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The controller does not report ANA.
    Off,
    Idle,
    ToRead,
    /// It is being read. If `again`, another read was requested since.
    Asked {
        again: bool,
    },
}

/// The ANA groups of one controller.
#[derive(Debug)]
pub(crate) struct HostAna {
    state: State,
    /// Bytes of the log that are asked for.
    length_bytes: u32,
    /// Groups and their states as of the last log.
    groups: Vec<(u32, AnaState)>,
    interval_ns: u64,
    /// Time of the next periodic read of the log, ns.
    due_ns: Option<u64>,
}

impl HostAna {
    /// The groups of a controller before its Identify data is known.
    pub(crate) const fn new() -> Self {
        Self {
            state: State::Off,
            length_bytes: 0,
            groups: Vec::new(),
            interval_ns: POLL_NS_FIRST,
            due_ns: None,
        }
    }

    /// Takes the controller's Identify data: if it reports ANA, its log is read.
    pub(crate) fn on_identify(&mut self, identify: &IdentifyController) {
        let group_count = identify.nanagrpid.get().min(GROUP_COUNT_MAX);
        if identify.cmic.contains(Cmic::ANA) && group_count > 0 {
            let group_count = u16::try_from(group_count).unwrap_or(u16::MAX);
            self.length_bytes = u32::try_from(ana_log_bytes(group_count, 0)).unwrap_or(0);
            self.state = State::ToRead;
        }
    }

    /// Whether the controller reports ANA.
    pub(crate) fn is_on(&self) -> bool {
        self.state != State::Off
    }

    /// Whether the log is about to be read, or being read.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.state, State::ToRead | State::Asked { .. })
    }

    /// Requests a read of the log: an event or a command's status shows that it has changed.
    pub(crate) fn read(&mut self) {
        match &mut self.state {
            State::Off | State::ToRead => {}
            State::Idle => self.state = State::ToRead,
            State::Asked { again } => *again = true,
        }
    }

    /// Time of the next periodic read of the log, ns.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.due_ns.filter(|_| self.state == State::Idle)
    }

    /// The command that reads the log, and its data length in bytes, if a read is due.
    pub(crate) fn next_command(&mut self, now_ns: u64) -> Option<(Sqe, u32)> {
        if self.due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.state = State::ToRead;
        }
        if self.state != State::ToRead {
            return None;
        }
        self.state = State::Asked { again: false };
        let length_bytes = self.length_bytes.into();
        // Without RAE, so that the event comes again. Without namespaces: each names its group itself. wire §13, §19
        let log = GetLogPage { lid: Lid::ANA, lsp: ANA_GROUPS_ONLY, length_bytes, ..GetLogPage::default() };
        Some((log.to_sqe(Nsid::ALL), self.length_bytes))
    }

    /// Takes the log, or an error, after which the former content stays.
    pub(crate) fn on_completion(&mut self, status: Status, data: &[u8], now_ns: u64) {
        let State::Asked { again } = self.state else { return };
        self.state = if again { State::ToRead } else { State::Idle };
        let log = if status.is_success() { AnaLog::new(data).ok() } else { None };
        let before = self.groups.clone();
        if let Some(log) = log {
            // As far as it can be read: a controller may have more groups than were asked for.
            self.groups = log
                .map_while(Result::ok)
                .take(usize::try_from(GROUP_COUNT_MAX).unwrap_or(0))
                .map(|group| (group.grpid, group.state))
                .collect();
            self.groups.sort_unstable_by_key(|(grpid, _)| *grpid);
        }
        let passes = |state: AnaState| state == AnaState::INACCESSIBLE || state == AnaState::CHANGE;
        let is_waiting = self.groups.iter().any(|(_, state)| passes(*state));
        self.interval_ns = match before == self.groups {
            true => self.interval_ns.saturating_mul(2).min(POLL_NS_MAX),
            false => POLL_NS_FIRST,
        };
        self.due_ns = is_waiting.then(|| now_ns.saturating_add(self.interval_ns));
    }

    /// The namespaces that are not accessible, by id, and the status for each. A group that the log does not list, or
    /// an unknown state, bars nothing: the status of a command decides.
    pub(crate) fn inaccessible(&self, namespaces: &[NamespaceInfo]) -> Vec<(Nsid, AnaState)> {
        let state_of = |group: u32| {
            let at = self.groups.binary_search_by_key(&group, |(grpid, _)| *grpid).ok()?;
            self.groups.get(at).map(|(_, state)| *state)
        };
        let barred = [AnaState::INACCESSIBLE, AnaState::PERSISTENT_LOSS, AnaState::CHANGE];
        let states = namespaces.iter().filter_map(|info| Some((info.nsid, state_of(info.ana_group)?)));
        states.filter(|(_, state)| barred.contains(state)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::identify::namespace::IdentifyNamespace;
    use wire::log::ana::AnaLogWriter;
    use zerocopy::FromBytes;

    use super::*;
    use crate::host_namespaces::Ids;

    fn log(groups: &[(u32, AnaState)]) -> Vec<u8> {
        let mut log = vec![0; 4096];
        let mut writer = AnaLogWriter::new(&mut log, 1).unwrap();
        groups.iter().for_each(|(grpid, state)| writer.group(*grpid, *state, 1, []).unwrap());
        let _ = writer.finish();
        log
    }

    fn ana() -> HostAna {
        let mut identify = IdentifyController::fabrics();
        identify.cmic = Cmic::ANA;
        identify.nanagrpid.set(4);
        let mut ana = HostAna::new();
        ana.on_identify(&identify);
        ana
    }

    fn namespace(nsid: u32, group: u32) -> NamespaceInfo {
        let mut bytes = vec![0; 4096];
        (bytes[0], bytes[8], bytes[130]) = (8, 8, 12);
        bytes[92..96].copy_from_slice(&group.to_le_bytes());
        let (identify, _) = IdentifyNamespace::ref_from_prefix(&bytes).unwrap();
        NamespaceInfo::of_blocks(Nsid::new(nsid), &Ids::default(), identify).unwrap()
    }

    #[test]
    fn a_controller_without_ana_is_asked_nothing() {
        for (cmic, group_count) in [(Cmic::empty(), 0), (Cmic::empty(), 1), (Cmic::ANA, 0)] {
            let mut identify = IdentifyController::fabrics();
            identify.cmic = cmic;
            identify.nanagrpid.set(group_count);
            let mut ana = HostAna::new();
            ana.on_identify(&identify);
            ana.read();
            assert!(!ana.is_on() && !ana.is_reading() && ana.next_command(0).is_none());
        }
    }

    #[test]
    fn the_log_bars_the_namespaces_of_groups_that_are_not_accessible() {
        let mut ana = ana();
        let (sqe, length) = ana.next_command(0).unwrap();
        let command = GetLogPage::from_sqe(&sqe);
        assert_eq!(
            (command.lid, command.lsp, command.rae, length),
            (Lid::ANA, ANA_GROUPS_ONLY, false, 16 + 4 * 32)
        );
        let groups = [
            (3, AnaState::CHANGE),
            (1, AnaState::INACCESSIBLE),
            (2, AnaState::NON_OPTIMIZED),
            (4, AnaState::PERSISTENT_LOSS),
        ];
        ana.on_completion(Status::SUCCESS, &log(&groups), 0);
        let namespaces: Vec<_> =
            (1..=6).zip([2, 1, 1, 3, 4, 77]).map(|(nsid, group)| namespace(nsid, group)).collect();
        let barred: Vec<_> =
            ana.inaccessible(&namespaces).into_iter().map(|(nsid, state)| (nsid.get(), state)).collect();
        let expected = [
            (2, AnaState::INACCESSIBLE),
            (3, AnaState::INACCESSIBLE),
            (4, AnaState::CHANGE),
            (5, AnaState::PERSISTENT_LOSS),
        ];
        assert_eq!(barred, expected);
    }

    #[test]
    fn the_log_is_read_by_time_while_a_group_may_come_back_and_less_and_less_often() {
        let mut ana = ana();
        let mut read = |now_ns, state| {
            ana.read();
            assert!(ana.next_command(now_ns).is_some() && ana.next_command(now_ns).is_none());
            ana.on_completion(Status::SUCCESS, &log(&[(1, state)]), now_ns);
            ana.due_ns().map(|due_ns| (due_ns - now_ns) / 1_000_000)
        };
        assert_eq!(read(0, AnaState::OPTIMIZED), None);
        assert_eq!(
            [0; 8].map(|_| read(5, AnaState::INACCESSIBLE).unwrap()),
            [100, 200, 400, 800, 1600, 3200, 5000, 5000]
        );
        assert_eq!(read(9, AnaState::CHANGE), Some(100), "something happens");
        assert_eq!(read(9, AnaState::PERSISTENT_LOSS), None, "nothing will");
    }

    #[test]
    fn what_happens_while_the_log_is_read_has_it_read_once_more() {
        let mut ana = ana();
        assert!(ana.next_command(0).is_some());
        ana.read();
        ana.read();
        assert!(ana.next_command(0).is_none(), "one at a time");
        ana.on_completion(Status::SUCCESS, &log(&[(1, AnaState::INACCESSIBLE)]), 0);
        assert!(ana.is_reading() && ana.next_command(0).is_some());
        ana.on_completion(Status::INTERNAL_ERROR, &[], 0);
        assert_eq!(ana.inaccessible(&[namespace(1, 1)]).len(), 1, "an error changes nothing");
        let due_ns = ana.due_ns().expect("it is read again");
        assert!(ana.next_command(due_ns - 1).is_none() && ana.next_command(due_ns).is_some());
    }

    proptest! {
        #[test]
        fn any_log_is_taken_in(data in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut ana = ana();
            let _ = ana.next_command(0);
            ana.on_completion(Status::SUCCESS, &data, 0);
            let _ = ana.inaccessible(&[namespace(1, 1)]);
        }
    }
}
