//! Discovery logs, and text from the target that a terminal must not interpret.

use wire::discovery::{DiscoveryEntry, DiscoveryHeader};

use super::prelude::*;

/// Answers each read of the discovery log from a log built for it.
fn with_log(name: &str, make: impl Fn(&Session<'_>, u64) -> Vec<u8> + Send + Sync + 'static) -> Case {
    let count = std::sync::atomic::AtomicU64::new(0);
    case(
        name,
        Right::Ends,
        Box::new(move |session, event| {
            let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
            let is_log = sqe.opcode == AdminOpcode::GET_LOG_PAGE.raw()
                && GetLogPage::from_sqe(sqe).lid == Lid::DISCOVERY;
            if session.controller.qid != Some(0) || !is_log {
                return Ok(Then::AsUsual);
            }
            let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            holds(number < 20_000, "the host reads and reads")?;
            let log = make(session, number);
            answer_log(session, sqe, &log)
        }),
    )
    .every_time()
    .discovering()
}

/// [`with_log`], where each log is a valid one with this change.
fn with_change(name: &str, change: fn(&mut [u8], u64)) -> Case {
    with_log(name, move |session, number| {
        let mut log = session.stage.state().discovery_log();
        change(&mut log, number);
        log
    })
}

pub(super) fn discovery() -> Check<Vec<Case>> {
    let referral = |session: &Session<'_>| {
        let stage = session.stage;
        let nqn = wire::nqn::Nqn::discovery();
        let mut entry = DiscoveryEntry::tcp(stage.address.ip(), stage.address.port(), &nqn);
        entry.subtype = wire::discovery::SubsystemType::REFERRAL;
        entry
    };
    Ok(vec![
        with_change("NUMREC of 64 bits", |log, _| log[8..16].fill(0xFF)),
        with_change("RECFMT 9", |log, _| log[16] = 9),
        with_change("another generation each time", |log, number| {
            log[..8].copy_from_slice(&number.to_le_bytes());
        }),
        with_change("texts without an end", |log, _| {
            log[1024 + 32..1024 + 64].fill(b'9');
            log[1024 + 256..1024 + 512].fill(b'n');
            log[1024 + 512..1024 + 768].fill(b'a');
        }),
        with_log("a referral to itself", move |session, _| {
            [DiscoveryHeader::new(1, 1).as_bytes(), referral(session).as_bytes()].concat()
        }),
        with_log("referrals without end", move |session, number| {
            // Each entry leads to another address of this machine, where the same target answers.
            let stage = session.stage;
            let mut log = DiscoveryHeader::new(1, 64).as_bytes().to_vec();
            for index in 0..64_u64 {
                let mut entry = referral(session);
                let low = u8::try_from((number + index) % 250 + 1).expect("small");
                if stage.address.is_ipv4() {
                    let _ = entry.set_address(&format!("127.0.{}.{low}", (number / 250) % 250));
                }
                log.extend_from_slice(entry.as_bytes());
            }
            log
        }),
    ])
}

pub(super) fn escapes() -> Check<Vec<Case>> {
    const HOSTILE: &[u8] = b"\x1b[2J\x1b]0;owned\x07\r\n%s";
    // Bidirectional overrides, line and paragraph separators, zero-width characters, C1 controls, invalid UTF-8.
    const HIDDEN: &[u8] = "\u{202e}\u{2028}\u{2029}\u{200b}\u{9b}2J \" cntlid=1\n\u{feff}".as_bytes();
    let names = with_page("model and serial number", Right::Ends, Cns::CONTROLLER, |session| {
        let mut page = session.identify_controller().as_bytes().to_vec();
        page[4..4 + HOSTILE.len()].copy_from_slice(HOSTILE);
        page[24..24 + HIDDEN.len()].copy_from_slice(HIDDEN);
        page[64..72].copy_from_slice(b"\xff\xc3\x28\xe2\x80\xae1\0");
        page
    });
    let log = with_change("a discovery log", |log, _| {
        log[1024 + 256..1024 + 256 + HOSTILE.len()].copy_from_slice(HOSTILE);
        log[1024 + 512..1024 + 512 + HOSTILE.len()].copy_from_slice(HOSTILE);
    });
    let hidden = with_change("a discovery log that hides text", |log, _| {
        for at in [1024 + 32, 1024 + 256, 1024 + 512] {
            let length = if at == 1024 + 32 { HIDDEN.len().min(32) } else { HIDDEN.len() };
            log[at..at + length].copy_from_slice(&HIDDEN[..length]);
        }
    });
    Ok(vec![names, log, hidden])
}
