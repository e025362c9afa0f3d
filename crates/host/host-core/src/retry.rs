//! Retries of commands that ended with a status. wire §17, §19
//!
//! | Status, without Do Not Retry | Action of the lane |
//! |---|---|
//! | ANA inaccessible (0x302), ANA transition (0x303), namespace not ready (0x082) | holds any command, reads the ANA log again |
//! | every other path status (type 3, but for 0x301) | holds any command but one of [`Class::Other`] |
//! | command interrupted (0x021), transient transport error (0x022), media not ready (0x024) | submits again, a few times, any command but one of [`Class::Other`] |
//! | internal error (0x006) | submits again, a few times, commands that change nothing or write the same data again |
//! | ANA persistent loss (0x301), every other status, and any with Do Not Retry | ends the command |
//!
//! A command held for a path status is submitted again with growing delays until
//! `Tuning::path_timeout` has passed since its first such status. While the ANA log says
//! that the namespace is inaccessible, or that its state changes, its commands are held without being sent.
//!
//! A retry is safe because the controller has completed the command: it cannot be executed later. The three statuses of
//! the first row also state that the controller did not start to execute it, so commands that are not idempotent may be
//! repeated too. A held write has not completed, so no Flush covers it.
//!
//! After an internal error the command may have been executed, in part or as a whole. So these are not repeated:
//!
//! - Flush: where a flush fails, later ones may succeed although data is lost, so its failure is the caller's to know;
//! - a key-value Delete: after one that was executed, the next finds no key;
//! - [`Class::Other`]: Compare-and-write, Copy, key-value Store with conditions, anything raw.
//!
//! A media error ends its command: the controller has tried to recover the data before it returns one.

use wire::opcode::KvOpcode;
use wire::status::{Status, StatusKind};

use crate::reconnect::Class;

const MS: u64 = 1_000_000;

/// Delay before the first retry after a path status, ns; it doubles with each retry.
const PATH_DELAY_NS_FIRST: u64 = 10 * MS;

/// Maximum delay between two retries after a path status, ns.
const PATH_DELAY_NS_MAX: u64 = 1_000 * MS;

/// Delay before the second retry after a transient status, ns; the first is immediate.
const TRANSIENT_DELAY_NS_FIRST: u64 = MS;

/// Maximum delay before a retry that a controller can request (CRDT), ns.
const ASKED_DELAY_NS_MAX: u64 = 10_000 * MS;

/// What happens to a command that ended with a status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The command ends.
    End,
    /// The command is submitted again, a limited number of times.
    Repeat,
    /// The namespace cannot be reached at present: the command is held for a limited time.
    Hold,
}

/// Decides about a command of this class and opcode that ended with this status.
pub(crate) fn verdict(status: Status, class: Class, opcode: u8) -> Verdict {
    if status.dnr() || status.is(Status::ANA_PERSISTENT_LOSS) {
        return Verdict::End;
    }
    let is_one_of = |codes: &[Status]| codes.iter().any(|code| status.is(*code));
    if is_one_of(&[Status::ANA_INACCESSIBLE, Status::ANA_TRANSITION, Status::NAMESPACE_NOT_READY]) {
        return Verdict::Hold;
    }
    let transient =
        [Status::COMMAND_INTERRUPTED, Status::TRANSIENT_TRANSPORT_ERROR, Status::ADMIN_MEDIA_NOT_READY];
    match class {
        Class::Other => Verdict::End,
        _ if status.kind() == StatusKind::Path => Verdict::Hold,
        _ if is_one_of(&transient) => Verdict::Repeat,
        // No opcode of block namespaces has the number of Delete.
        Class::ReadOnly | Class::Idempotent if KvOpcode::from_raw(opcode) != KvOpcode::DELETE => {
            if status.is(Status::INTERNAL_ERROR) { Verdict::Repeat } else { Verdict::End }
        }
        _ => Verdict::End,
    }
}

/// Whether this status contradicts the ANA state that the host has of the namespace.
pub(crate) fn is_of_ana(status: Status) -> bool {
    status.is(Status::ANA_INACCESSIBLE) || status.is(Status::ANA_TRANSITION)
}

/// The seed that spreads the retries of the command `sequence`. A Submit directly follows the command that waits for it,
/// and must not be repeated before it.
pub(crate) fn spread_of(opcode: u8, sequence: u32) -> u32 {
    match KvOpcode::from_raw(opcode) {
        KvOpcode::BATCH_SUBMIT | KvOpcode::RETRIEVE_SUBMIT | KvOpcode::STORE_SUBMIT => {
            sequence.wrapping_sub(1)
        }
        _ => sequence,
    }
}

/// Delay before the next retry, ns. `asked_ms` are the controller's retry delays by CRD; `spread` spreads the retries of
/// many commands.
pub(crate) fn delay_ns(
    status: Status,
    verdict: Verdict,
    retry_count: u8,
    asked_ms: [u32; 3],
    spread: u32,
) -> u64 {
    let index = usize::from(status.crd()).checked_sub(1);
    if let Some(&asked_ms) = index.and_then(|index| asked_ms.get(index))
        && asked_ms > 0
    {
        return (u64::from(asked_ms) * MS).min(ASKED_DELAY_NS_MAX);
    }
    let doubled = |first: u64, count: u8| first.saturating_mul(1 << count.min(20)).min(PATH_DELAY_NS_MAX);
    match (verdict, retry_count) {
        (Verdict::Repeat, 0) => 0,
        (Verdict::Repeat, count) => doubled(TRANSIENT_DELAY_NS_FIRST, count - 1),
        (_, count) => {
            let whole_ns = doubled(PATH_DELAY_NS_FIRST, count);
            // Jitter, 50 to 100 % of the delay, by a hash of the command's number.
            let share = u64::from(spread.wrapping_mul(0x9e37_79b1) >> 16);
            whole_ns / 2 + (whole_ns / 2) * share / 0xffff
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::opcode::NvmOpcode;

    fn verdict(status: Status, class: Class) -> Verdict {
        super::verdict(status, class, NvmOpcode::READ.raw())
    }

    #[test]
    fn internal_errors_are_repeated_where_the_first_execution_changes_nothing() {
        let verdict = |class, opcode| super::verdict(Status::INTERNAL_ERROR, class, opcode);
        assert_eq!(verdict(Class::ReadOnly, NvmOpcode::READ.raw()), Verdict::Repeat);
        assert_eq!(verdict(Class::ReadOnly, NvmOpcode::COMPARE.raw()), Verdict::Repeat);
        assert_eq!(verdict(Class::Idempotent, NvmOpcode::WRITE.raw()), Verdict::Repeat);
        assert_eq!(verdict(Class::Idempotent, KvOpcode::STORE.raw()), Verdict::Repeat);
        assert_eq!(verdict(Class::Idempotent, KvOpcode::DELETE.raw()), Verdict::End);
        assert_eq!(verdict(Class::Flush, NvmOpcode::FLUSH.raw()), Verdict::End);
        assert_eq!(verdict(Class::Other, NvmOpcode::COPY.raw()), Verdict::End);
        let with_dnr = Status::INTERNAL_ERROR.with_dnr();
        assert_eq!(super::verdict(with_dnr, Class::ReadOnly, NvmOpcode::READ.raw()), Verdict::End);
    }

    #[test]
    fn path_statuses_are_held_and_others_are_not() {
        use Class::{Flush, Idempotent, Other, ReadOnly};
        for class in [ReadOnly, Idempotent, Flush] {
            for code in [0x082, 0x300, 0x302, 0x303, 0x360, 0x370, 0x371] {
                assert_eq!(verdict(Status::from_code(code), class), Verdict::Hold, "{code:#x}");
                assert_eq!(verdict(Status::from_code(code).with_dnr(), class), Verdict::End, "{code:#x}");
            }
            for code in [0x021, 0x022, 0x024] {
                assert_eq!(verdict(Status::from_code(code), class), Verdict::Repeat, "{code:#x}");
            }
            for code in [0x00B, 0x080, 0x083, 0x281, 0x285, 0x301, 0x700] {
                assert_eq!(verdict(Status::from_code(code), class), Verdict::End, "{code:#x}");
            }
        }
        for code in [0x082, 0x302, 0x303] {
            assert_eq!(
                verdict(Status::from_code(code), Other),
                Verdict::Hold,
                "it did not execute: {code:#x}"
            );
        }
        for code in [0x021, 0x022, 0x300, 0x360] {
            assert_eq!(verdict(Status::from_code(code), Other), Verdict::End, "it may have: {code:#x}");
        }
    }

    #[test]
    fn both_commands_of_a_batch_wait_equally_long() {
        let delay = |opcode: KvOpcode, sequence, count| {
            let spread = spread_of(opcode.raw(), sequence);
            delay_ns(Status::NAMESPACE_NOT_READY, Verdict::Hold, count, [0; 3], spread)
        };
        for (sequence, count) in (0..100).zip((0..5).cycle()) {
            let (collect, submit) = (KvOpcode::BATCH_COLLECT, KvOpcode::BATCH_SUBMIT);
            assert_eq!(delay(collect, sequence, count), delay(submit, sequence + 1, count));
        }
    }

    #[test]
    fn delays_grow_and_are_bounded_and_the_controllers_own_go_first() {
        let path = |count| delay_ns(Status::INTERNAL_PATH_ERROR, Verdict::Hold, count, [0; 3], 7);
        assert!((5 * MS..=10 * MS).contains(&path(0)) && (10 * MS..=20 * MS).contains(&path(1)));
        assert!((500 * MS..=1000 * MS).contains(&path(u8::MAX)));
        let repeat = |count| delay_ns(Status::COMMAND_INTERRUPTED, Verdict::Repeat, count, [0; 3], 7);
        assert_eq!([repeat(0), repeat(1), repeat(2), repeat(u8::MAX)], [0, MS, 2 * MS, 1000 * MS]);
        let asked = |crd| {
            let status = Status::COMMAND_INTERRUPTED.with_crd(crd);
            delay_ns(status, Verdict::Repeat, 3, [100, 0, 60_000], 7)
        };
        assert_eq!([asked(1), asked(2), asked(3)], [100 * MS, 4 * MS, 10_000 * MS]);
        let spread = |sequence| delay_ns(Status::INTERNAL_PATH_ERROR, Verdict::Hold, 0, [0; 3], sequence);
        assert!((1..50).any(|sequence| spread(sequence) != spread(0)));
    }
}
