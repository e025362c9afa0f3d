//! The association of a well-behaved host, made step by step: a test may leave out, repeat or replace each step.

use std::net::SocketAddr;
use std::time::Duration;

use wire::fabrics::{ConnectAttributes, ConnectCommand, ConnectData, ConnectResult};
use wire::feature::{Fid, NumberOfQueues};
use wire::id::{Cntlid, Csi, Nsid, Qid};
use wire::identify::{Cns, IDENTIFY_BYTES, IdentifyCommand};
use wire::nqn::{HostId, Nqn};
use wire::pdu::{DataAlignment, Digests, IcReq};
use wire::property::{Cap, Cc, CommandSetSelection, Property};
use wire::sqe::Sqe;
use zerocopy::IntoBytes;

use crate::finding::{About, Check, Finding, differs, holds};
use crate::link::Link;
use crate::queue::{Answer, Move, Queue};

/// Entries of a queue, unless the caller says otherwise.
pub const ENTRIES: u32 = 32;

/// A host that dials one subsystem.
#[derive(Clone, Debug)]
pub struct RawHost {
    /// Address of the target.
    pub address: SocketAddr,
    /// The subsystem.
    pub subsystem: Nqn,
    /// NQN of this host.
    pub nqn: Nqn,
    /// Host identifier of this host.
    pub hostid: HostId,
    /// Time limit of each answer.
    pub patience: Duration,
}

/// Admin queue and one I/O queue of a controller.
#[derive(Debug)]
pub struct Association {
    /// The admin queue, its controller enabled.
    pub admin: Queue,
    /// I/O queue 1.
    pub io: Queue,
    /// The controller.
    pub cntlid: Cntlid,
}

impl RawHost {
    /// Opens a TCP connection and sends nothing.
    ///
    /// # Errors
    /// As [`Link::connect`].
    pub fn tcp(&self) -> Check<Link> {
        Link::connect(self.address, self.patience)
    }

    /// Opens a connection and exchanges ICReq and ICResp.
    ///
    /// # Errors
    /// As [`Link::handshake`].
    pub fn link(&self, digests: Digests) -> Check<Link> {
        let mut link = self.tcp()?;
        link.handshake(&IcReq::new(DataAlignment::NONE, digests, 1))?;
        Ok(link)
    }

    /// [`link`](Self::link) as a queue of [`ENTRIES`] that still needs its Connect.
    ///
    /// # Errors
    /// As [`Link::handshake`].
    pub fn queue(&self, digests: Digests) -> Check<Queue> {
        Ok(Queue::new(self.link(digests)?, ENTRIES))
    }

    /// A valid Connect command, without keep-alive.
    pub fn connect_command(&self, qid: u16, entries: u32) -> ConnectCommand {
        ConnectCommand {
            recfmt: 0,
            qid: Qid::new(qid),
            queue_entries: entries,
            attributes: ConnectAttributes::default(),
            kato_ms: 0,
            near_partition: None,
        }
    }

    /// Valid Connect data.
    pub fn connect_data(&self, cntlid: Cntlid) -> ConnectData {
        ConnectData::new(self.hostid, cntlid, &self.subsystem, &self.nqn)
    }

    /// Connects `queue` as the admin queue of a new controller.
    ///
    /// # Errors
    /// The target refuses.
    pub fn connect_admin(&self, queue: &mut Queue) -> Check<Answer> {
        self.connect_admin_with(queue, self.connect_command(0, ENTRIES))
    }

    /// [`connect_admin`](Self::connect_admin) with this command.
    ///
    /// # Errors
    /// The target refuses.
    pub fn connect_admin_with(&self, queue: &mut Queue, command: ConnectCommand) -> Check<Answer> {
        let data = self.connect_data(Cntlid::DYNAMIC);
        queue.must(command.to_sqe(), Move::InCapsule(data.as_bytes())).about("Connect")
    }

    /// Opens a connection and connects it as an I/O queue of `cntlid`.
    ///
    /// # Errors
    /// The target refuses.
    pub fn connect_io(&self, cntlid: Cntlid, qid: u16, entries: u32, digests: Digests) -> Check<Queue> {
        self.connect_io_over(self.link(digests)?, cntlid, qid, entries)
    }

    /// Connects `link`, whose handshake is done, as an I/O queue of `cntlid`.
    ///
    /// # Errors
    /// The target refuses.
    pub fn connect_io_over(&self, link: Link, cntlid: Cntlid, qid: u16, entries: u32) -> Check<Queue> {
        let mut queue = Queue::new(link, entries);
        let data = self.connect_data(cntlid);
        let sqe = self.connect_command(qid, entries).to_sqe();
        queue.must(sqe, Move::InCapsule(data.as_bytes())).about("Connect of an I/O queue")?;
        Ok(queue)
    }

    /// Opens an admin queue with an enabled controller.
    ///
    /// # Errors
    /// The target refuses, or the controller does not become ready.
    pub fn admin(&self, digests: Digests) -> Check<(Queue, Cntlid)> {
        self.admin_with(digests, 0)
    }

    /// [`admin`](Self::admin) with this keep-alive timeout, 0 for none.
    ///
    /// # Errors
    /// As [`admin`](Self::admin).
    pub fn admin_with(&self, digests: Digests, kato_ms: u32) -> Check<(Queue, Cntlid)> {
        let mut admin = self.queue(digests)?;
        let command = ConnectCommand { kato_ms, ..self.connect_command(0, ENTRIES) };
        let answer = self.connect_admin_with(&mut admin, command)?;
        enable(&mut admin)?;
        Ok((admin, Cntlid::new(ConnectResult::from_bits(answer.cqe.dw0()).cntlid())))
    }

    /// Opens an association with one I/O queue.
    ///
    /// # Errors
    /// As [`admin`](Self::admin) and [`connect_io`](Self::connect_io).
    pub fn associate(&self, digests: Digests, entries: u32) -> Check<Association> {
        let (mut admin, cntlid) = self.admin(digests)?;
        set_queues(&mut admin, 8)?;
        let io = self.connect_io(cntlid, 1, entries, digests)?;
        Ok(Association { admin, io, cntlid })
    }
}

/// CC with EN set and all command sets selected that `cap` offers.
pub fn enabled(cap: Cap) -> Cc {
    let sets = if cap.css_csi() { CommandSetSelection::ALL } else { CommandSetSelection::NVM };
    Cc::new(sets).with_en(true)
}

/// Sets CC.EN and waits for CSTS.RDY.
///
/// # Errors
/// The controller does not become ready.
pub fn enable(admin: &mut Queue) -> Check {
    let cc = enabled(Cap::from_bits(property(admin, Property::CAP)?));
    admin.must(Sqe::property_set(Property::CC, cc.bits().into()), Move::None).about("CC.EN")?;
    wait_ready(admin, true)
}

/// Polls CSTS until RDY is `is_ready`, for up to two seconds.
///
/// # Errors
/// CSTS.CFS is set, or RDY does not change.
pub fn wait_ready(admin: &mut Queue, is_ready: bool) -> Check {
    for _ in 0..200 {
        let csts = property(admin, Property::CSTS)?;
        if csts & 2 != 0 {
            return differs("CSTS.CFS is set");
        }
        if (csts & 1 != 0) == is_ready {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Finding::Hangs("CSTS.RDY does not follow CC.EN".into()))
}

/// Reads a property.
///
/// # Errors
/// The target refuses.
pub fn property(admin: &mut Queue, property: Property) -> Check<u64> {
    Ok(admin.must(Sqe::property_get(property), Move::None).about("Property Get")?.cqe.result.get())
}

/// Reads a page of Identify for the NVM command set.
///
/// # Errors
/// The target refuses.
pub fn identify(admin: &mut Queue, cns: Cns, nsid: Nsid) -> Check<Vec<u8>> {
    let command = IdentifyCommand { cns, csi: Csi::NVM, ..IdentifyCommand::default() };
    let answer =
        admin.must(command.to_sqe(nsid), Move::Back(IDENTIFY_BYTES)).about(format!("Identify {cns}"))?;
    holds(answer.data.len() == IDENTIFY_BYTES as usize, format!("{} bytes", answer.data.len()))?;
    Ok(answer.data)
}

/// Requests `count` I/O queue pairs; returns how many the controller granted.
///
/// # Errors
/// The target refuses.
pub fn set_queues(admin: &mut Queue, count: u32) -> Check<u32> {
    let value = NumberOfQueues::pairs(count).bits();
    let answer = admin.must(Sqe::set_feature(Fid::NUMBER_OF_QUEUES, Nsid::NONE, value), Move::None)?;
    Ok(NumberOfQueues::from_bits(answer.cqe.dw0()).queue_pairs())
}
