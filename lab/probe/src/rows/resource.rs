//! Section 12: inputs that exhaust resources of a target, and its limits against them.

use super::prelude::*;

pub(super) const ROWS: &[TargetRow] = &[
    row("R1", idle_connections),
    slow_row("R2", no_connect),
    slow_row("R3", no_authentication),
    slow_row("R4", dribble),
    slow_row("R5", no_reader),
    row("R6", hit_and_run),
    row("R7", many_associations),
    slow_row("R8", expiry),
    row("R9", fairness),
    row("R10", |_| skipped("descriptors cannot be taken away from here")),
    row("R11", |_| skipped("the target's clock cannot be set from here")),
    row("R12", |_| skipped("the target cannot be killed from here")),
    row("R13", floods_of_log),
    row("R14", hoarders),
];

fn idle_connections(peer: &Target) -> Check {
    let mut held = Vec::new();
    for _ in 0..400 {
        match peer.host().tcp() {
            Ok(link) => held.push(link),
            // A target may limit the number of connections.
            Err(_) => break,
        }
    }
    holds(held.len() >= 16, format!("{} connections are accepted", held.len()))?;
    peer.check_healthy().about(format!("beside {} idle connections", held.len()))
}

/// The target must close the connection, but not before a slow host could answer.
fn closed_in_time(link: &mut Link, start: Instant) -> Check {
    link.expect_closed()?;
    holds(start.elapsed() > Duration::from_secs(1), "it closes before a slow host can go on")
}

fn no_connect(peer: &Target) -> Check {
    let mut link = peer.host().link(Digests::empty())?.patient(Duration::from_secs(20));
    let start = Instant::now();
    // Commands other than Connect must not extend the time.
    link.send(&Draft::command(link.form, Sqe::property_get(Property::CAP), &[]).seal())?;
    let _ = link.receive()?;
    closed_in_time(&mut link, start)
}

fn no_authentication(peer: &Target) -> Check {
    let mut admin = peer.host().queue(Digests::empty())?;
    let answer = peer.host().connect_admin(&mut admin)?;
    let is_asked = ConnectResult::from_bits(answer.cqe.dw0()).authentication_required();
    if is_asked {
        let start = Instant::now();
        admin.link = admin.link.patient(Duration::from_secs(150));
        return closed_in_time(&mut admin.link, start);
    }
    // The target waits for nothing, so the connection stays open.
    std::thread::sleep(Duration::from_secs(15));
    admin.must(Sqe::property_get(Property::CAP), Move::None).about("after 15 s").map(drop)
}

fn dribble(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let mut links = Vec::new();
    let read = disk.read(0, 1).with_cid(1).with_data(Sgl::transport(disk.block_bytes));
    let mut slow = |mut queue: Queue, bytes: Vec<u8>, already: usize, what: &'static str| -> Check {
        queue.link.send(&bytes[..already])?;
        links.push((queue, bytes, already, what));
        Ok(())
    };
    let queue = peer.io(Digests::empty())?;
    let bytes = Draft::command(queue.form(), read, &[]).seal();
    slow(queue, bytes, 1, "a header")?;
    if peer.settings.may_overwrite && peer.in_capsule_bytes() >= disk.block_bytes {
        // Uses its own block, as other rows run concurrently.
        let lba = disk.block_count / 2;
        let queue = peer.io(Digests::empty())?;
        let bytes = in_capsule(queue.form(), disk.write(lba, 1).with_cid(1), &disk.fill(1, 1)).seal();
        slow(queue, bytes, 80, "capsule data")?;
        let mut queue = peer.io(Digests::empty())?;
        let blocks = disk.asked_blocks();
        let data = disk.fill(blocks, 2);
        let cid = queue.submit(disk.write(lba, blocks), Move::Asked(&data))?;
        let Step::Wants(window) = queue.step(cid)? else { return skipped("no R2T for a write") };
        let part = &data[..window.length as usize];
        let bytes = Draft::h2c_data(queue.form(), cid, window.ttag, 0, part, true).seal();
        slow(queue, bytes, 30, "H2CData")?;
    }
    for _ in 0..8 {
        std::thread::sleep(Duration::from_secs(5));
        for (queue, bytes, sent, _) in &mut links {
            queue.link.send(&bytes[*sent..=*sent])?;
            *sent += 1;
        }
    }
    for (queue, _, _, what) in &mut links {
        queue.link.expect_closed().about(*what)?;
    }
    Ok(())
}

/// Length of a large read: a mebibyte, unless the target's maximum is less.
fn large_bytes(peer: &Target) -> u32 {
    peer.transfer_bytes_max().and_then(|limit| u32::try_from(limit).ok()).unwrap_or(u32::MAX).min(1 << 20)
}

fn no_reader(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let length = large_bytes(peer);
    let mut io = peer.io(Digests::empty())?;
    let read = disk.read(0, length / disk.block_bytes);
    let cids: Vec<_> =
        (0..io.entries - 1).map(|_| io.submit(read, Move::Back(length))).collect::<Check<_>>()?;
    std::thread::sleep(Duration::from_secs(36));
    let mut ended = 0;
    for cid in &cids {
        match io.finish(*cid, &[]) {
            Ok(_) => ended += 1,
            Err(Finding::Differs(_)) => return Ok(()),
            Err(finding) => return Err(finding),
        }
    }
    differs(format!("it waits for longer than 36 s; then {ended} reads end"))
}

fn hit_and_run(peer: &Target) -> Check {
    for round in 0..200 {
        let mut link = peer.host().link(Digests::empty())?;
        let bytes = Draft::command(link.form, Sqe::property_get(Property::CAP), &[]).with(2, &[9]).seal();
        link.send(&bytes)?;
        if round % 2 == 0 { link.reset() } else { drop(link) }
    }
    Ok(())
}

fn many_associations(peer: &Target) -> Check {
    let disk = peer.disk();
    let start = Instant::now();
    let mut count = 0;
    while count < 500 && start.elapsed() < Duration::from_secs(10) {
        let mut io = peer.io(Digests::empty()).about(format!("association {count}"))?;
        if let Ok(disk) = disk.clone() {
            io.must(disk.read(0, 1), Move::Back(disk.block_bytes))?;
        }
        count += 1;
    }
    holds(count > 50, format!("{count} associations in 10 s"))
}

fn floods_of_log(peer: &Target) -> Check {
    const LOG_BYTES_MAX: u64 = 64 << 10;
    let Some(path) = &peer.settings.log else {
        return skipped("the path of the target's log is unknown: --target-log");
    };
    let size = || match std::fs::metadata(path) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) => skipped(format!("{}: {error}", path.display())),
    };
    let before = size()?;
    for round in 0..2000_u32 {
        let mut link = if round % 3 == 0 { peer.host().tcp()? } else { peer.host().link(Digests::empty())? };
        let draft = Draft::command(link.form, Sqe::property_get(Property::CAP), &[]);
        let bytes = match round % 3 {
            1 => draft.with(2, &[9]).seal(),
            _ => draft.seal(),
        };
        link.send(&bytes)?;
        let _ = link.receive()?;
    }
    for round in 0..1000 {
        let mut queue = peer.host().queue(Digests::empty())?;
        let data = peer.host().connect_data(Cntlid::new(0x1234));
        let sqe = peer.host().connect_command(1 + round % 2, ENTRIES).to_sqe();
        queue.run(sqe, Move::InCapsule(data.as_bytes()))?;
    }
    std::thread::sleep(Duration::from_millis(300));
    let grown = size()?.saturating_sub(before);
    holds(grown <= LOG_BYTES_MAX, format!("the log has grown by {grown} bytes"))
}

fn expiry(peer: &Target) -> Check {
    const KATO_MS: u32 = 1000;
    let disk = peer.scratch()?;
    let lba = disk.block_count / 2 + 1024;
    let blocks = disk.asked_blocks();
    disk.put(&mut peer.io(Digests::empty())?, lba, blocks, 0xD1)?;
    let (mut admin, cntlid) = peer.host().admin_with(Digests::empty(), KATO_MS)?;
    set_queues(&mut admin, 1)?;
    let mut io = peer.host().connect_io(cntlid, 1, ENTRIES, Digests::empty())?;
    let data = disk.fill(blocks, 0xD2);
    let cid = io.submit(disk.write(lba, blocks), Move::Asked(&data))?;
    let Step::Wants(window) = io.step(cid)? else { return skipped("no R2T for a write") };
    // The target may notice the expiry a few seconds late.
    let mut link = admin.link.patient(Duration::from_secs(15));
    link.expect_closed().about("the admin queue")?;
    io.serve(&window, &data)?;
    io.link = io.link.patient(Duration::from_secs(10));
    match io.link.receive()? {
        Got::Closed => {}
        got => return differs(format!("{got} after the association has expired")),
    }
    disk.holds(&mut peer.io(Digests::empty())?, lba, blocks, 0xD1).about("after the expiry")
}

fn fairness(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let length = large_bytes(peer);
    let (mut admin, cntlid) = peer.admin(Digests::empty())?;
    set_queues(&mut admin, 2)?;
    let mut busy = peer.host().connect_io(cntlid, 1, ENTRIES, Digests::empty())?;
    let mut quiet = peer.host().connect_io(cntlid, 2, ENTRIES, Digests::empty())?;
    let large = disk.read(0, length / disk.block_bytes);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        let load = scope.spawn(|| -> Check {
            let mut cids = std::collections::VecDeque::new();
            while !is_over.load(relaxed) {
                while cids.len() < 16 {
                    cids.push_back(busy.submit(large, Move::Back(length))?);
                }
                let cid = cids.pop_front().expect("filled");
                expect_status(&busy.finish(cid, &[])?, &[Status::SUCCESS])?;
            }
            for cid in cids {
                busy.finish(cid, &[])?;
            }
            Ok(())
        });
        let mut times = Vec::new();
        let start = Instant::now();
        let small = (|| -> Check {
            while start.elapsed() < Duration::from_secs(1) {
                let begun = Instant::now();
                quiet.must(disk.read(0, 1), Move::Back(disk.block_bytes))?;
                times.push(begun.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })();
        is_over.store(true, relaxed);
        load.join().expect("no panic").about("the busy queue")?;
        small.about("the other queue")?;
        times.sort();
        let p99 = times[times.len() * 99 / 100];
        let limit = peer.settings.pause_limit;
        holds(p99 <= limit, format!("p99 of a small read is {} ms beside large ones", p99.as_millis()))
    })
}

fn hoarders(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let length = large_bytes(peer);
    let blocks = length / disk.block_bytes;
    let mut quiet = peer.io(Digests::empty())?;
    let mut hoarders = Vec::new();
    for _ in 0..4 {
        let mut deaf = peer.io(Digests::empty())?;
        for _ in 1..deaf.entries {
            deaf.submit(disk.read(0, blocks), Move::Back(length))?;
        }
        // The data never arrives, so nothing is written.
        let mut owing = peer.io(Digests::empty())?;
        let data = vec![0; length as usize];
        for _ in 1..owing.entries {
            owing.submit(disk.write(0, blocks), Move::Asked(&data))?;
        }
        hoarders.push((deaf, owing));
    }
    let mut longest = Duration::ZERO;
    for _ in 0..50 {
        let begun = Instant::now();
        quiet.must(disk.read(0, 1), Move::Back(disk.block_bytes)).about("the other queue")?;
        longest = longest.max(begun.elapsed());
    }
    let limit = peer.settings.pause_limit;
    holds(
        longest <= limit,
        format!("a small read took {} ms beside those who keep buffers", longest.as_millis()),
    )
}
