//! The requests that the error filters of the second namespace may fail: requests of their kinds, and no more of them
//! than they have counted. Each life of the namespace has filters of its own, which count from the beginning.

use linux::random::SplitMix64;
use store::{Fault, FaultKind, FaultRate, Filter, Kind as RequestKind, Spec};
use wire::status::Status;

use super::command::Kind;
use crate::coverage::Requests;
use crate::finding::Finding;
use crate::shared::network::Network;

/// The error filters of the second namespace.
#[derive(Debug, Default)]
pub(super) struct Filters {
    /// Each with the requests that it has failed at most in earlier lives of the namespace.
    faults: Vec<(Fault, u64)>,
    /// Requests that had come to their end when the present life began.
    ended: Requests,
}

/// Requests of those that a filter has counted which it fails.
fn hit_count(fault: &Fault, count: u64) -> u64 {
    match fault.rate {
        FaultRate::Every(each) => count / each,
        FaultRate::PerMillion(share) => {
            let is_hit = |number: &u64| SplitMix64::nth(fault.seed, *number) % 1_000_000 < share.into();
            (1..=count).filter(is_hit).count() as u64
        }
    }
}

/// The status of a request that a filter has failed.
fn status_of(fault: &Fault) -> Status {
    match (fault.error, fault.kind) {
        (FaultKind::Unreachable, _) => Status::INTERNAL_PATH_ERROR,
        (_, Some(RequestKind::Read)) => Status::UNRECOVERED_READ_ERROR,
        _ => Status::WRITE_FAULT,
    }
}

impl Filters {
    pub(super) fn new(spec: Option<&str>) -> Self {
        let spec: Option<Spec> = spec.map(|spec| spec.parse().expect("a specification"));
        let filters = spec.into_iter().flat_map(|spec| spec.filters);
        let fault = |filter| if let Filter::Error(fault) = filter { Some((fault, 0)) } else { None };
        Self { faults: filters.filter_map(fault).collect(), ended: Requests::default() }
    }

    /// Whether a filter may fail a command with this status.
    pub(super) fn may_fail(&self, kind: &Kind, status: Status) -> bool {
        let meets = |fault: &Fault| {
            let requests = kind.requests();
            let is_met = fault.kind.map_or(!requests.is_empty(), |kind| requests.contains(&kind));
            is_met && status.is(status_of(fault))
        };
        self.faults.iter().any(|(fault, _)| meets(fault))
    }
}

impl Filters {
    /// The second namespace begins a new life.
    pub(super) fn renew(&mut self, network: &Network) {
        if self.faults.is_empty() {
            return;
        }
        let (all, open) = requests(network);
        // Commands that are not answered may cause requests in the new life as well.
        let mut ended = Requests::default();
        ended.add(&all);
        ended.remove(&open);
        for (fault, failed_count_max) in &mut self.faults {
            *failed_count_max += hit_count(fault, all.asked_beyond(&self.ended, fault.kind));
        }
        self.ended = ended;
    }

    /// Whether the filters have failed as many requests as they may.
    pub(super) fn check(&self, network: &Network) -> Result<(), Finding> {
        let (all, _) = requests(network);
        for (fault, failed_count_max) in &self.faults {
            let asked_count = all.asked_beyond(&self.ended, fault.kind);
            let failed_count_max = failed_count_max + hit_count(fault, asked_count);
            let status = status_of(fault);
            let failed_count = all.failed(status);
            if failed_count > failed_count_max {
                return Err(format!(
                    "{failed_count} commands ended with {status}, and a filter fails {failed_count_max} requests: {fault:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Requests to the second namespace so far, and those of commands that are not answered.
fn requests(network: &Network) -> (Requests, Requests) {
    let (mut all, mut open) = (Requests::default(), Requests::default());
    for connection in &network.connections {
        all.add(connection.requests());
        if connection.closed == [false; 2] {
            open.add(&connection.open_requests());
        }
    }
    (all, open)
}
