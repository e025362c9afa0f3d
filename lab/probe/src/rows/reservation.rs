//! Section 11: reservations, and I/O under them (N11). A target without reservations must support none of their
//! commands.

use peer::raw_host::RawHost;
use wire::reservation::{
    AcquireAction, AcquireCommand, AcquireData, RegisterAction, RegisterCommand, RegisterData, ReleaseAction,
    ReleaseCommand, ReleaseData, Report, ReportCommand, ReservationType,
};

use super::prelude::*;
use crate::target::Settings;

pub(super) const ROWS: &[TargetRow] = &[
    row("V1", registrants),
    row("V2", short_reports),
    row("V3", preempts),
    row("V4", |peer| unless_there(peer, "the target cannot be killed from here")),
    row("V5", |peer| unless_there(peer, "the target's files cannot be changed from here")),
    row("V6", |peer| unless_there(peer, "a target does not report the capacity of its log")),
];

/// The key of host number `number`.
const fn key(number: u32) -> u64 {
    0x5052_4F42_0000_0001 + number as u64
}

/// Whether the target supports reservations; if not, it must support none of their commands.
fn is_there(peer: &Target) -> Check<bool> {
    if peer.identify.oncs().contains(Oncs::RESERVATIONS) {
        return Ok(true);
    }
    let disk = peer.disk()?;
    let mut io = peer.io(Digests::empty())?;
    let (nsid, data) = (disk.nsid, [0_u8; 16]);
    let register = RegisterCommand::default().with_action(RegisterAction::REGISTER).to_sqe(nsid);
    let acquire = AcquireCommand::default().with_action(AcquireAction::PREEMPT).to_sqe(nsid);
    let release = ReleaseCommand::default().with_action(ReleaseAction::CLEAR).to_sqe(nsid);
    let report = ReportCommand { length_bytes: 4096, extended: true }.to_sqe(nsid);
    for (what, sqe, moves) in [
        ("Register", register, Move::InCapsule(&data)),
        ("Acquire", acquire, Move::InCapsule(&data)),
        ("Release", release, Move::InCapsule(&data[..8])),
        ("Report", report, Move::Back(4096)),
    ] {
        io.must_end(sqe, moves, &[Status::INVALID_OPCODE]).about(format!("{what} without reservations"))?;
    }
    io.must(disk.read(0, 1), Move::Back(disk.block_bytes)).about("a read afterwards")?;
    Ok(false)
}

fn unless_there(peer: &Target, why: &str) -> Check {
    if is_there(peer)? { skipped(why) } else { Ok(()) }
}

/// The target as seen by another host.
fn as_host(peer: &Target, number: u32) -> Target {
    let mut bytes = [0x52; 16];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    let uuid = Uuid::from_bytes(bytes);
    let host = RawHost { nqn: Nqn::from_uuid(uuid), hostid: HostId::from(uuid), ..peer.host().clone() };
    let settings = Settings { host, ..peer.settings.clone() };
    Target { settings, ..peer.clone() }
}

/// One host's queue to the namespace.
struct Host {
    io: Queue,
    nsid: Nsid,
    key: u64,
}

impl Host {
    fn new(peer: &Target, disk: Disk, number: u32) -> Check<Self> {
        let io = as_host(peer, number).io(Digests::empty()).about(format!("host {number}"))?;
        Ok(Self { io, nsid: disk.nsid, key: key(number) })
    }

    fn register(&mut self, action: RegisterAction) -> Check<Answer> {
        let command = RegisterCommand::default().with_action(action).with_ignore_existing_key(true);
        let data = RegisterData { crkey: self.key.into(), nrkey: self.key.into() };
        self.io.run(command.to_sqe(self.nsid), Move::InCapsule(data.as_bytes()))
    }

    fn acquire(&mut self, action: AcquireAction, kind: ReservationType, other: u64) -> Check<Answer> {
        let command = AcquireCommand::default().with_action(action).with_kind(kind);
        let data = AcquireData { crkey: self.key.into(), prkey: other.into() };
        self.io.run(command.to_sqe(self.nsid), Move::InCapsule(data.as_bytes()))
    }

    /// Removes all registrations and the reservation.
    fn clear(&mut self) -> Check {
        expect_status(&self.register(RegisterAction::REGISTER)?, &[Status::SUCCESS]).about("Register")?;
        let command = ReleaseCommand::default().with_action(ReleaseAction::CLEAR);
        let data = ReleaseData { crkey: self.key.into() };
        self.io.must(command.to_sqe(self.nsid), Move::InCapsule(data.as_bytes())).about("Clear").map(drop)
    }

    fn report(&mut self, room: u32) -> Check<Answer> {
        let sqe = ReportCommand { length_bytes: room.into(), extended: true }.to_sqe(self.nsid);
        self.io.run(sqe, Move::Back(room)).about(format!("Report into {room} bytes"))
    }
}

fn registrants(peer: &Target) -> Check {
    if !is_there(peer)? {
        return Ok(());
    }
    let disk = peer.scratch()?;
    let mut first = Host::new(peer, disk, 0)?;
    first.clear()?;
    let mut accepted = 0_usize;
    for number in 1..=1000 {
        let answer = Host::new(peer, disk, number)?.register(RegisterAction::REGISTER)?;
        expect_status(&answer, &[Status::SUCCESS, Status::INVALID_FIELD])
            .about(format!("registrant {number}"))?;
        if !answer.status().is_success() {
            break;
        }
        accepted += 1;
    }
    holds(accepted >= 1, "no host can register")?;
    let answer = first.report(64 + 1001 * 64)?;
    let Some(report) = Report::new(&answer.data, true) else { return differs("a report that is none") };
    let count = report.registrants().count();
    holds(count == accepted, format!("{count} registrants are reported, {accepted} were accepted"))?;
    first.clear()
}

fn short_reports(peer: &Target) -> Check {
    if !is_there(peer)? {
        return Ok(());
    }
    let disk = peer.scratch()?;
    let mut host = Host::new(peer, disk, 0)?;
    host.clear()?;
    expect_status(&host.register(RegisterAction::REGISTER)?, &[Status::SUCCESS])?;
    let whole = host.report(4096)?;
    expect_status(&whole, &[Status::SUCCESS])?;
    for room in [4, 20, 24, 28, 64, 68, 124, 128] {
        let answer = host.report(room)?;
        if answer.status().is_success() {
            holds(whole.data.starts_with(&answer.data), format!("another report in {room} bytes"))?;
        } else {
            expect_status(&answer, &[Status::INVALID_FIELD, Status::DATA_SGL_LENGTH_INVALID])?;
        }
    }
    host.clear()
}

fn preempts(peer: &Target) -> Check {
    if !is_there(peer)? {
        return Ok(());
    }
    let disk = peer.scratch()?;
    let (mut holder, mut victim) = (Host::new(peer, disk, 0)?, Host::new(peer, disk, 1)?);
    holder.clear()?;
    let blocks = disk.asked_blocks();
    disk.put(&mut holder.io, 0, blocks, 0xB1)?;
    for host in [&mut holder, &mut victim] {
        expect_status(&host.register(RegisterAction::REGISTER)?, &[Status::SUCCESS])?;
    }
    let kind = ReservationType::WRITE_EXCLUSIVE;
    for other in [0, key(77), u64::MAX] {
        let answer = holder.acquire(AcquireAction::PREEMPT, kind, other)?;
        let rights = [Status::RESERVATION_CONFLICT, Status::INVALID_FIELD];
        expect_status(&answer, &rights).about(format!("Preempt of key {other:#x}"))?;
    }
    let data = disk.fill(blocks, 0xB2);
    let cid = victim.io.submit(disk.write(0, blocks), Move::Asked(&data))?;
    let Step::Wants(window) = victim.io.step(cid)? else { return skipped("no R2T for a write") };
    expect_status(&holder.acquire(AcquireAction::ACQUIRE, kind, 0)?, &[Status::SUCCESS]).about("Acquire")?;
    let answer = holder.acquire(AcquireAction::PREEMPT_AND_ABORT, kind, victim.key)?;
    expect_status(&answer, &[Status::SUCCESS]).about("Preempt and Abort")?;
    // The data arrives late: the write must not be executed.
    victim.io.serve(&window, &data)?;
    if let Ok(answer) = victim.io.finish(cid, &data) {
        holds(!answer.status().is_success(), "a write succeeds after its host was preempted")?;
    }
    disk.holds(&mut holder.io, 0, blocks, 0xB1).about("after a Preempt")?;
    holder.clear()
}

/// N11: the I/O that each host may do under each reservation type.
pub(super) fn conflicts(peer: &Target) -> Check {
    if !is_there(peer)? {
        return Ok(());
    }
    let disk = peer.scratch()?;
    let mut hosts = [Host::new(peer, disk, 0)?, Host::new(peer, disk, 1)?, Host::new(peer, disk, 2)?];
    hosts[0].clear()?;
    for (kind, keeps_readers_out, lets_registrants_in) in [
        (ReservationType::WRITE_EXCLUSIVE, false, false),
        (ReservationType::EXCLUSIVE_ACCESS, true, false),
        (ReservationType::WRITE_EXCLUSIVE_REGISTRANTS, false, true),
        (ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS, true, true),
        (ReservationType::WRITE_EXCLUSIVE_ALL, false, true),
        (ReservationType::EXCLUSIVE_ACCESS_ALL, true, true),
    ] {
        for host in &mut hosts[..2] {
            expect_status(&host.register(RegisterAction::REGISTER)?, &[Status::SUCCESS])?;
        }
        expect_status(&hosts[0].acquire(AcquireAction::ACQUIRE, kind, 0)?, &[Status::SUCCESS]).about(kind)?;
        let data = disk.fill(1, 0xB3);
        for (host, who) in hosts.iter_mut().zip(["the holder", "a registrant", "anyone else"]) {
            let is_in = who == "the holder" || who == "a registrant" && lets_registrants_in;
            let right =
                |is_free: bool| if is_free { [Status::SUCCESS] } else { [Status::RESERVATION_CONFLICT] };
            let what = |verb: &str| format!("{verb} by {who} under {kind}");
            let read = Move::Back(disk.block_bytes);
            host.io
                .must_end(disk.read(0, 1), read, &right(is_in || !keeps_readers_out))
                .about(what("Read"))?;
            host.io.must_end(disk.write(0, 1), disk.bring(&data), &right(is_in)).about(what("Write"))?;
            let zeroes: Sqe = Sqe::write_zeroes(disk.nsid, 1, 1, false);
            if peer.identify.oncs().contains(Oncs::WRITE_ZEROES) {
                host.io.must_end(zeroes, Move::None, &right(is_in)).about(what("Write Zeroes"))?;
            }
        }
        hosts[0].clear()?;
    }
    Ok(())
}
