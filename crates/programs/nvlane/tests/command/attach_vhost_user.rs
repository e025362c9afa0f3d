//! `nvlane attach vhost-user`: a front end of the crate vhost with a guest's memory and a driver's virtqueue; hostile descriptors;
//! a bridge that is killed; mistakes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::mistakes::code_soon;
use crate::support::{Target, nvlane, run};

const MEMORY_BYTES: u64 = 4 << 20;
/// Entries of the queue.
const SIZE: u16 = 8;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const HEAD: u64 = 0x4000;
const STATUS: u64 = 0x5000;
const DATA: u64 = 0x10_0000;

/// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// Kinds of requests, and outcomes.
const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const OK: u8 = 0;
const FAILED: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// A bridge of its own process.
fn bridge(address: &str, socket: &Path, options: &[&str]) -> Child {
    let mut command = nvlane();
    command.args(["attach", "vhost-user", address, "--socket"]).arg(socket).args(options);
    let mut process = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let line = BufReader::new(process.stdout.take().expect("piped")).lines().next();
    assert_eq!(line.expect("a line").expect("text"), socket.to_str().expect("text"));
    process
}

/// What survives a bridge: memory, and events.
struct Guest {
    memory: GuestMemoryMmap,
    kick: EventFd,
    call: EventFd,
    error: EventFd,
    /// Requests so far.
    count: u16,
}

impl Guest {
    fn new() -> Self {
        let file = File::from(rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory"));
        file.set_len(MEMORY_BYTES).expect("memory");
        let bytes = usize::try_from(MEMORY_BYTES).expect("small");
        let range = (GuestAddress(0), bytes, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).expect("memory");
        let event = || EventFd::new(0).expect("an event descriptor");
        Self { memory, kick: event(), call: event(), error: event(), count: 0 }
    }

    /// Writes descriptors (address, length, flags, next), and makes the first one available.
    fn offer(&mut self, descriptors: &[(u64, u32, u16, u16)]) {
        for (index, (address, length, flags, next)) in (0..).zip(descriptors) {
            let bytes = [
                &address.to_le_bytes()[..],
                &length.to_le_bytes(),
                &flags.to_le_bytes(),
                &next.to_le_bytes(),
            ];
            self.memory.write_slice(&bytes.concat(), GuestAddress(DESCRIPTORS + index * 16)).expect("inside");
        }
        // By the event index: an interrupt for this request.
        self.memory.write_obj(self.count, GuestAddress(AVAILABLE + 4 + u64::from(SIZE) * 2)).expect("inside");
        let place = AVAILABLE + 4 + u64::from(self.count % SIZE) * 2;
        self.memory.write_obj(0u16, GuestAddress(place)).expect("inside");
        self.count = self.count.wrapping_add(1);
        self.memory.write_obj(self.count, GuestAddress(AVAILABLE + 2)).expect("inside");
        self.kick.write(1).expect("room");
    }

    fn put_head(&self, kind: u32, sector: u64) {
        let head = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.memory.write_slice(&head, GuestAddress(HEAD)).expect("inside");
        self.memory.write_obj(0xff_u8, GuestAddress(STATUS)).expect("inside");
    }

    /// Whether this event comes within a minute.
    fn comes(event: &EventFd) -> bool {
        let epoll = Epoll::new().expect("an epoll set");
        let wanted = EpollEvent::new(EventSet::IN, 0);
        epoll.ctl(ControlOperation::Add, event.as_raw_fd(), wanted).expect("an event descriptor");
        let found = epoll.wait(60_000, &mut [EpollEvent::default()]).expect("it can be waited for");
        found == 1 && event.read().is_ok()
    }

    /// Waits until this many requests have ended in all. Returns the status of the last one.
    fn await_used(&self, count: u16) -> u8 {
        while self.memory.read_obj::<u16>(GuestAddress(USED + 2)).expect("inside") != count {
            assert!(Self::comes(&self.call), "no interrupt");
        }
        self.memory.read_obj(GuestAddress(STATUS)).expect("inside")
    }

    /// A request with data of the guest; its status.
    fn write(&mut self, kind: u32, sector: u64, data: &[u8]) -> u8 {
        self.put_head(kind, sector);
        self.memory.write_slice(data, GuestAddress(DATA)).expect("inside");
        let length = u32::try_from(data.len()).expect("short");
        match length {
            0 => self.offer(&[(HEAD, 16, NEXT, 1), (STATUS, 1, WRITE, 0)]),
            _ => self.offer(&[(HEAD, 16, NEXT, 1), (DATA, length, NEXT, 2), (STATUS, 1, WRITE, 0)]),
        }
        self.await_used(self.count)
    }

    /// A request with data for the guest; its status, and the data.
    fn read(&mut self, kind: u32, sector: u64, length: u32) -> (u8, Vec<u8>) {
        self.put_head(kind, sector);
        self.offer(&[(HEAD, 16, NEXT, 1), (DATA, length, NEXT | WRITE, 2), (STATUS, 1, WRITE, 0)]);
        let status = self.await_used(self.count);
        let mut data = vec![0; length as usize];
        self.memory.read_slice(&mut data, GuestAddress(DATA)).expect("inside");
        (status, data)
    }
}

/// A front end that is connected, with the queue of a guest.
struct FrontEnd {
    connection: Frontend,
    features: u64,
}

impl FrontEnd {
    fn connect(socket: &Path) -> Self {
        let mut connection = Frontend::connect(socket, 1).expect("a bridge");
        connection.set_owner().expect("an answer");
        let features = connection.get_features().expect("an answer");
        connection.set_features(features).expect("an answer");
        let offered = connection.get_protocol_features().expect("an answer");
        assert!(
            offered.contains(VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::INFLIGHT_SHMFD)
        );
        connection.set_protocol_features(offered).expect("an answer");
        // Every message is answered, also those that would have none.
        connection.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        assert_eq!(connection.get_queue_num().expect("an answer"), 2);
        Self { connection, features }
    }

    /// Gives queue 0 of the guest to the bridge.
    fn start(&mut self, guest: &Guest) {
        let region = guest.memory.iter().next().expect("memory");
        let info = VhostUserMemoryRegionInfo::from_guest_region(region).expect("it is in a file");
        self.connection.set_mem_table(&[info]).expect("an answer");
        self.start_queue(guest, 0);
    }

    fn start_queue(&mut self, guest: &Guest, next_available: u16) {
        let region = guest.memory.iter().next().expect("memory");
        let start =
            VhostUserMemoryRegionInfo::from_guest_region(region).expect("it is in a file").userspace_addr;
        let rings = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: start + DESCRIPTORS,
            used_ring_addr: start + USED,
            avail_ring_addr: start + AVAILABLE,
            log_addr: None,
        };
        self.connection.set_vring_num(0, SIZE).expect("an answer");
        self.connection.set_vring_addr(0, &rings).expect("an answer");
        self.connection.set_vring_base(0, next_available).expect("an answer");
        self.connection.set_vring_call(0, &guest.call).expect("an answer");
        self.connection.set_vring_err(0, &guest.error).expect("an answer");
        self.connection.set_vring_kick(0, &guest.kick).expect("an answer");
        self.connection.set_vring_enable(0, true).expect("an answer");
    }

    fn config(&mut self) -> Vec<u8> {
        let space = self.connection.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]);
        space.expect("an answer").1
    }
}

#[test]
fn a_guest_reads_what_it_wrote() {
    let target = Target::serving(&["ram:1M"]);
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("disk.sock");
    let mut process = bridge(&target.address, &socket, &["--queues", "2"]);
    let mut front_end = FrontEnd::connect(&socket);
    let space = front_end.config();
    let number = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().expect("four"));
    assert_eq!((number(0), number(20)), ((1 << 20) / 512, 4096), "sectors, and bytes of a block");
    assert_eq!(space[34..36], [2, 0], "queues");
    let mut guest = Guest::new();
    front_end.start(&guest);
    // Longer than one command's data.
    let data: Vec<u8> = (0..600 << 10).map(|at: u32| at.to_le_bytes()[1] ^ at.to_le_bytes()[2]).collect();
    assert_eq!(guest.write(OUT, 8, &data), OK);
    assert_eq!(guest.write(FLUSH, 0, &[]), OK);
    assert_eq!(guest.read(IN, 8, 600 << 10), (OK, data.clone()));
    let range = |sector: u64, count: u32, flags: u32| {
        [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat()
    };
    assert_eq!(guest.write(WRITE_ZEROES, 0, &range(8, 8, 1)), OK);
    assert_eq!(guest.write(DISCARD, 0, &[range(16, 8, 0), range(24, 16, 0)].concat()), OK);
    let zeroed = [vec![0; 16 << 10], data[16 << 10..].to_vec()].concat();
    assert_eq!(guest.read(IN, 8, 600 << 10), (OK, zeroed));
    let (status, serial) = guest.read(GET_ID, 0, 20);
    assert!(status == OK && serial.iter().all(u8::is_ascii_hexdigit), "{serial:?}");
    for (kind, sector, length) in [(OUT, 1, 4096), (OUT, 8, 512), (OUT, 2048, 4096), (DISCARD, 0, 7)] {
        assert_eq!(guest.write(kind, sector, &vec![1; length]), FAILED, "{kind} at {sector}");
    }
    assert_eq!(guest.read(IN, u64::MAX, 4096).0, FAILED);
    assert_eq!(guest.write(99, 0, &[]), UNSUPPORTED);
    // A second virtual machine is not served; the first one goes on, until the bridge ends.
    let other = Frontend::connect(&socket, 1).expect("a socket");
    let _ = other.set_owner();
    assert!(other.get_features().is_err(), "it is hung up on");
    assert_eq!(guest.read(IN, 0, 4096), (OK, vec![0; 4096]));
    assert_eq!(front_end.connection.get_vring_base(0).expect("an answer"), u32::from(guest.count));
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::TERM).expect("it lives");
    assert_eq!(code_soon(&mut process), Some(0));
    assert!(!socket.exists());
}

#[test]
fn a_read_only_disk_refuses_what_changes_data() {
    let target = Target::serving(&["ram:1M?lba=512"]);
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("disk.sock");
    let mut process = bridge(&target.address, &socket, &["--queues", "2", "--read-only"]);
    let mut front_end = FrontEnd::connect(&socket);
    let mut guest = Guest::new();
    front_end.start(&guest);
    assert_eq!(front_end.features >> 5 & 1, 1, "VIRTIO_BLK_F_RO");
    assert_eq!(front_end.features >> 13 & 3, 0, "neither Discard nor Write Zeroes");
    assert_eq!(guest.write(OUT, 1, &[1; 512]), FAILED);
    assert_eq!(guest.write(WRITE_ZEROES, 0, &[0; 16]), FAILED);
    assert_eq!(guest.read(IN, 1, 512), (OK, vec![0; 512]));
    process.kill().expect("it lives");
    process.wait().expect("it ends");
}

#[test]
fn a_hostile_guest_gets_an_error_or_a_closed_queue() {
    let target = Target::serving(&["ram:1M"]);
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("disk.sock");
    let mut process = bridge(&target.address, &socket, &["--queues", "2"]);
    let mut front_end = FrontEnd::connect(&socket);
    let mut guest = Guest::new();
    front_end.start(&guest);
    // Data that is not the guest's, or overlaps what it should not: an error, and nothing else.
    for (kind, flags) in [(IN, NEXT | WRITE), (OUT, NEXT)] {
        for (address, length) in
            [(MEMORY_BYTES - 2048, 4096), (1 << 40, 4096), (u64::MAX - 100, 4096), (0, u32::MAX)]
        {
            guest.put_head(kind, 0);
            guest.offer(&[(HEAD, 16, NEXT, 1), (address, length, flags, 2), (STATUS, 1, WRITE, 0)]);
            assert_eq!(guest.await_used(guest.count), FAILED, "{length} bytes at {address:#x}");
        }
    }
    // A guest violates the virtqueue rules: the bridge closes the queue and signals the front end, which may start it again.
    let broken: [&[(u64, u32, u16, u16)]; 6] = [
        &[(HEAD, 16, NEXT, 1), (STATUS, 1, NEXT | WRITE, 1)],
        &[(HEAD, 16, NEXT, 9)],
        &[(HEAD, 16, 0, 0)],
        &[(MEMORY_BYTES - 8, 16, NEXT, 1), (STATUS, 1, WRITE, 0)],
        &[(HEAD, 16, NEXT, 1), (MEMORY_BYTES, 1, WRITE, 0)],
        &[(DESCRIPTORS, 16, 4, 0)],
    ];
    for descriptors in broken {
        guest.put_head(IN, 0);
        guest.offer(descriptors);
        assert!(Guest::comes(&guest.error), "{descriptors:?}");
        let next = front_end.connection.get_vring_base(0).expect("an answer");
        assert_eq!(next, u32::from(guest.count));
        // What the driver would do: all rings anew.
        guest.count = 0;
        guest.memory.write_slice(&[0; 0x3000], GuestAddress(DESCRIPTORS)).expect("inside");
        front_end.start_queue(&guest, 0);
        assert_eq!(guest.read(IN, 0, 4096), (OK, vec![0; 4096]), "after {descriptors:?}");
    }
    // An index that no driver can have.
    guest.memory.write_obj(guest.count + 100, GuestAddress(AVAILABLE + 2)).expect("inside");
    guest.kick.write(1).expect("room");
    assert!(Guest::comes(&guest.error));
    assert!(process.try_wait().expect("it can be waited for").is_none(), "it lives");
    process.kill().expect("it lives");
    process.wait().expect("it ends");
}

#[test]
fn a_request_under_way_survives_its_bridge() {
    let target = Target::serving(&["ram:1M"]);
    let stop = |signal| {
        let pid = Pid::from_raw(i32::try_from(target.id()).expect("a pid")).expect("a pid");
        kill_process(pid, signal).expect("it lives");
    };
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("disk.sock");
    let mut process = bridge(&target.address, &socket, &["--queues", "2"]);
    let mut guest = Guest::new();
    let mut front_end = FrontEnd::connect(&socket);
    let wanted = VhostUserInflight { mmap_size: 0, mmap_offset: 0, num_queues: 1, queue_size: SIZE };
    let (inflight, file) = front_end.connection.get_inflight_fd(&wanted).expect("an answer");
    front_end.connection.set_inflight_fd(&inflight, file.as_raw_fd()).expect("an answer");
    front_end.start(&guest);
    assert_eq!(guest.write(OUT, 0, &[1; 4096]), OK);
    // The target holds the next one, once all of its threads are stopped: those on other cores run on for a moment.
    stop(Signal::STOP);
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).expect("a thread");
        stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", target.id())).expect("it lives");
    while !tasks().flatten().all(is_stopped) {
        std::thread::yield_now();
    }
    guest.put_head(OUT, 8);
    guest.memory.write_slice(&[2; 4096], GuestAddress(DATA)).expect("inside");
    guest.offer(&[(HEAD, 16, NEXT, 1), (DATA, 4096, NEXT, 2), (STATUS, 1, WRITE, 0)]);
    let is_in_work = || {
        let mut state = [0; 32];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut state, 0).expect("it has as many");
        state[16] == 1
    };
    let used_count = || guest.memory.read_obj::<u16>(GuestAddress(USED + 2)).expect("inside");
    while !is_in_work() {
        assert_eq!(used_count(), 1, "the request ended");
        std::thread::yield_now();
    }
    process.kill().expect("it lives");
    process.wait().expect("it ends");
    stop(Signal::CONT);
    let mut process = bridge(&target.address, &socket, &["--queues", "2"]);
    let mut front_end = FrontEnd::connect(&socket);
    front_end.connection.set_inflight_fd(&inflight, file.as_raw_fd()).expect("an answer");
    front_end.start(&guest);
    assert_eq!(guest.await_used(2), OK);
    assert_eq!(guest.read(IN, 0, 8192), (OK, [[1; 4096], [2; 4096]].concat()));
    assert_eq!(guest.memory.read_obj::<u16>(GuestAddress(USED + 2)).expect("inside"), 3, "none ends twice");
    process.kill().expect("it lives");
    process.wait().expect("it ends");
}

#[test]
fn the_command_of_run_has_the_socket_and_mistakes_are_told() {
    let target = Target::serving(&["ram:1M", "ram:1M"]);
    let one = format!("{}?ns=2", target.address);
    let path = run([
        "attach",
        "vhost-user",
        &one,
        "--run",
        "test -S \"$NVLANE_DEVICE\" && printf %s \"$NVLANE_DEVICE\"",
    ]);
    let path = path.text();
    assert!(path.ends_with("/disk.sock") && !Path::new(&path).exists(), "{path}");
    let complaint = |options: &[&str]| {
        run([&["attach", "vhost-user", &target.address][..], options].concat()).complaint(2)
    };
    let nowhere = complaint(&[]);
    assert!(nowhere.contains("--socket PATH, or --run COMMAND"), "{nowhere}");
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("disk.sock");
    let too_few = complaint(&["--socket", socket.to_str().expect("text")]);
    assert!(too_few.contains("there are 2 disks and 1 sockets") && too_few.contains("?ns=1"), "{too_few}");
    let help = run(["attach", "vhost-user", "--help"]).text();
    for word in [
        "memory-backend-memfd",
        "share=on",
        "reconnect=1",
        "vhost-user-blk-pci",
        "num-queues",
        "--dhchap-secret",
    ] {
        assert!(help.contains(word), "{word}");
    }
}
