//! The target under test: its settings, and its identity before any hostile input.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use peer::finding::{About, Check, Finding, differs, holds, skipped};
use peer::queue::{Answer, Move, Queue, expect_status};
use peer::raw_host::{Association, ENTRIES, RawHost, enable, identify, property, set_queues};
use security::tls::HostKeys;
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

use crate::client_hello::is_refused_by_tls;
use crate::tls_link::TlsLink;

/// Settings of a probe.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The host NQN that rows use, and the subsystem they connect to.
    pub host: RawHost,
    /// The namespace; by default the first block namespace.
    pub nsid: Option<Nsid>,
    /// Time limit of one row; four times as long if it waits for the target's timers.
    pub row_limit: Duration,
    /// Whether the namespace's content may be destroyed.
    pub may_overwrite: bool,
    /// The longest allowed pause of the neighbour's I/O.
    pub pause_limit: Duration,
    /// Address of the memcached listener.
    pub memcached: Option<SocketAddr>,
    /// A namespace that may be removed and restored.
    pub removal: Option<Removal>,
    /// Path of the target's log.
    pub log: Option<PathBuf>,
    /// The key of TLS, for rows that take a session.
    pub tls: Option<Arc<HostKeys>>,
}

/// A namespace that may be removed while rows run; other rows do not use it.
#[derive(Clone, Debug)]
pub struct Removal {
    /// Namespace id.
    pub nsid: Nsid,
    /// Shell command line that removes it from the target.
    pub remove: String,
    /// Shell command line that restores it.
    pub restore: String,
}

/// The target under test, with what it reports about itself.
#[derive(Clone, Debug)]
pub struct Target {
    /// Settings of the probe.
    pub settings: Settings,
    /// Its CAP property.
    pub cap: Cap,
    /// Its Identify Controller data.
    pub identify: Box<IdentifyController>,
    /// It takes no connection in cleartext.
    pub is_tls_only: bool,
    /// The CNTLID that Connect returned, and what the target demands before anything else.
    pub connected: ConnectResult,
    /// The block namespace under test.
    pub disk: Option<Disk>,
    /// The key-value namespace under test.
    pub store: Option<Store>,
}

/// A block namespace.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Namespace id.
    pub nsid: Nsid,
    /// Block size, bytes.
    pub block_bytes: u32,
    /// Size, blocks.
    pub block_count: u64,
    /// In-capsule data size, bytes.
    pub in_capsule_bytes: u32,
}

/// A key-value namespace.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// Namespace id.
    pub nsid: Nsid,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Maximum value length, bytes.
    pub value_bytes_max: u32,
    /// In-capsule data size, bytes.
    pub in_capsule_bytes: u32,
}

impl Target {
    /// Connects and identifies the target and its namespaces.
    pub fn new(settings: Settings) -> Check<Self> {
        let mut peer = Self {
            settings,
            cap: Cap::default(),
            identify: Box::default(),
            is_tls_only: false,
            connected: ConnectResult::default(),
            disk: None,
            store: None,
        };
        let mut admin = match peer.host().queue(Digests::empty()) {
            Err(Finding::Differs(_)) if peer.speaks_tls()? => {
                peer.is_tls_only = true;
                return Ok(peer);
            }
            admin => admin?,
        };
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
            // Namespaces of other command sets have no such page.
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

    /// The first key-value namespace, or the configured one.
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

    /// The host that rows use.
    pub fn host(&self) -> &RawHost {
        &self.settings.host
    }

    /// Whether the port speaks TLS: it refuses a ClientHello without a key by an alert, or accepts the key.
    fn speaks_tls(&self) -> Check<bool> {
        if is_refused_by_tls(self.host())? {
            return Ok(true);
        }
        // Linux targets close instead of sending an alert.
        let keys = self.settings.tls.as_deref();
        Ok(keys.is_some_and(|keys| TlsLink::initialised(self.host(), keys).is_ok()))
    }

    /// Checks that the target still accepts its key of TLS, or as a target without one still refuses a ClientHello.
    pub(crate) fn check_tls(&self) -> Check {
        match self.settings.tls.as_deref() {
            Some(keys) => TlsLink::initialised(self.host(), keys).map(drop),
            None => holds(is_refused_by_tls(self.host())?, "it refuses a ClientHello by an alert no longer"),
        }
    }

    /// Checks that the target executes commands of a host that connects in cleartext and has no secret.
    ///
    /// # Errors
    /// Skipped if it does not.
    pub fn admitted(&self) -> Check {
        if self.connected.authentication_required() {
            return skipped("the target wants authentication");
        }
        Ok(())
    }

    /// Opens an admin queue with an enabled controller.
    pub fn admin(&self, digests: Digests) -> Check<(Queue, Cntlid)> {
        self.admitted()?;
        self.host().admin(digests)
    }

    /// Opens an association with one I/O queue.
    pub fn associate(&self, digests: Digests) -> Check<Association> {
        self.associate_with(digests, ENTRIES)
    }

    /// [`associate`](Self::associate) with an I/O queue of this many entries.
    pub fn associate_with(&self, digests: Digests, entries: u32) -> Check<Association> {
        let (mut admin, cntlid) = self.admin(digests)?;
        set_queues(&mut admin, 8)?;
        let io = self.host().connect_io(cntlid, 1, entries, digests)?;
        Ok(Association { admin, io, cntlid })
    }

    /// Opens an I/O queue that holds its admin queue.
    pub fn io(&self, digests: Digests) -> Check<Queue> {
        self.io_with(digests, ENTRIES)
    }

    /// [`io`](Self::io) with this many entries.
    pub fn io_with(&self, digests: Digests, entries: u32) -> Check<Queue> {
        let Association { admin, io, .. } = self.associate_with(digests, entries)?;
        Ok(io.keeping(admin))
    }

    /// The block namespace.
    ///
    /// # Errors
    /// Skipped without one.
    pub fn disk(&self) -> Check<Disk> {
        self.admitted()?;
        match self.disk {
            Some(disk) if disk.size_bytes() >= 32 << 20 => Ok(disk),
            Some(_) => skipped("the namespace is smaller than 32 MiB"),
            None => skipped("there is no namespace of blocks"),
        }
    }

    /// The block namespace, if its content may be destroyed.
    ///
    /// # Errors
    /// Skipped otherwise.
    pub fn scratch(&self) -> Check<Disk> {
        self.admitted()?;
        if !self.settings.may_overwrite {
            return skipped("it writes: allow that with --overwrite");
        }
        self.disk()
    }

    /// The key-value namespace, if its content may be destroyed.
    ///
    /// # Errors
    /// Skipped otherwise.
    pub fn scratch_store(&self) -> Check<Store> {
        self.admitted()?;
        match self.store {
            Some(_) if !self.settings.may_overwrite => skipped("it writes: allow that with --overwrite"),
            Some(store) => Ok(store),
            None => skipped("there is no namespace of keys and values"),
        }
    }

    /// Maximum data transfer size that the target reports, bytes.
    pub fn transfer_bytes_max(&self) -> Option<u64> {
        self.identify.transfer_limit_bytes(self.cap.page_bytes_min())
    }

    /// In-capsule data size of I/O commands, bytes.
    pub fn in_capsule_bytes(&self) -> u32 {
        u32::try_from(self.identify.in_capsule_bytes()).unwrap_or(u32::MAX)
    }

    /// Checks that a new association and I/O on it work.
    pub fn check_healthy(&self) -> Check {
        if self.is_tls_only {
            return self.check_tls();
        }
        if self.connected.authentication_required() {
            let mut queue = self.host().queue(Digests::empty())?;
            let answer = self.host().connect_admin(&mut queue)?;
            let is_asked = ConnectResult::from_bits(answer.cqe.dw0()).authentication_required();
            return holds(is_asked, "it asks for authentication no longer");
        }
        let mut association = self.associate(Digests::empty())?;
        let Ok(disk) = self.disk() else { return Ok(()) };
        let answer = association.io.must(disk.read(0, 1), Move::Back(disk.block_bytes))?;
        holds(answer.data.len() == disk.block_bytes as usize, "a read brings less than a block")
    }
}

/// Checks that a command failed with this parameter error location.
pub fn expect_parameter(answer: &Answer, offset: u16, in_data: bool) -> Check {
    expect_status(answer, &[Status::CONNECT_INVALID_PARAMETERS])?;
    let wanted = u32::from(offset) | u32::from(in_data) << 16;
    let dw0 = answer.cqe.dw0();
    holds(dw0 == wanted, format!("it names {dw0:#x} as what is invalid, not {wanted:#x}"))?;
    holds(answer.cqe.dw1() == 0, "dword 1 is not zero")
}

impl Disk {
    /// Size, bytes.
    pub fn size_bytes(&self) -> u64 {
        self.block_count.saturating_mul(self.block_bytes.into())
    }

    /// A Read command.
    pub fn read(&self, lba: u64, blocks: u32) -> Sqe {
        Sqe::read(self.nsid, lba, blocks)
    }

    /// A Write command.
    pub fn write(&self, lba: u64, blocks: u32) -> Sqe {
        Sqe::write(self.nsid, lba, blocks)
    }

    /// Data for this many blocks, every byte the same.
    pub fn fill(&self, blocks: u32, byte: u8) -> Vec<u8> {
        vec![byte; (blocks * self.block_bytes) as usize]
    }

    /// Data transfer of a write: in the capsule if it fits, as hosts do.
    pub fn bring<'a>(&self, data: &'a [u8]) -> Move<'a> {
        if data.len() <= self.in_capsule_bytes as usize { Move::InCapsule(data) } else { Move::Asked(data) }
    }

    /// Length of a write that does not fit in a capsule, blocks; at least 8, as some targets request no data that would
    /// have fitted.
    pub fn asked_blocks(&self) -> u32 {
        (self.in_capsule_bytes / self.block_bytes + 1).clamp(8, 512)
    }

    /// Fills blocks with one byte value.
    pub fn put(&self, io: &mut Queue, lba: u64, blocks: u32, byte: u8) -> Check {
        let data = self.fill(blocks, byte);
        io.must(self.write(lba, blocks), self.bring(&data)).about("Write").map(drop)
    }

    /// Checks that blocks contain one byte value.
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
