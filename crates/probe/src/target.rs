//! A target as it was found before anything hostile was sent to it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use peer::finding::{About, Check, differs, holds, skipped};
use peer::queue::{Answer, Move, Queue, expect_status};
use peer::raw_host::{Association, ENTRIES, RawHost, enable, identify, property, set_queues};
use wire::fabrics::ConnectResult;
use wire::id::{Cntlid, Csi, Nsid};
use wire::identify::command_set::KvNamespace;
use wire::identify::controller::IdentifyController;
use wire::identify::lists::read_nsid_list;
use wire::identify::namespace::IdentifyNamespace;
use wire::identify::{Cns, IDENTIFY_BYTES, IdentifyCommand};
use wire::pdu::Digests;
use wire::property::{Cap, Property};
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::FromBytes;

/// Whom to probe, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The host that rows connect as, and the subsystem it dials.
    pub host: RawHost,
    /// The namespace; the first one of blocks if not given.
    pub nsid: Option<Nsid>,
    /// How long one row may take; four times as long if it waits for the target's timers.
    pub row_limit: Duration,
    /// The namespace's content may be lost.
    pub may_overwrite: bool,
    /// The longest pause of a neighbour's I/O that is right.
    pub pause_limit: Duration,
    /// Where the target's keys and values are reached by memcached's protocol.
    pub memcached: Option<SocketAddr>,
    /// A namespace that may go away, and how.
    pub removal: Option<Removal>,
    /// Where the target writes its log.
    pub log: Option<PathBuf>,
}

/// A namespace that may go away while rows run, other than the one they use.
#[derive(Clone, Debug)]
pub struct Removal {
    /// Its id.
    pub nsid: Nsid,
    /// A line for the shell that takes it away from the target.
    pub remove: String,
    /// A line for the shell that gives it back.
    pub restore: String,
}

/// The target, and what it has said of itself.
#[derive(Clone, Debug)]
pub struct Target {
    /// Whom to probe.
    pub settings: Settings,
    /// Its capabilities.
    pub cap: Cap,
    /// Its controllers.
    pub identify: Box<IdentifyController>,
    /// What Connect says.
    pub connected: ConnectResult,
    /// The namespace that is probed.
    pub disk: Option<Disk>,
    /// The namespace of keys and values that is probed.
    pub store: Option<Store>,
}

/// A namespace of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Its id.
    pub nsid: Nsid,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks.
    pub block_count: u64,
    /// Data that fits in a capsule, bytes.
    pub in_capsule_bytes: u32,
}

/// A namespace of keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// Its id.
    pub nsid: Nsid,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// The longest value.
    pub value_bytes_max: u32,
    /// Data that fits in a capsule, bytes.
    pub in_capsule_bytes: u32,
}

impl Target {
    /// Looks at a target.
    ///
    /// # Errors
    /// It cannot be used at all.
    pub fn new(settings: Settings) -> Check<Self> {
        let mut peer = Self {
            settings,
            cap: Cap::default(),
            identify: Box::default(),
            connected: ConnectResult::default(),
            disk: None,
            store: None,
        };
        let mut admin = peer.host().queue(Digests::empty())?;
        let result = peer.host().connect_admin(&mut admin)?;
        peer.connected = ConnectResult::from_bits(result.cqe.dw0());
        if peer.connected.authentication_required() {
            return Ok(peer);
        }
        peer.cap = Cap::from_bits(property(&mut admin, Property::CAP)?);
        enable(&mut admin)?;
        let controller = identify(&mut admin, Cns::CONTROLLER, Nsid::NONE)?;
        peer.identify = Box::new(IdentifyController::read_from_bytes(&controller).expect("4096 bytes"));
        let list = identify(&mut admin, Cns::ACTIVE_NAMESPACES, Nsid::NONE)?;
        for nsid in read_nsid_list(&list).filter(|nsid| peer.is_wanted(*nsid)) {
            if peer.settings.removal.as_ref().is_some_and(|removal| removal.nsid == nsid) {
                continue;
            }
            // One with other commands than those on blocks has no such page.
            let sqe = IdentifyCommand { cns: Cns::NAMESPACE, ..IdentifyCommand::default() }.to_sqe(nsid);
            let data = admin.run(sqe, Move::Back(IDENTIFY_BYTES)).about("Identify of a namespace")?.data;
            let Ok(namespace) = IdentifyNamespace::read_from_bytes(&data) else { continue };
            if let Some(block_bytes) = namespace.block_bytes().filter(|_| namespace.is_present()) {
                let in_capsule_bytes = peer.in_capsule_bytes();
                let block_count = namespace.nsze.get();
                peer.disk = Some(Disk { nsid, block_bytes, block_count, in_capsule_bytes });
                break;
            }
        }
        peer.store = peer.find_store(&mut admin)?;
        Ok(peer)
    }

    fn is_wanted(&self, nsid: Nsid) -> bool {
        self.settings.nsid.is_none_or(|wanted| wanted == nsid)
    }

    /// The first namespace of keys and values, or the one named.
    fn find_store(&self, admin: &mut Queue) -> Check<Option<Store>> {
        if !self.cap.css_csi() {
            return Ok(None);
        }
        let mut page = |cns, nsid| {
            let command = IdentifyCommand { cns, csi: Csi::KV, ..IdentifyCommand::default() };
            admin.run(command.to_sqe(nsid), Move::Back(IDENTIFY_BYTES)).about(format!("Identify {cns}"))
        };
        let list = page(Cns::COMMAND_SET_ACTIVE_NAMESPACES, Nsid::NONE)?.data;
        let Some(nsid) = read_nsid_list(&list).find(|nsid| self.is_wanted(*nsid)) else { return Ok(None) };
        let data = page(Cns::COMMAND_SET_NAMESPACE, nsid)?.data;
        let Ok(namespace) = KvNamespace::read_from_bytes(&data) else { return Ok(None) };
        Ok(namespace.format().map(|format| Store {
            nsid,
            size_bytes: namespace.nsze.get(),
            value_bytes_max: format.value_bytes_max.get(),
            in_capsule_bytes: self.in_capsule_bytes(),
        }))
    }

    /// The host that rows connect as.
    #[must_use]
    pub fn host(&self) -> &RawHost {
        &self.settings.host
    }

    /// An admin queue with its controller enabled.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn admin(&self, digests: Digests) -> Check<(Queue, Cntlid)> {
        if self.connected.authentication_required() {
            return skipped("the target wants authentication");
        }
        self.host().admin(digests)
    }

    /// An association with one I/O queue.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn associate(&self, digests: Digests) -> Check<Association> {
        self.associate_with(digests, ENTRIES)
    }

    /// The same with a queue of this length.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn associate_with(&self, digests: Digests, entries: u32) -> Check<Association> {
        let (mut admin, cntlid) = self.admin(digests)?;
        set_queues(&mut admin, 8)?;
        let io = self.host().connect_io(cntlid, 1, entries, digests)?;
        Ok(Association { admin, io, cntlid })
    }

    /// An I/O queue that keeps its admin queue.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn io(&self, digests: Digests) -> Check<Queue> {
        self.io_with(digests, ENTRIES)
    }

    /// The same with a queue of this length.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn io_with(&self, digests: Digests, entries: u32) -> Check<Queue> {
        let Association { admin, io, .. } = self.associate_with(digests, entries)?;
        Ok(io.keeping(admin))
    }

    /// The namespace, if there is one of blocks.
    ///
    /// # Errors
    /// Skipped.
    pub fn disk(&self) -> Check<Disk> {
        match self.disk {
            Some(disk) if disk.size_bytes() >= 32 << 20 => Ok(disk),
            Some(_) => skipped("the namespace is smaller than 32 MiB"),
            None => skipped("there is no namespace of blocks"),
        }
    }

    /// The namespace, if its content may be lost.
    ///
    /// # Errors
    /// Skipped.
    pub fn scratch(&self) -> Check<Disk> {
        if !self.settings.may_overwrite {
            return skipped("it writes: allow that with --overwrite");
        }
        self.disk()
    }

    /// The namespace of keys and values, if its content may be lost.
    ///
    /// # Errors
    /// Skipped.
    pub fn scratch_store(&self) -> Check<Store> {
        match self.store {
            Some(_) if !self.settings.may_overwrite => skipped("it writes: allow that with --overwrite"),
            Some(store) => Ok(store),
            None => skipped("there is no namespace of keys and values"),
        }
    }

    /// Most bytes that one command may transfer, as far as the target says.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> Option<u64> {
        self.identify.transfer_limit_bytes(self.cap.page_bytes_min())
    }

    /// In-capsule data of an I/O command, bytes.
    #[must_use]
    pub fn in_capsule_bytes(&self) -> u32 {
        u32::try_from(self.identify.in_capsule_bytes()).unwrap_or(u32::MAX)
    }

    /// Everything works: a new association, and I/O on it.
    ///
    /// # Errors
    /// Something does not.
    pub fn check_healthy(&self) -> Check {
        let mut association = self.associate(Digests::empty())?;
        let Ok(disk) = self.disk() else { return Ok(()) };
        let answer = association.io.must(disk.read(0, 1), Move::Back(disk.block_bytes))?;
        holds(answer.data.len() == disk.block_bytes as usize, "a read brings less than a block")
    }
}

/// A command refused with the place of what is wrong in it.
///
/// # Errors
/// It was not, or names another place.
pub fn expect_parameter(answer: &Answer, offset: u16, in_data: bool) -> Check {
    expect_status(answer, &[Status::CONNECT_INVALID_PARAMETERS])?;
    let wanted = u32::from(offset) | u32::from(in_data) << 16;
    let dw0 = answer.cqe.dw0();
    holds(dw0 == wanted, format!("it names {dw0:#x} as what is invalid, not {wanted:#x}"))?;
    holds(answer.cqe.dw1() == 0, "dword 1 is not zero")
}

impl Disk {
    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.block_count.saturating_mul(self.block_bytes.into())
    }

    /// Reads blocks.
    #[must_use]
    pub fn read(&self, lba: u64, blocks: u32) -> Sqe {
        Sqe::read(self.nsid, lba, blocks)
    }

    /// Writes blocks.
    #[must_use]
    pub fn write(&self, lba: u64, blocks: u32) -> Sqe {
        Sqe::write(self.nsid, lba, blocks)
    }

    /// Data for so many blocks.
    #[must_use]
    pub fn fill(&self, blocks: u32, byte: u8) -> Vec<u8> {
        vec![byte; (blocks * self.block_bytes) as usize]
    }

    /// How data goes to the controller: in the capsule if it fits, as hosts do.
    #[must_use]
    pub fn bring<'a>(&self, data: &'a [u8]) -> Move<'a> {
        if data.len() <= self.in_capsule_bytes as usize { Move::InCapsule(data) } else { Move::Asked(data) }
    }

    /// Blocks of a write that does not fit in a capsule, at least 8: not every target asks for what would have fitted.
    #[must_use]
    pub fn asked_blocks(&self) -> u32 {
        (self.in_capsule_bytes / self.block_bytes + 1).clamp(8, 512)
    }

    /// Writes blocks of one byte.
    ///
    /// # Errors
    /// It fails.
    pub fn put(&self, io: &mut Queue, lba: u64, blocks: u32, byte: u8) -> Check {
        let data = self.fill(blocks, byte);
        io.must(self.write(lba, blocks), self.bring(&data)).about("Write").map(drop)
    }

    /// Blocks must be of one byte.
    ///
    /// # Errors
    /// They are not.
    pub fn holds(&self, io: &mut Queue, lba: u64, blocks: u32, byte: u8) -> Check {
        let answer = io.must(self.read(lba, blocks), Move::Back(blocks * self.block_bytes)).about("Read")?;
        let wrong = answer.data.iter().position(|have| *have != byte);
        match wrong {
            None => holds(answer.data.len() == (blocks * self.block_bytes) as usize, "a short read"),
            Some(at) => differs(format!(
                "block {} holds {:#04x}, not {byte:#04x}",
                lba + (at as u64) / u64::from(self.block_bytes),
                answer.data[at]
            )),
        }
    }
}
