//! Who owns the keys of a namespace in a pool: one target at a time, by a lease that it renews.
//!
//! ```text
//! free ──take──▶ owned, the record counts up ──given back──▶ free
//!                   │ does not count for 30 s of a candidate's clock: its owner is refused by the cluster
//!                   └──────────────────────▶ owned by the candidate
//! ```
//!
//! A lost lease does not come back: the target takes another one, over another connection (`tenure.rs`).
//!
//! The record is one object, replaced only if it is what was read: a step that the cluster makes. Clocks of different
//! machines are never compared. An owner serves for 20 s after it has *begun* the last renewal that succeeded; a candidate
//! takes over 30 s after it has *seen* a record that has not changed since. So when it does, the former owner has
//! stopped to serve what it has in memory; and what that has sent to the cluster and is still on its way is refused, since
//! the candidate has it blocklisted first.

use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ceph::Objects;
use rustix::time::{ClockId, clock_gettime};

use super::format::OWNER;

/// How long the parts of a lease are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Between renewals.
    pub(super) renew: Duration,
    /// For which an owner serves after the begin of a renewal.
    pub(super) serve: Duration,
    /// After which a candidate takes over.
    pub(super) take: Duration,
}

impl Times {
    pub(super) const USUAL: Self =
        Self { renew: Duration::from_secs(4), serve: Duration::from_secs(20), take: Duration::from_secs(30) };
}

/// CAS numbers that are set aside at a time, so that no later owner gives them again.
const CAS_STEP: u64 = 1 << 24;

/// Bytes of a record: always the same, so that all of it is compared.
const RECORD_BYTES: usize = 1024;

const TITLE: &str = "nvlane key-value owner 1";

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time since the boot, that of suspended machines included, ns.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What the object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    /// Who owns the keys, in words; nobody if it is empty.
    owner: String,
    /// By which the cluster knows the owner.
    address: String,
    /// Of this ownership.
    token: u64,
    /// Of renewals.
    count: u64,
    /// All CAS numbers that were given are below.
    cas: u64,
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        let Self { owner, address, token, count, cas } = self;
        let text =
            format!("{TITLE}\nowner {owner}\naddress {address}\ntoken {token}\ncount {count}\ncas {cas}\n");
        let mut bytes = text.into_bytes();
        bytes.resize(RECORD_BYTES, b' ');
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|_| bytes.len() == RECORD_BYTES)?;
        let mut lines = text.lines();
        lines.next().filter(|line| *line == TITLE)?;
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        Some(Self {
            owner: field("owner")?.to_owned(),
            address: field("address")?.to_owned(),
            token: field("token")?.parse().ok()?,
            count: field("count")?.parse().ok()?,
            cas: field("cas")?.parse().ok()?,
        })
    }
}

/// The lease of an owner.
pub(super) struct Lease {
    objects: Arc<Objects>,
    times: Times,
    /// By which the cluster knows this owner.
    address: String,
    record: Mutex<Record>,
    /// Until when it may serve.
    until_ns: AtomicU64,
    is_lost: AtomicBool,
    reason: Mutex<Option<String>>,
    /// The last CAS number given, and below which they may be given.
    cas_given: AtomicU64,
    cas_end: AtomicU64,
    /// The first CAS number of this ownership.
    pub(super) cas_start: u64,
    is_over: Mutex<bool>,
    ended: Condvar,
}

/// Who wants a lease.
pub(super) struct Candidate {
    /// In words.
    pub(super) name: String,
    /// Of this ownership.
    pub(super) token: u64,
    /// Whether an owner that may be dead is not waited for.
    pub(super) refuses: bool,
    /// Whether the wait for it is not worth a warning.
    pub(super) is_quiet: bool,
}

/// Why a lease was not taken.
#[derive(Debug)]
pub(super) enum NotTaken {
    Ceph(ceph::Error),
    Why(String),
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ceph(error) => error.fmt(f),
            Self::Why(why) => f.write_str(why),
        }
    }
}

impl From<ceph::Error> for NotTaken {
    fn from(error: ceph::Error) -> Self {
        Self::Ceph(error)
    }
}

impl Lease {
    /// For which the cluster refuses a former owner, s: long enough that nothing of it is on its way any more.
    pub(super) const BLOCKLIST_S: u32 = 7 * 24 * 3600;

    /// Takes the lease. Waits for the cluster, and for a while for an owner that may be dead, unless the candidate does not.
    pub(super) fn take(
        objects: &Arc<Objects>,
        candidate: &Candidate,
        times: Times,
    ) -> Result<Self, NotTaken> {
        let address = objects.cluster().address()?;
        let mut watched: Option<(Vec<u8>, u64)> = None;
        loop {
            let present = objects.read(OWNER, RECORD_BYTES)?;
            let before = match &present {
                None => Record::default(),
                Some(bytes) => Record::decode(bytes).ok_or_else(|| {
                    let name = named(OWNER);
                    NotTaken::Why(format!(
                        "the object {name} there is not that of a namespace of keys: give another namespace="
                    ))
                })?,
            };
            if let Some(bytes) = present.as_ref().filter(|_| !before.owner.is_empty()) {
                let held = format!("its keys are owned by {}", before.owner);
                let is_alive = watched.as_ref().is_some_and(|(first, _)| {
                    Record::decode(first).is_some_and(|first| first.token == before.token) && first != bytes
                });
                if candidate.refuses || is_alive {
                    let remedy = "end that target, or give another namespace=";
                    return Err(NotTaken::Why(format!("{held}: {remedy}")));
                }
                match &watched {
                    Some((first, since_ns)) if first == bytes => {
                        if now_ns().saturating_sub(*since_ns) < ns(times.take) {
                            std::thread::sleep(times.take / 16);
                            continue;
                        }
                        tracing::warn!(
                            owner = before.owner,
                            address = before.address,
                            "the owner of the keys does not renew its lease: the cluster refuses it from now on"
                        );
                        objects.cluster().blocklist(&before.address, Self::BLOCKLIST_S)?;
                    }
                    _ => {
                        let limit = times.take.as_secs();
                        if !candidate.is_quiet {
                            tracing::warn!(
                                "{held}: waiting {limit} s, after which a dead owner is known to be dead"
                            );
                        }
                        // It was like this no later than now.
                        watched = Some((bytes.clone(), now_ns()));
                        continue;
                    }
                }
            }
            let begun_ns = now_ns();
            let cas_start = before.cas + 1;
            let record = Record {
                owner: candidate.name.clone(),
                address: address.clone(),
                token: candidate.token,
                count: 0,
                cas: cas_start + CAS_STEP,
            };
            if objects.replace(OWNER, present.as_deref(), &record.encode())? {
                return Ok(Self {
                    objects: Arc::clone(objects),
                    times,
                    address,
                    until_ns: AtomicU64::new(begun_ns + ns(times.serve)),
                    is_lost: AtomicBool::new(false),
                    reason: Mutex::default(),
                    cas_given: AtomicU64::new(cas_start),
                    cas_end: AtomicU64::new(record.cas),
                    cas_start,
                    record: Mutex::new(record),
                    is_over: Mutex::new(false),
                    ended: Condvar::new(),
                });
            }
        }
    }

    /// By which the cluster knows this owner.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Whether the owner may serve what it has in memory, and send requests.
    pub(super) fn is_valid(&self) -> bool {
        now_ns() < self.until_ns.load(Ordering::SeqCst) && !self.is_lost()
    }

    /// Whether another owner has it, or the cluster refuses this one: it does not become valid again.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Why it was lost.
    pub(super) fn reason(&self) -> Option<String> {
        if self.is_lost() { lock(&self.reason).clone() } else { None }
    }

    /// It is over at once.
    pub(super) fn lose(&self, why: String) {
        let mut reason = lock(&self.reason);
        if reason.is_none() {
            tracing::error!(why, "the keys of a namespace in a cluster are served no more");
            *reason = Some(why);
        }
        self.until_ns.store(0, Ordering::Release);
        self.is_lost.store(true, Ordering::Release);
        drop(reason);
        // Whoever keeps it is between a look at this and its wait, or sees it.
        drop(lock(&self.is_over));
        self.ended.notify_all();
    }

    /// Notes that CAS numbers up to this one were given.
    pub(super) fn note_cas(&self, given: u64) {
        self.cas_given.fetch_max(given, Ordering::Relaxed);
    }

    /// Whether numbers after this one may be given.
    pub(super) fn has_cas(&self, given: u64) -> bool {
        given + CAS_STEP / 16 < self.cas_end.load(Ordering::Relaxed)
    }

    /// Renews it until it is [ended](Self::end) or lost, and calls `each` after each attempt.
    pub(super) fn keep(&self, mut each: impl FnMut()) {
        loop {
            let is_over = lock(&self.is_over);
            let goes_on = |is_over: &mut bool| !*is_over && !self.is_lost();
            let waited = self.ended.wait_timeout_while(is_over, self.times.renew, goes_on);
            let (is_over, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if *is_over || self.is_lost() {
                return;
            }
            drop(is_over);
            self.renew();
            each();
        }
    }

    /// Waits; returns whether it was [ended](Self::end) by then.
    pub(super) fn is_over_after(&self, time: Duration) -> bool {
        let waited = self.ended.wait_timeout_while(lock(&self.is_over), time, |is_over| !*is_over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn renew(&self) {
        let mut record = lock(&self.record);
        let begun_ns = now_ns();
        let mut next = Record { count: record.count + 1, ..record.clone() };
        if self.cas_given.load(Ordering::Relaxed) + CAS_STEP / 2 > next.cas {
            next.cas += CAS_STEP;
        }
        match self.objects.replace(OWNER, Some(&record.encode()), &next.encode()) {
            Ok(true) => {
                self.cas_end.store(next.cas, Ordering::Relaxed);
                *record = next;
                if !self.is_lost() && !*lock(&self.is_over) {
                    self.until_ns.store(begun_ns + ns(self.times.serve), Ordering::Release);
                }
            }
            Ok(false) => {
                let present = self.objects.read(OWNER, RECORD_BYTES).ok().flatten();
                let owner = present.and_then(|bytes| Record::decode(&bytes)).map(|present| present.owner);
                let owner = owner.filter(|owner| !owner.is_empty());
                let by = owner.map_or_else(String::new, |owner| format!(" by {owner}"));
                self.lose(format!("its keys were taken over{by}"));
            }
            Err(error @ ceph::Error::Blocklisted) => self.lose(error.to_string()),
            Err(error) => tracing::warn!(%error, "lease of keys in a cluster not renewed"),
        }
    }

    /// Ends it. If nothing of this owner is on its way to the cluster, it is given back, and the next owner need not wait.
    /// Waits for the cluster.
    pub(super) fn end(&self, gives_back: impl FnOnce() -> bool) {
        *lock(&self.is_over) = true;
        self.ended.notify_all();
        let record = lock(&self.record);
        // From here on nothing is sent any more.
        let until_ns = self.until_ns.swap(0, Ordering::SeqCst);
        if !gives_back() || self.is_lost() || until_ns == 0 {
            return;
        }
        let free =
            Record { cas: self.cas_given.load(Ordering::Relaxed).max(self.cas_start), ..Record::default() };
        if let Err(error) = self.objects.replace(OWNER, Some(&record.encode()), &free.encode()) {
            tracing::warn!(%error, "lease of keys in a cluster not given back: the next owner waits for its end");
        }
    }
}

fn named(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let record =
            Record { owner: "host, process 1".into(), address: "[v2:1]".into(), token: 3, count: 4, cas: 5 };
        assert_eq!(Record::decode(&record.encode()), Some(record.clone()));
        assert_eq!(Record::decode(&Record::default().encode()), Some(Record::default()));
        assert_eq!(Record::decode(&record.encode()[1..]), None);
        assert_eq!(Record::decode(&[b'x'; RECORD_BYTES]), None);
    }
}
