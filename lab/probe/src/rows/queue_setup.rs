//! Section 7: Connect, queues, properties, discovery.

use peer::raw_host::property;
use wire::discovery::{DISCOVERY_RECORD_BYTES, DiscoveryLog};
use wire::fabrics::{ConnectCommand, PropertySet};
use wire::feature::NumberOfQueues;
use wire::identify::namespace::IdentifyNamespace;
use wire::property::ShutdownNotification;

use super::prelude::*;
use crate::target::expect_parameter;

pub(super) const ROWS: &[TargetRow] = &[
    row("Q1", data_lengths),
    row("Q2", names),
    row("Q3", formats),
    row("Q4", queue_sizes),
    row("Q5", queue_ids),
    row("Q6", connect_twice),
    row("Q7", strangers),
    row("Q8", no_hostid),
    row("Q9", keep_alive_times),
    row("Q10", ends_within_connect),
    row("Q11", properties),
    row("Q12", reset_under_way),
    row("Q13", removed_under_way),
    row("Q14", log_offsets),
    row("Q15", queue_counts),
    row("Q16", disconnect),
    row("Q17", discovery_io),
];

/// Sends a Connect on a new connection.
fn connect(peer: &Target, command: &ConnectCommand, data: &[u8]) -> Check<(Queue, Answer)> {
    let mut queue = peer.host().queue(Digests::empty())?;
    let answer = queue.run(command.to_sqe(), Move::InCapsule(data))?;
    Ok((queue, answer))
}

fn data_lengths(peer: &Target) -> Check {
    let data = peer.host().connect_data(Cntlid::DYNAMIC);
    let sqe = peer.host().connect_command(0, ENTRIES).to_sqe();
    let long = [data.as_bytes(), &[0; 1024]].concat();
    for length in [4, 512, 1020, 1028, 2048] {
        let mut queue = peer.host().queue(Digests::empty())?;
        let rights = [Status::DATA_SGL_LENGTH_INVALID];
        queue.must_end(sqe, Move::InCapsule(&long[..length]), &rights).about(format!("{length} bytes"))?;
    }
    let mut queue = peer.host().queue(Digests::empty())?;
    let cid = queue.cid();
    queue.send(sqe.with_cid(cid).with_data(Sgl::none()), &[])?;
    expect_status(&queue.finish(cid, &[])?, &[Status::DATA_SGL_LENGTH_INVALID]).about("no data")
}

fn names(peer: &Target) -> Check {
    let right = peer.host().connect_data(Cntlid::DYNAMIC);
    let mut fields: Vec<(&str, Vec<u8>)> = vec![
        ("no NUL", vec![b'a'; 256]),
        ("an NQN without NUL", [b"nqn.2014-08.org.x:".to_vec(), vec![b'b'; 238]].concat()),
        ("224 bytes", [b"nqn.2014-08.org.x:".to_vec(), vec![b'c'; 206]].concat()),
        ("nothing", Vec::new()),
    ];
    for text in ["disk", "nqn.\x07bell", "nqn.2014-08.org.x:\x1b[2J", "nqn.2014-08.org.x:a\nforged line"] {
        fields.push((text, text.as_bytes().to_vec()));
    }
    let padded = |bytes: &[u8]| -> [u8; 256] {
        let mut field = [0; 256];
        field[..bytes.len()].copy_from_slice(bytes);
        field
    };
    let with_subsystem = |bytes: &[u8]| {
        let mut data = right;
        data.subnqn = padded(bytes);
        data
    };
    let with_host = |bytes: &[u8]| {
        let mut data = right;
        data.hostnqn = padded(bytes);
        data
    };
    let command = peer.host().connect_command(0, ENTRIES);
    for (what, bytes) in &fields {
        let data = with_subsystem(bytes);
        let (_, answer) = connect(peer, &command, data.as_bytes())?;
        expect_parameter(&answer, 256, true).about(format!("subsystem {what:?}"))?;
        let data = with_host(bytes);
        let (_, answer) = connect(peer, &command, data.as_bytes())?;
        // Hosts in the field use NQNs of any form, and empty ones; the target decides whether to accept them.
        let may_be_let_in = ["disk", "nothing"].contains(what);
        if may_be_let_in && !answer.status().is(Status::CONNECT_INVALID_PARAMETERS) {
            let rights = [Status::SUCCESS, Status::CONNECT_INVALID_HOST];
            expect_status(&answer, &rights).about(format!("host {what:?}"))?;
        } else {
            expect_parameter(&answer, 512, true).about(format!("host {what:?}"))?;
        }
    }
    // Well formed, but no existing subsystem; contains characters that may break log lines.
    for text in ["nqn.2014-08.org.x:%s%n%s", "nqn.2014-08.org.x:\"',;--"] {
        let data = with_subsystem(text.as_bytes());
        let (_, answer) = connect(peer, &command, data.as_bytes())?;
        expect_parameter(&answer, 256, true).about(format!("subsystem {text:?}"))?;
    }
    Ok(())
}

fn formats(peer: &Target) -> Check {
    for recfmt in [1, 2, 0xFF, 0xFFFF] {
        let command = ConnectCommand { recfmt, ..peer.host().connect_command(0, ENTRIES) };
        let (_, answer) = connect(peer, &command, peer.host().connect_data(Cntlid::DYNAMIC).as_bytes())?;
        expect_status(&answer, &[Status::CONNECT_INCOMPATIBLE_FORMAT]).about(format!("RECFMT {recfmt}"))?;
    }
    Ok(())
}

fn queue_sizes(peer: &Target) -> Check {
    let (mut admin, cntlid) = peer.admin(Digests::empty())?;
    set_queues(&mut admin, 4)?;
    let most = peer.cap.queue_entries_max();
    for entries in [1, most + 1, 65_536].into_iter().filter(|entries| *entries <= 65_536) {
        let command = peer.host().connect_command(1, entries);
        let (_, answer) = connect(peer, &command, peer.host().connect_data(cntlid).as_bytes())?;
        expect_parameter(&answer, 44, false).about(format!("{entries} entries of an I/O queue"))?;
    }
    let command = peer.host().connect_command(0, 1);
    let (_, answer) = connect(peer, &command, peer.host().connect_data(Cntlid::DYNAMIC).as_bytes())?;
    expect_parameter(&answer, 44, false).about("an admin queue of one entry")?;
    peer.host().connect_io(cntlid, 1, most, Digests::empty()).about("MQES itself").map(drop)
}

fn queue_ids(peer: &Target) -> Check {
    let (mut admin, cntlid) = peer.admin(Digests::empty())?;
    let granted = set_queues(&mut admin, 65_535)?;
    let data = peer.host().connect_data(cntlid);
    for qid in [granted + 1, 0x7FFF, 0xFFFF].into_iter().filter(|qid| *qid <= 0xFFFF) {
        let qid = u16::try_from(qid).expect("filtered");
        let (_, answer) = connect(peer, &peer.host().connect_command(qid, ENTRIES), data.as_bytes())?;
        expect_parameter(&answer, 42, false).about(format!("queue {qid}"))?;
    }
    let mut first = peer.host().connect_io(cntlid, 1, ENTRIES, Digests::empty())?;
    let mut queue = peer.host().queue(Digests::empty())?.patient_for(Duration::from_secs(10));
    let answer =
        queue.run(peer.host().connect_command(1, ENTRIES).to_sqe(), Move::InCapsule(data.as_bytes()))?;
    expect_status(&answer, &[Status::COMMAND_SEQUENCE_ERROR]).about("a queue id in use")?;
    if let Ok(disk) = peer.disk() {
        first.must(disk.read(0, 1), Move::Back(disk.block_bytes)).about("the queue that had the id")?;
    }
    // The admin queue of another host's controller.
    let (_, answer) = connect(peer, &peer.host().connect_command(0, ENTRIES), data.as_bytes())?;
    expect_parameter(&answer, 16, true).about("an admin queue of a controller that is there")?;
    // The queue id is free again once its queue is closed.
    drop(first);
    for _ in 0..50 {
        match peer.host().connect_io(cntlid, 1, ENTRIES, Digests::empty()) {
            Ok(_) => return Ok(()),
            Err(Finding::Differs(_)) => std::thread::sleep(Duration::from_millis(20)),
            Err(finding) => return Err(finding),
        }
    }
    differs("a queue id stays in use after its connection has ended")
}

fn connect_twice(peer: &Target) -> Check {
    let refused = [Status::COMMAND_SEQUENCE_ERROR];
    let (mut admin, cntlid) = peer.admin(Digests::empty())?;
    set_queues(&mut admin, 2)?;
    let connect = |queue: &mut Queue, cntlid, qid| {
        let (sqe, data) =
            (peer.host().connect_command(qid, ENTRIES).to_sqe(), peer.host().connect_data(cntlid));
        queue.must_end(sqe, Move::InCapsule(data.as_bytes()), &refused)
    };
    connect(&mut admin, Cntlid::DYNAMIC, 0).about("Connect twice")?;
    connect(&mut admin, cntlid, 1).about("an I/O queue on the admin connection")?;
    let mut io = peer.host().connect_io(cntlid, 1, ENTRIES, Digests::empty())?;
    connect(&mut io, cntlid, 1).about("Connect twice on an I/O queue")?;
    identify(&mut admin, Cns::CONTROLLER, Nsid::NONE).map(drop)
}

/// Another host.
fn stranger() -> (Nqn, HostId) {
    let uuid = Uuid::from_bytes([0x5A, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14, 15]);
    (Nqn::from_uuid(uuid), uuid.into())
}

fn strangers(peer: &Target) -> Check {
    let (mut admin, cntlid) = peer.admin(Digests::empty())?;
    set_queues(&mut admin, 2)?;
    let command = peer.host().connect_command(1, ENTRIES);
    let host = peer.host();
    let (nqn, id) = stranger();
    let refused = |data: &ConnectData, what: &str| {
        let (_, answer) = connect(peer, &command, data.as_bytes())?;
        let rights = [Status::CONNECT_INVALID_PARAMETERS, Status::CONNECT_INVALID_HOST];
        expect_status(&answer, &rights).about(what)
    };
    let other_name = ConnectData::new(host.hostid, cntlid, &host.subsystem, &nqn);
    refused(&other_name, "another host's name")?;
    let other_id = ConnectData::new(id, cntlid, &host.subsystem, &host.nqn);
    refused(&other_id, "another host's identifier")?;
    for other in [cntlid.get().wrapping_add(0x2000), 0xFFFD, 0xFFFE, 0xFFFF, 0] {
        if other == cntlid.get() {
            continue;
        }
        let data = peer.host().connect_data(Cntlid::new(other));
        refused(&data, &format!("controller {other:#06x}"))?;
    }
    // A controller whose host has disconnected.
    let (gone, gone_id) = peer.admin(Digests::empty())?;
    drop(gone);
    std::thread::sleep(Duration::from_millis(200));
    refused(&peer.host().connect_data(gone_id), "a controller that is gone")?;
    peer.host().connect_io(cntlid, 1, ENTRIES, Digests::empty()).about("the right one").map(drop)
}

fn no_hostid(peer: &Target) -> Check {
    let host = peer.host();
    let zero = HostId::from_bytes([0; 16]);
    let data = ConnectData::new(zero, Cntlid::DYNAMIC, &host.subsystem, &host.nqn);
    let (_, answer) = connect(peer, &peer.host().connect_command(0, ENTRIES), data.as_bytes())?;
    expect_parameter(&answer, 0, true)
}

fn keep_alive_times(peer: &Target) -> Check {
    peer.admitted()?;
    for kato_ms in [0, 1, 1000, 0x7FFF_FFFF, u32::MAX] {
        let command = ConnectCommand { kato_ms, ..peer.host().connect_command(0, ENTRIES) };
        let (mut admin, answer) =
            connect(peer, &command, peer.host().connect_data(Cntlid::DYNAMIC).as_bytes())?;
        let rights = [Status::SUCCESS, Status::KEEP_ALIVE_INVALID];
        expect_status(&answer, &rights).about(format!("KATO {kato_ms}"))?;
        if answer.status().is_success() && kato_ms != 1 {
            std::thread::sleep(Duration::from_millis(20));
            property(&mut admin, Property::CSTS).about(format!("with KATO {kato_ms}"))?;
        }
    }
    Ok(())
}

fn ends_within_connect(peer: &Target) -> Check {
    let data = peer.host().connect_data(Cntlid::DYNAMIC);
    let sqe = peer.host().connect_command(0, ENTRIES).to_sqe().with_cid(1);
    for round in 0_usize..300 {
        let mut link = peer.host().link(Digests::empty())?;
        let bytes = in_capsule(link.form, sqe, data.as_bytes()).seal();
        let end = [bytes.len(), 8, 72, 100, bytes.len() - 1][round % 5];
        link.send(&bytes[..end])?;
        if round % 2 == 0 { link.reset() } else { drop(link) }
    }
    // Likewise with an I/O queue: its controller stays.
    let (mut admin, cntlid) = peer.admin(Digests::empty())?;
    set_queues(&mut admin, 2)?;
    let data = peer.host().connect_data(cntlid);
    let sqe = peer.host().connect_command(1, ENTRIES).to_sqe().with_cid(1);
    for _ in 0..20 {
        let mut link = peer.host().link(Digests::empty())?;
        link.send(&in_capsule(link.form, sqe, data.as_bytes()).seal())?;
        link.reset();
    }
    identify(&mut admin, Cns::CONTROLLER, Nsid::NONE).map(drop)
}

fn properties(peer: &Target) -> Check {
    let refused = [Status::INVALID_FIELD, Status::CONNECT_INVALID_PARAMETERS];
    let (mut admin, _) = peer.admin(Digests::empty())?;
    let gets = [
        (PropertySize::from_raw(0), 0x1_u32),
        (PropertySize::from_raw(0), 0x3),
        (PropertySize::from_raw(1), 0x2),
        (PropertySize::from_raw(0), 0x1000),
        (PropertySize::from_raw(1), 0xFFFF_FFFC),
        (PropertySize::from_raw(1), Property::VS.raw()),
        (PropertySize::from_raw(1), Property::CC.raw()),
        (PropertySize::from_raw(2), Property::CAP.raw()),
        (PropertySize::from_raw(7), Property::CSTS.raw()),
    ];
    for (size, offset) in gets {
        let get = PropertyGet { size, property: Property::from_raw(offset) };
        admin.must_end(get.to_sqe(), Move::None, &refused).about(format!("Get of {offset:#x}, {size:?}"))?;
    }
    for (property, value) in
        [(Property::CAP, 1_u64), (Property::VS, 0), (Property::CSTS, 2), (Property::from_raw(0x1000), 1)]
    {
        let set = PropertySet { size: property.size().unwrap_or_default(), property, value };
        admin.must_end(set.to_sqe(), Move::None, &refused).about(format!("Set of {:#x}", property.raw()))?;
    }
    // CC with an unsupported page size, arbitration or entry size: refused, or ignored while enabled.
    for bits in [0x0046_0781_u32, 0x0046_3801, 0x0011_0001, 0x00FF_0001, 0x0046_0071] {
        let (mut admin, _) = {
            let mut admin = peer.host().queue(Digests::empty())?;
            let answer = peer.host().connect_admin(&mut admin)?;
            (admin, answer)
        };
        let answer = admin.run(Sqe::property_set(Property::CC, bits.into()), Move::None)?;
        let is_refused = !answer.status().is_success();
        if is_refused {
            expect_status(&answer, &refused).about(format!("CC {bits:#x}"))?;
        } else {
            let csts = property(&mut admin, Property::CSTS)?;
            holds(csts & 3 != 1, format!("a controller is ready with CC {bits:#x}"))?;
        }
    }
    // Enables and disables the controller many times.
    for round in 0..200 {
        let cc = enabled(peer.cap).with_en(round % 2 == 1);
        admin.must(Sqe::property_set(Property::CC, cc.bits().into()), Move::None).about("toggling")?;
        wait_ready(&mut admin, round % 2 == 1)?;
    }
    identify(&mut admin, Cns::CONTROLLER, Nsid::NONE).about("after toggling")?;
    let down = enabled(peer.cap).with_shn(ShutdownNotification::NORMAL);
    admin.must(Sqe::property_set(Property::CC, down.bits().into()), Move::None).about("a shutdown")?;
    for _ in 0..200 {
        if property(&mut admin, Property::CSTS)? & 0xC == 8 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    differs("a shutdown does not end")
}

fn reset_under_way(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let blocks = disk.asked_blocks();
    let mut association = peer.associate(Digests::empty())?;
    disk.put(&mut association.io, 0, blocks, 0xC1)?;
    let data = disk.fill(blocks, 0xC2);
    let cid = association.io.submit(disk.write(0, blocks), Move::Asked(&data))?;
    let Step::Wants(window) = association.io.step(cid)? else { return skipped("no R2T for a write") };
    let cc = enabled(peer.cap).with_en(false);
    association.admin.must(Sqe::property_set(Property::CC, cc.bits().into()), Move::None)?;
    wait_ready(&mut association.admin, false)?;
    // The data arrives late: the write must not be executed.
    association.io.serve(&window, &data)?;
    match association.io.link.receive() {
        Ok(Got::Closed | Got::TermReq { .. }) => {}
        Ok(Got::Completion(cqe)) => holds(!cqe.status().is_success(), "a write succeeds after a reset")?,
        Ok(got) => return differs(format!("{got} after a reset")),
        Err(Finding::Hangs(_)) => return Err(Finding::Hangs("an I/O queue stays open after a reset".into())),
        Err(finding) => return Err(finding),
    }
    enable(&mut association.admin).about("enabled again")?;
    disk.holds(&mut peer.io(Digests::empty())?, 0, blocks, 0xC1).about("after a reset")
}

/// Runs a shell command line.
fn shell(line: &str) -> Check {
    let status = std::process::Command::new("sh").args(["-c", line]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => skipped(format!("{line:?} ends with {status}")),
        Err(error) => skipped(format!("{line:?}: {error}")),
    }
}

fn removed_under_way(peer: &Target) -> Check {
    let Some(removal) = &peer.settings.removal else {
        return skipped("no namespace may be removed: --removable, --remove and --restore");
    };
    let mut association = peer.associate(Digests::empty())?;
    let (nsid, page) = (removal.nsid, Move::Back(IDENTIFY_BYTES));
    let command = IdentifyCommand { cns: Cns::NAMESPACE, ..IdentifyCommand::default() };
    let data = association.admin.must(command.to_sqe(nsid), page).about("Identify before it goes away")?.data;
    let block_bytes =
        IdentifyNamespace::read_from_bytes(&data).ok().and_then(|namespace| namespace.block_bytes());
    let Some(block_bytes) = block_bytes else { return skipped("the namespace to be removed has no blocks") };
    let read = Sqe::read(nsid, 0, 1);
    association.io.must(read, Move::Back(block_bytes)).about("a read before it goes away")?;
    // One write waits for its data meanwhile.
    let blocks = peer.in_capsule_bytes() / block_bytes + 8;
    let content = vec![0xF3; (blocks * block_bytes) as usize];
    let mut waiting = None;
    if peer.settings.may_overwrite {
        let cid = association.io.submit(Sqe::write(nsid, 0, blocks), Move::Asked(&content))?;
        if let Step::Wants(window) = association.io.step(cid)? {
            waiting = Some((cid, window));
        }
    }
    shell(&removal.remove)?;
    let gone = [Status::INVALID_NAMESPACE, Status::INVALID_FIELD, Status::SUCCESS];
    let mut check = || -> Check {
        let start = Instant::now();
        loop {
            let answer =
                association.io.must_end(read, Move::Back(block_bytes), &gone).about("a read meanwhile")?;
            if !answer.status().is_success() {
                break;
            }
            if start.elapsed() > peer.settings.host.patience {
                return Err(Finding::Hangs("the namespace is there after its removal".into()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some((cid, window)) = waiting {
            association.io.serve(&window, &content)?;
            let answer = association.io.finish(cid, &content).about("a write that waited for its data")?;
            let rights = [&gone[..], &[Status::ABORT_REQUESTED]].concat();
            expect_status(&answer, &rights).about("a write that waited for its data")?;
        }
        let answer = association.admin.run(command.to_sqe(nsid), page)?;
        let is_gone = !answer.status().is_success() || answer.data.iter().all(|byte| *byte == 0);
        holds(is_gone, "Identify still shows it")
    };
    let result = check();
    shell(&removal.restore)?;
    result?;
    // The namespace is restored for later rows.
    for _ in 0..200 {
        let answer = peer.io(Digests::empty())?.run(read, Move::Back(block_bytes))?;
        if answer.status().is_success() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    differs("the namespace does not come back")
}

/// The admin queue of an enabled discovery controller, if this address has a discovery service.
pub(super) fn discovery(peer: &Target) -> Check<Queue> {
    let host = peer.host();
    let mut queue = peer.host().queue(Digests::empty())?;
    let data = ConnectData::new(host.hostid, Cntlid::DYNAMIC, &Nqn::discovery(), &host.nqn);
    let sqe = peer.host().connect_command(0, ENTRIES).to_sqe();
    let answer = queue.run(sqe, Move::InCapsule(data.as_bytes()))?;
    if !answer.status().is_success() {
        return skipped(format!(
            "the discovery service at this address refuses the host: {}",
            answer.status()
        ));
    }
    enable(&mut queue)?;
    Ok(queue)
}

/// Reads a part of the discovery log.
fn read_log(offset: u64, length_bytes: u64) -> Sqe {
    GetLogPage { lid: Lid::DISCOVERY, length_bytes, offset, ..GetLogPage::default() }.to_sqe(Nsid::NONE)
}

/// The entries of the discovery log that lead to the probed subsystem at the probed port.
pub(super) fn own_entries(peer: &Target) -> Check<Vec<DiscoveryEntry>> {
    /// Read of the log at once, bytes.
    const PART_BYTES: u32 = 16 << 10;
    /// Read of it at most, bytes.
    const LOG_BYTES_MAX: u64 = 1 << 20;
    let mut queue = discovery(peer)?;
    let mut log = Vec::new();
    loop {
        let part = queue.must(read_log(log.len() as u64, PART_BYTES.into()), Move::Back(PART_BYTES))?.data;
        log.extend_from_slice(&part);
        let Some(read) = DiscoveryLog::new(&log) else { return differs("a log without a header") };
        if !read.is_complete() && !part.is_empty() && (log.len() as u64) < LOG_BYTES_MAX {
            continue;
        }
        let (port, subsystem) = (peer.host().address.port(), &peer.host().subsystem);
        let is_own = |entry: &&DiscoveryEntry| {
            entry.port() == Some(port) && entry.subsystem().is_ok_and(|name| name == *subsystem)
        };
        return Ok(read.entries.iter().filter(is_own).copied().collect());
    }
}

fn log_offsets(peer: &Target) -> Check {
    let mut queue = discovery(peer)?;
    let record = DISCOVERY_RECORD_BYTES as u64;
    let whole = queue.must(read_log(0, 16 * record), Move::Back(16 * 1024))?.data;
    let count = u64::from_le_bytes(whole[8..16].try_into().expect("eight bytes"));
    let end = (count + 1) * record;
    let tail = whole.get(usize::try_from(end).unwrap_or(usize::MAX)..).unwrap_or_default();
    holds(tail.iter().all(|byte| *byte == 0), "bytes after the end of the log")?;
    for offset in [end, end + 4, 1 << 20, 1 << 32, 1 << 63, u64::MAX - 3, u64::MAX - 1023, 1, 2, 3, end - 1] {
        let answer = queue.run(read_log(offset, 1024), Move::Back(1024))?;
        let what = format!("offset {offset:#x}");
        if answer.status().is_success() {
            // A read at the very end may return nothing.
            holds(offset == end, format!("{what} succeeds"))?;
            holds(answer.data.iter().all(|byte| *byte == 0), format!("{what}: bytes of its memory"))?;
        } else {
            expect_status(&answer, &[Status::INVALID_FIELD]).about(what)?;
        }
    }
    // Up to the end and beyond.
    let offset = end - 512;
    let answer = queue.must(read_log(offset, 4096), Move::Back(4096)).about("beyond the end")?;
    let beyond = answer.data.get(512..).unwrap_or_default();
    holds(beyond.iter().all(|byte| *byte == 0), "bytes after the end of the log")
}

fn queue_counts(peer: &Target) -> Check {
    let (mut admin, cntlid) = peer.admin(Digests::empty())?;
    for value in [0xFFFF_FFFF_u32, 0xFFFF_0000, 0x0000_FFFF] {
        let sqe = Sqe::set_feature(Fid::NUMBER_OF_QUEUES, Nsid::NONE, value);
        admin.must_end(sqe, Move::None, &[Status::INVALID_FIELD]).about(format!("{value:#010x}"))?;
    }
    let sqe = Sqe::set_feature(Fid::NUMBER_OF_QUEUES, Nsid::NONE, 0xFFFE_FFFE);
    let answer = admin.must(sqe, Move::None).about("65,535 queues")?;
    let granted = NumberOfQueues::from_bits(answer.cqe.dw0()).queue_pairs();
    holds((1..65_535).contains(&granted), format!("{granted} queues granted"))?;
    let last = u16::try_from(granted).expect("checked");
    peer.host().connect_io(cntlid, last, 2, Digests::empty()).about("the last queue granted").map(drop)
}

fn disconnect(peer: &Target) -> Check {
    let mut io = peer.io(Digests::empty())?;
    let answer = io.run(Disconnect { recfmt: 0 }.to_sqe(), Move::None)?;
    if !answer.status().is_success() {
        let rights = [Status::INVALID_OPCODE, Status::INVALID_FIELD];
        expect_status(&answer, &rights)?;
        let Ok(disk) = peer.disk() else { return Ok(()) };
        return io.must(disk.read(0, 1), Move::Back(disk.block_bytes)).about("after a refusal").map(drop);
    }
    match io.run(Disconnect { recfmt: 0 }.to_sqe(), Move::None) {
        Err(Finding::Differs(_)) => Ok(()),
        Err(finding) => Err(finding),
        Ok(_) => differs("commands are answered after Disconnect"),
    }
}

fn discovery_io(peer: &Target) -> Check {
    let mut queue = discovery(peer)?;
    let answer = queue.run(
        IdentifyCommand { cns: Cns::NAMESPACE, ..IdentifyCommand::default() }.to_sqe(Nsid::new(1)),
        Move::Back(IDENTIFY_BYTES),
    )?;
    holds(!answer.status().is_success(), "Identify of a namespace succeeds")?;
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x18, 0x19] {
        let answer = queue.run(Sqe::new(opcode, Nsid::new(1)), Move::None)?;
        // Keep Alive is allowed.
        let is_keep_alive = opcode == AdminOpcode::KEEP_ALIVE.raw();
        holds(is_keep_alive || !answer.status().is_success(), format!("opcode {opcode:#04x} succeeds"))?;
    }
    // A Connect of an I/O queue to a discovery controller.
    let host = peer.host();
    let mut second = peer.host().queue(Digests::empty())?;
    let data = ConnectData::new(host.hostid, Cntlid::DYNAMIC, &Nqn::discovery(), &host.nqn);
    let answer =
        second.run(peer.host().connect_command(0, ENTRIES).to_sqe(), Move::InCapsule(data.as_bytes()))?;
    let cntlid = Cntlid::new(ConnectResult::from_bits(answer.cqe.dw0()).cntlid());
    enable(&mut second)?;
    let data = ConnectData::new(host.hostid, cntlid, &Nqn::discovery(), &host.nqn);
    let command = ConnectCommand { qid: Qid::new(1), ..peer.host().connect_command(1, ENTRIES) };
    let (_, answer) = connect(peer, &command, data.as_bytes())?;
    holds(!answer.status().is_success(), "an I/O queue of a discovery controller connects")
}
