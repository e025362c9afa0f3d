//! Namespaces on a double of a device, driven by reactors. Messages and rings of the double are those of rust-vmm.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use proptest::prelude::*;
use reactor::EngineKind;
use rustix::event::{PollFd, PollFlags, poll};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{
    BackendReqHandler, Error as VhostError, GpuBackend, Result as VhostResult, VhostUserBackendReqHandlerMut,
};
use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use super::{VHOST_USER_DEADLINE_S_DEFAULT, VhostUserDevice, VhostUserPlace, VhostUserStore};
use crate::block::remote::RemoteSettings;
use crate::block::remote::suite::{self, BLOCK, BLOCKS, Disk, ENGINES, Server, SharedDisk};
use crate::namespace::{BlockStore, StoreError};
use crate::testing::{Bench, Rig, Step, model_steps, promise_steps};

/// How the device behaves.
#[derive(Clone)]
struct Manner {
    features: u64,
    queues: u16,
    has_acknowledgements: bool,
    size_max: u32,
    zeroed_sectors_max: u32,
    flush_fails: bool,
    lie: Option<Lie>,
    /// Queues that had requests.
    used_queues: Vec<u8>,
}

/// What a hostile device writes into the rings.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// Another chain than the one it was given.
    Chain(u32),
    /// More chains than there are.
    Count(u16),
    Status(u8),
    /// The same chain twice.
    Twice,
}

fn features(bits: &[u32]) -> u64 {
    let always =
        [VIRTIO_F_VERSION_1, 30, VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_CONFIG_WCE];
    always.iter().chain(bits).fold(0, |all, bit| all | 1 << bit)
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            features: features(&[VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_WRITE_ZEROES]),
            queues: 4,
            has_acknowledgements: true,
            size_max: 0,
            zeroed_sectors_max: 256,
            flush_fails: false,
            lie: None,
            used_queues: Vec::new(),
        }
    }
}

impl suite::Manner for Manner {
    type Place = VhostUserDevice;

    /// As real ones do.
    const IS_ALONE: bool = true;

    fn place(socket: &Path) -> VhostUserDevice {
        VhostUserDevice::new(VhostUserPlace {
            socket: socket.into(),
            deadline_s: VHOST_USER_DEADLINE_S_DEFAULT,
        })
    }

    fn set_deadline(device: &mut VhostUserDevice, seconds: u32) {
        device.place.deadline_s = seconds;
    }

    fn set_flush_fails(&mut self, fails: bool) {
        self.flush_fails = fails;
    }

    fn serve(client: UnixStream, disk: &Arc<SharedDisk<Self>>) {
        let back_end = Arc::new(Mutex::new(BackEnd::new(disk)));
        let mut handler = BackendReqHandler::from_stream(client, Arc::clone(&back_end));
        while handler.handle_request().is_ok() {}
        back_end.lock().unwrap().end();
    }
}

/// A queue as the front end sets it up.
#[derive(Default)]
struct Vring {
    size: u16,
    addresses: Option<[u64; 3]>,
    call: Option<File>,
    kick: Option<File>,
    thread: Option<JoinHandle<()>>,
}

/// The device at one connection.
struct BackEnd {
    disk: Arc<SharedDisk<Manner>>,
    manner: Manner,
    features: u64,
    memory: Option<Arc<GuestMemoryMmap>>,
    vrings: Vec<Vring>,
    is_ended: Arc<AtomicBool>,
}

impl BackEnd {
    fn new(disk: &Arc<SharedDisk<Manner>>) -> Self {
        let manner = disk.lock().manner.clone();
        Self {
            disk: Arc::clone(disk),
            features: 0,
            memory: None,
            vrings: (0..manner.queues).map(|_| Vring::default()).collect(),
            manner,
            is_ended: Arc::default(),
        }
    }

    fn end(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        self.disk.wake();
        for vring in &mut self.vrings {
            if let (Some(kick), Some(thread)) = (&mut vring.kick, vring.thread.take()) {
                kick.write_all(&1_u64.to_ne_bytes()).unwrap();
                thread.join().unwrap();
            }
        }
    }

    fn start(&mut self, number: u8) {
        let vring = &mut self.vrings[usize::from(number)];
        let [descriptors, used, available] = vring.addresses.unwrap();
        let mut queue = Queue::new(vring.size).unwrap();
        queue.try_set_desc_table_address(GuestAddress(descriptors)).unwrap();
        queue.try_set_used_ring_address(GuestAddress(used)).unwrap();
        queue.try_set_avail_ring_address(GuestAddress(available)).unwrap();
        queue.set_ready(true);
        let memory = Arc::clone(self.memory.as_ref().unwrap());
        assert!(queue.is_valid(&*memory), "a queue that is none");
        let mut kick = vring.kick.as_ref().unwrap().try_clone().unwrap();
        let mut call = vring.call.as_ref().unwrap().try_clone().unwrap();
        let (disk, is_ended, features) = (Arc::clone(&self.disk), Arc::clone(&self.is_ended), self.features);
        vring.thread = Some(std::thread::spawn(move || {
            while !is_ended.load(Ordering::Relaxed) {
                poll(&mut [PollFd::new(&kick, PollFlags::IN)], None).unwrap();
                let _ = kick.read(&mut [0; 8]);
                while let Some(chain) = queue.pop_descriptor_chain(Arc::clone(&memory)) {
                    let head = chain.head_index();
                    let chain: Vec<Descriptor> = chain.collect();
                    let answering = disk.answering(|| is_ended.load(Ordering::Relaxed));
                    let Some(mut held) = answering else { break };
                    held.manner.used_queues.push(number);
                    carry_out(&mut held, features, &memory, &chain);
                    let lie = held.manner.lie;
                    drop(held);
                    let used = queue.used_ring();
                    match lie {
                        Some(Lie::Chain(other)) => queue.add_used(&*memory, head, 0).map(|()| {
                            let entry = u64::from(queue.next_used().wrapping_sub(1) % queue.size());
                            memory.write_obj(other, GuestAddress(used + 4 + 8 * entry)).unwrap();
                        }),
                        Some(Lie::Count(more)) => {
                            memory.store(more, GuestAddress(used + 2), Ordering::Release).unwrap();
                            Ok(())
                        }
                        Some(Lie::Status(status)) => {
                            memory.write_obj(status, chain.last().unwrap().addr()).unwrap();
                            queue.add_used(&*memory, head, 0)
                        }
                        Some(Lie::Twice) => {
                            queue.add_used(&*memory, head, 0).unwrap();
                            queue.add_used(&*memory, head, 0)
                        }
                        None => queue.add_used(&*memory, head, 0),
                    }
                    .unwrap();
                    let _ = call.write(&1_u64.to_ne_bytes());
                }
            }
        }));
    }
}

/// Carries a request out, and writes its status.
fn carry_out(disk: &mut Disk<Manner>, features: u64, memory: &GuestMemoryMmap, chain: &[Descriptor]) {
    let [head, data @ .., status] = chain else { panic!("a request without head or status") };
    assert!((head.len(), status.len(), status.is_write_only()) == (16, 1, true));
    let kind: u32 = memory.read_obj(head.addr()).unwrap();
    let sector: u64 = memory.read_obj(GuestAddress(head.addr().0 + 8)).unwrap();
    let has = |bit: u32| features >> bit & 1 == 1;
    let mut outcome = VIRTIO_BLK_S_OK;
    let range_of = |sector: u64, bytes: u64| {
        let start = (sector * 512) as usize;
        start..start + bytes as usize
    };
    match (kind, data) {
        (VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT, [data]) => {
            let range = range_of(sector, data.len().into());
            let size_max = disk.manner.size_max;
            assert!(size_max == 0 || data.len() <= size_max, "a segment that is too long");
            match disk.current.get_mut(range) {
                None => outcome = VIRTIO_BLK_S_IOERR,
                Some(bytes) if kind == VIRTIO_BLK_T_IN => memory.write_slice(bytes, data.addr()).unwrap(),
                Some(bytes) => memory.read_slice(bytes, data.addr()).unwrap(),
            }
        }
        (VIRTIO_BLK_T_FLUSH, []) => {
            assert!(has(VIRTIO_BLK_F_FLUSH), "a command that was not agreed");
            if disk.manner.flush_fails {
                outcome = VIRTIO_BLK_S_IOERR;
            } else {
                disk.stable = disk.current.clone();
            }
        }
        (VIRTIO_BLK_T_WRITE_ZEROES, [segment]) => {
            assert!(has(VIRTIO_BLK_F_WRITE_ZEROES) && segment.len() == 16);
            let sector: u64 = memory.read_obj(segment.addr()).unwrap();
            let sectors: u32 = memory.read_obj(GuestAddress(segment.addr().0 + 8)).unwrap();
            assert!(sectors <= disk.manner.zeroed_sectors_max);
            match disk.current.get_mut(range_of(sector, u64::from(sectors) * 512)) {
                None => outcome = VIRTIO_BLK_S_IOERR,
                Some(bytes) => bytes.fill(0),
            }
        }
        _ => outcome = VIRTIO_BLK_S_UNSUPP,
    }
    memory.write_obj(outcome as u8, status.addr()).unwrap();
}

const UNSUPPORTED: VhostError = VhostError::InvalidOperation("not supported");

impl VhostUserBackendReqHandlerMut for BackEnd {
    fn set_owner(&mut self) -> VhostResult<()> {
        Ok(())
    }
    fn reset_owner(&mut self) -> VhostResult<()> {
        Err(UNSUPPORTED)
    }
    fn reset_device(&mut self) -> VhostResult<()> {
        Err(UNSUPPORTED)
    }
    fn get_features(&mut self) -> VhostResult<u64> {
        Ok(self.manner.features)
    }
    fn set_features(&mut self, features: u64) -> VhostResult<()> {
        assert_eq!(features & !self.manner.features, 0, "features that are not offered");
        self.features = features;
        Ok(())
    }
    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> VhostResult<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mapped = regions.iter().zip(files).map(|(region, file)| {
            // The file cannot be cut under the target.
            assert!(file.set_len(0).is_err());
            assert!({ region.user_addr } == { region.guest_phys_addr });
            GuestRegionMmap::new(region.mmap_region(file).unwrap(), GuestAddress(region.guest_phys_addr))
                .unwrap()
        });
        self.memory = Some(Arc::new(GuestMemoryMmap::from_regions(mapped.collect()).unwrap()));
        Ok(None)
    }
    fn set_vring_num(&mut self, index: u32, num: u32) -> VhostResult<()> {
        self.vrings[index as usize].size = num as u16;
        Ok(())
    }
    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> VhostResult<()> {
        self.vrings[index as usize].addresses = Some([descriptor, used, available]);
        Ok(())
    }
    fn set_vring_base(&mut self, _: u32, base: u32) -> VhostResult<()> {
        assert_eq!(base, 0);
        Ok(())
    }
    fn get_vring_base(&mut self, _: u32) -> VhostResult<VhostUserVringState> {
        Err(UNSUPPORTED)
    }
    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> VhostResult<()> {
        self.vrings[usize::from(index)].kick = file;
        Ok(())
    }
    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> VhostResult<()> {
        self.vrings[usize::from(index)].call = file;
        Ok(())
    }
    fn set_vring_err(&mut self, _: u8, _: Option<File>) -> VhostResult<()> {
        Ok(())
    }
    fn get_protocol_features(&mut self) -> VhostResult<VhostUserProtocolFeatures> {
        let mut offered = VhostUserProtocolFeatures::CONFIG;
        offered.set(VhostUserProtocolFeatures::REPLY_ACK, self.manner.has_acknowledgements);
        offered.set(VhostUserProtocolFeatures::MQ, self.manner.features >> VIRTIO_BLK_F_MQ & 1 == 1);
        Ok(offered)
    }
    fn set_protocol_features(&mut self, _: u64) -> VhostResult<()> {
        Ok(())
    }
    fn get_queue_num(&mut self) -> VhostResult<u64> {
        Ok(self.manner.queues.into())
    }
    fn set_vring_enable(&mut self, index: u32, is_enabled: bool) -> VhostResult<()> {
        assert!(is_enabled);
        self.start(index as u8);
        Ok(())
    }
    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> VhostResult<Vec<u8>> {
        let mut space = [0; 60];
        let sectors = self.disk.lock().current.len() as u64 / 512;
        space[..8].copy_from_slice(&sectors.to_le_bytes());
        space[8..12].copy_from_slice(&self.manner.size_max.to_le_bytes());
        space[20..24].copy_from_slice(&512_u32.to_le_bytes());
        space[34..36].copy_from_slice(&self.manner.queues.to_le_bytes());
        space[48..52].copy_from_slice(&self.manner.zeroed_sectors_max.to_le_bytes());
        Ok(space[offset as usize..][..size as usize].to_vec())
    }
    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> VhostResult<()> {
        Err(UNSUPPORTED)
    }
    fn set_gpu_socket(&mut self, _: GpuBackend) -> VhostResult<()> {
        Err(UNSUPPORTED)
    }
    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> VhostResult<File> {
        Err(UNSUPPORTED)
    }
    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> VhostResult<(VhostUserInflight, File)> {
        Err(UNSUPPORTED)
    }
    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> VhostResult<()> {
        Err(UNSUPPORTED)
    }
    fn get_max_mem_slots(&mut self) -> VhostResult<u64> {
        Err(UNSUPPORTED)
    }
    fn add_mem_region(
        &mut self,
        _: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> VhostResult<Option<VhostUserMemoryRegionBase>> {
        Err(UNSUPPORTED)
    }
    fn remove_mem_region(&mut self, _: &VhostUserSingleMemoryRegion) -> VhostResult<()> {
        Err(UNSUPPORTED)
    }
    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> VhostResult<Option<File>> {
        Err(UNSUPPORTED)
    }
    fn check_device_state(&mut self) -> VhostResult<()> {
        Err(UNSUPPORTED)
    }
    fn get_shmem_config(&mut self) -> VhostResult<VhostUserShMemConfig> {
        Err(UNSUPPORTED)
    }
    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> VhostResult<()> {
        Err(UNSUPPORTED)
    }
}

/// Devices with different abilities.
fn manners() -> [Manner; 3] {
    [
        Manner::default(),
        Manner {
            features: features(&[VIRTIO_BLK_F_FLUSH]),
            queues: 1,
            has_acknowledgements: false,
            ..Manner::default()
        },
        Manner {
            features: features(&[VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_F_SIZE_MAX]),
            size_max: 65_537,
            zeroed_sectors_max: 129,
            ..Manner::default()
        },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn a_device_is_a_vector_of_bytes(steps in model_steps(BLOCKS, false)) {
        suite::equals_the_model(manners(), &steps)?;
    }

    #[test]
    fn what_is_promised_survives_a_loss_of_power(steps in promise_steps()) {
        suite::promises_survive(Manner::default(), steps)?;
    }

    #[test]
    fn a_lie_ends_the_connection(
        lie in prop_oneof![
            any::<u32>().prop_filter("another one", |chain| *chain != 0).prop_map(Lie::Chain),
            (3u16..).prop_map(Lie::Count),
            (3u8..).prop_map(Lie::Status),
            Just(Lie::Twice),
        ],
    ) {
        suite::a_breach_ends_the_connection(|manner: &mut Manner| manner.lie = Some(lie))?;
    }
}

#[test]
fn reactors_share_the_queues_there_are() {
    for queues in [1, 2, 4] {
        let server = Server::new(Manner { queues, ..Manner::default() });
        let (rigs, count) = suite::reactors_at_work(&server.open());
        let mut used = server.with(|disk| std::mem::take(&mut disk.manner.used_queues));
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), count.min(queues.into()), "{queues}: {used:?}");
        assert_eq!(server.with(|disk| disk.connection_count), 1);
        suite::reactors_leave(rigs);
    }
}

#[test]
fn commands_wait_for_a_device_that_comes_back() {
    suite::commands_wait_for_a_server_that_comes_back::<Manner>();
}

#[test]
fn hosts_learn_that_unflushed_writes_may_be_lost() {
    suite::hosts_learn_that_unflushed_writes_may_be_lost::<Manner>();
}

#[test]
fn commands_end_within_the_deadline() {
    suite::commands_end_within_the_deadline::<Manner>();
}

#[test]
fn a_failed_flush_closes_the_namespace() {
    suite::a_failed_flush_closes_the_namespace::<Manner>();
}

/// Of more and longer requests than the ring has room for.
#[test]
fn more_requests_than_the_ring_holds_wait_for_their_turn() {
    let server = Server::new(Manner::default());
    server.with(|disk| disk.current = vec![3; 4 << 20]);
    let store = server.open();
    for engine in ENGINES {
        let Some(mut rig) = Rig::attach(&store, engine) else { continue };
        let steps = (0..300u64).map(|at| Step::Read { offset: at * BLOCK, length: 512 });
        let long = Step::Read { offset: 0, length: 1 << 20 };
        let results = rig.run_all(steps.chain([long]).collect());
        assert!(
            results.iter().all(|read| read.as_ref().is_ok_and(|data| data.iter().all(|byte| *byte == 3)))
        );
    }
}

#[test]
fn a_device_grows_while_it_is_used_and_does_not_come_back_smaller() {
    let server = Server::new(Manner::default());
    let store = server.open();
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert!(rig.read(0, 512).is_ok());
    server.resize(2 * BLOCKS);
    suite::growth_is_seen(&store, &mut rig);
    assert_eq!(server.with(|disk| disk.connection_count), 1);
    server.go_down();
    server.resize(BLOCKS);
    server.come_back();
    suite::a_smaller_one_is_closed(&store, &mut rig);
}

#[test]
fn what_cannot_be_served_is_refused_with_its_remedy() {
    let server = Server::new(Manner::default());
    let with = |features| Server::new(Manner { features, ..Manner::default() });
    let no_flush = with(features(&[]));
    let old = with(1 << 30);
    let short = Server::new(Manner {
        features: features(&[VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_SIZE_MAX]),
        size_max: 4096,
        ..Manner::default()
    });
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("socket");
    let stranger = UnixListener::bind(&other).unwrap();
    let talks = std::thread::spawn(move || {
        let mut client = stranger.accept().unwrap().0;
        client.read_exact(&mut [0; 12])?;
        client.write_all(b"220 mail.example ESMTP ready\r\n")
    });
    let refusals = [
        server.refusal(|settings| settings.place.place.socket = "/nowhere".into()),
        server
            .refusal(|settings| settings.place.place.socket = other.clone())
            .replace(&*directory.path().to_string_lossy(), "DIR"),
        server.refusal(|settings| settings.block_bytes = Some(65536)),
        no_flush.refusal(|_| {}),
        old.refusal(|_| {}),
        short.refusal(|_| {}),
    ];
    talks.join().unwrap().unwrap();
    insta::assert_snapshot!(refusals.join("\n"), @r"
    vhost-user:/nowhere: cannot connect: No such file or directory (os error 2)
    vhost-user:DIR/socket: the device broke the protocol of vhost-user at request 1
    vhost-user:PATH is empty: make it larger where its server is
    vhost-user:PATH: its server has no flush, so nothing would ever be known to be durable: give readonly to serve it for reading
    vhost-user:PATH: the device is older than virtio 1.0, or has no protocol features of vhost-user
    vhost-user:PATH: the device takes segments of 4096 bytes: 64 KiB are needed
    ");
    let read_only =
        VhostUserStore::open(RemoteSettings { is_read_only: true, ..no_flush.settings() }).unwrap();
    assert!(read_only.geometry().is_read_only);
    let protected = with(features(&[VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO]));
    let store = protected.open();
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert_eq!(rig.write(0, &[1; 512]), Err(StoreError::ReadOnly));
    assert_eq!(rig.flush(), Ok(vec![]));
}
