//! Requests to all partitions of a listener: their sum, and the answer to the client.

use crate::binary_response as response;
use crate::collective::CollectiveRequest;
use crate::command::Header;
use crate::connection_stats::{ConnectionStats, for_each_connection_stat};
use crate::counters::PartitionStats;
use crate::output::Output;
use crate::refusal::RefusalForm;
use crate::router::Router;
use kv::{MemoryLimit, Settings};

/// The unit of `cache_memlimit`, bytes.
const MEBIBYTE: u64 = 1 << 20;
/// The largest number of mebibytes that is not taken for one of bytes, as in memcached.
const LIMIT_MEGABYTES_MAX: u64 = 1_000_000_000;
/// The answer to a memory limit that the system refuses, or that no partition can have.
const NO_LIMIT: &[u8] = b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";

/// Answers of all partitions to one request.
pub(crate) struct Collecting {
    /// Number of partitions, or reactors, that have not answered.
    pub(crate) left: usize,
    pub(crate) sum: PartitionStats,
    pub(crate) asked: AllRequest,
}

/// A request to all partitions.
pub(crate) enum AllRequest {
    Flush { binary: Option<Header>, is_quiet: bool },
    Stats { of: Vec<u8>, binary: Option<Header> },
    ResetStats { binary: Option<Header> },
    Limit { megabytes: u64, is_quiet: bool, is_set: bool },
    Connections { found: Vec<ConnectionStats>, binary: Option<Header> },
}

impl AllRequest {
    /// The request that follows, once all partitions have answered this one: memory is changed only if no partition
    /// needs more.
    pub(crate) fn next(&self, stats: &PartitionStats) -> Option<(Self, CollectiveRequest)> {
        let &Self::Limit { megabytes, is_quiet, is_set: false } = self else { return None };
        let bytes = megabytes.saturating_mul(MEBIBYTE);
        let is_enough = bytes >= stats.needed_bytes.min(stats.limit_bytes);
        let next = Self::Limit { megabytes, is_quiet, is_set: true };
        is_enough.then_some((next, CollectiveRequest::SetMemory { bytes }))
    }
}

impl Collecting {
    /// Awaits the answers of `left` partitions to `asked`.
    pub(crate) fn new(left: usize, asked: AllRequest) -> Box<Self> {
        Box::new(Self { left, sum: PartitionStats::default(), asked })
    }
}

/// The reason why partitions cannot have this memory, whatever they hold.
pub(crate) fn limit_refusal(megabytes: u64, partition_count: usize) -> Option<String> {
    let megabytes_min =
        (Settings::MEMORY_BYTES_MIN as u64).saturating_mul(partition_count as u64).div_ceil(MEBIBYTE);
    if megabytes < megabytes_min {
        let text = format!("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than {megabytes_min}m\r\n");
        return Some(text);
    }
    if megabytes > LIMIT_MEGABYTES_MAX {
        return Some("MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n".into());
    }
    let is_too_much = megabytes.saturating_mul(MEBIBYTE) > MemoryLimit::bytes_max(partition_count);
    is_too_much.then(|| String::from_utf8_lossy(NO_LIMIT).into_owned())
}

/// Appends the answer to a request to all partitions.
pub(crate) fn push_collected(
    router: &mut impl Router,
    stats: &PartitionStats,
    asked: &mut AllRequest,
    out: &mut Output,
) {
    let out = out.bytes_mut();
    match asked {
        AllRequest::Flush { binary, is_quiet } if let Some(refusal) = stats.refusal => {
            let form = match binary {
                Some(header) => RefusalForm::Binary(*header),
                None if *is_quiet => RefusalForm::None,
                None => RefusalForm::Line,
            };
            form.write(refusal, out);
        }
        AllRequest::Flush { is_quiet: true, .. } => {}
        AllRequest::Flush { binary: Some(header), .. } => {
            response::respond(out, *header, response::SUCCESS, &[], &[], &[], 0);
        }
        AllRequest::Flush { binary: None, .. } => out.extend_from_slice(b"OK\r\n"),
        AllRequest::ResetStats { binary: Some(header) } => {
            response::respond(out, *header, response::SUCCESS, &[], &[], &[], 0);
        }
        AllRequest::ResetStats { binary: None } => out.extend_from_slice(b"RESET\r\n"),
        AllRequest::Limit { is_quiet: true, .. } => {}
        AllRequest::Limit { is_set: false, .. } => {
            let answer =
                format!("MEMLIMIT_ADJUST_FAILED {} bytes are in use and not evicted\r\n", stats.needed_bytes);
            out.extend_from_slice(answer.as_bytes());
        }
        AllRequest::Limit { megabytes, .. } if stats.limit_bytes.div_ceil(MEBIBYTE) == *megabytes => {
            out.extend_from_slice(b"OK\r\n");
        }
        AllRequest::Limit { .. } => out.extend_from_slice(NO_LIMIT),
        AllRequest::Stats { of, binary } => {
            let listener = router.listener_stats();
            let each = |name: &str, value: &str| push_stat(name, value, *binary, out);
            let is_known = router.executor().for_each_stat(of, stats, &listener, each);
            match binary {
                None if !is_known => out.extend_from_slice(b"ERROR\r\n"),
                Some(header) if !is_known => response::refuse(out, *header, response::NOT_FOUND),
                _ => end_stats(*binary, out),
            }
        }
        AllRequest::Connections { found, binary } => {
            let each = |name: &str, value: &str| push_stat(name, value, *binary, out);
            found.sort_unstable_by_key(|connection| connection.number);
            for_each_connection_stat(&router.listeners(), found, each);
            end_stats(*binary, out);
        }
    }
}

/// Appends one statistic.
fn push_stat(name: &str, value: &str, binary: Option<Header>, out: &mut Vec<u8>) {
    match binary {
        Some(header) => {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            response::respond(out, header, response::SUCCESS, &[], name, value, 0);
        }
        None => {
            for piece in ["STAT ", name, " ", value, "\r\n"] {
                out.extend_from_slice(piece.as_bytes());
            }
        }
    }
}

/// Appends the end of statistics.
fn end_stats(binary: Option<Header>, out: &mut Vec<u8>) {
    match binary {
        Some(header) => response::respond(out, header, response::SUCCESS, &[], &[], &[], 0),
        None => out.extend_from_slice(b"END\r\n"),
    }
}
