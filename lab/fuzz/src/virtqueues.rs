//! What a guest and a front end write to the memory that a bridge shares with them, before and while requests are in work: each
//! request ends or closes its queue, and nothing is written but the used ring, the status and what a request lets the device write.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bridge::vhost_user::{
    Chain, Inflight, Kind, Request, Rings, Segment, Virtqueue, copy_from_guest, copy_to_guest, read_ranges,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::input::Input;

/// Memory of the guest: two regions with a hole between them.
const REGION_BYTES: usize = 0x4000;
const REGIONS: [u64; 2] = [0, 0x8000];

/// Descriptors, available and used ring, where the input does not place them.
const PLACES: [u64; 3] = [0x100, 0x400, 0x600];

/// Entries of the memory of requests in work, and its bytes.
const INFLIGHT_SIZE: u16 = 16;
const INFLIGHT_BYTES: u64 = 16 * 17;

/// Requests in work at once.
const WORK_MAX: usize = 16;

/// Longest piece that is copied at once, bytes.
const PIECE_BYTES: usize = 0x2000;

/// Ranges of a request at most, as in the configuration of a device.
const RANGES_MAX: u16 = 16;

/// A request in work.
struct Work {
    head: u16,
    request: Request,
    data: Vec<Segment>,
}

/// The guest's memory, and what it was like before the device had its turn.
struct Guest {
    memory: GuestMemoryMmap,
    before: [Vec<u8>; 2],
    now: Vec<u8>,
}

impl Guest {
    fn new() -> Self {
        let memory = GuestMemoryMmap::from_ranges(&REGIONS.map(|start| (GuestAddress(start), REGION_BYTES)));
        let before = [vec![0; REGION_BYTES], vec![0; REGION_BYTES]];
        Self { memory: memory.expect("memory"), before, now: vec![0; REGION_BYTES] }
    }

    /// The guest writes, as far as it has memory there.
    fn write(&mut self, address: u64, bytes: &[u8]) {
        let place = REGIONS.iter().position(|start| {
            address.checked_sub(*start).is_some_and(|at| at + bytes.len() as u64 <= REGION_BYTES as u64)
        });
        let Some(region) = place else { return };
        self.memory.write_slice(bytes, GuestAddress(address)).expect("it lies in a region");
        let at = usize::try_from(address - REGIONS[region]).expect("within a region");
        self.before[region][at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The device had its turn, in which it was allowed to write to these ranges.
    fn check(&mut self, allowed: &[(u64, u64)]) {
        for (start, before) in REGIONS.into_iter().zip(&mut self.before) {
            self.memory.read_slice(&mut self.now, GuestAddress(start)).expect("all of a region");
            if self.now == *before {
                continue;
            }
            let pairs = self.now.iter().zip(&*before);
            for (address, _) in (start..).zip(pairs).filter(|(_, (now, before))| now != before) {
                let is_allowed =
                    |(from, length): &(u64, u64)| address.checked_sub(*from).is_some_and(|at| at < *length);
                assert!(allowed.iter().any(is_allowed), "{address:#x} was written: {allowed:x?}");
            }
            before.copy_from_slice(&self.now);
        }
    }
}

/// A queue on this memory, or none if the front end's rings are refused.
fn new_queue(guest: &Guest, rings: Rings, inflight: Option<&Inflight>) -> Option<Virtqueue> {
    let inflight = inflight.and_then(|inflight| inflight.queue(0, rings.size).ok().flatten());
    let kick = File::open("/dev/null").expect("always there");
    Virtqueue::new(0, rings, &guest.memory, inflight, kick).ok()
}

/// Input: flags and the length of the queue (a byte each), its rings if the flags say so (three words), then steps of guest, front
/// end and device.
pub fn virtqueues(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.byte();
    let size = match input.byte() {
        u8::MAX => input.word(),
        byte => 1 << (byte % 5),
    };
    let places = if flags & 1 == 0 { PLACES } else { PLACES.map(|_| u64::from(input.word())) };
    let [descriptors, available, used] = places.map(GuestAddress);
    let next_available = if flags & 2 == 0 { 0 } else { input.word() };
    let rings = Rings { size, descriptors, available, used, next_available, has_event_index: flags & 4 != 0 };
    let inflight = (flags & 8 != 0).then(|| Inflight::new(1, INFLIGHT_SIZE).expect("memory"));
    let (inflight, inflight_file) = match inflight {
        Some((inflight, file, _)) => (Some(inflight), Some(file)),
        None => (None, None),
    };
    let lba_bytes = if flags & 16 == 0 { 512 } else { 4096 };
    // Flags, index, entries of 8 bytes, event index.
    let used_ring = (used.0, 6 + 8 * u64::from(size));
    let mut guest = Guest::new();
    let mut queue: Option<Virtqueue> = None;
    let mut chain = Chain::default();
    let mut work: Vec<Work> = Vec::new();
    let mut ranges = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut offered = 0u16;
    // Taken by this queue since the guest or the front end has changed anything.
    let mut taken_count = 0;
    while !input.is_empty() {
        let step = input.byte();
        if step % 8 < 4 {
            taken_count = 0;
        }
        match step % 8 {
            0 => {
                let address = u64::from(input.word());
                let length = usize::from(input.byte() & 63);
                let bytes = input.bytes(length);
                guest.write(address, bytes);
            }
            1 => {
                let [index, kind] = input.array();
                let address = if kind & 0x80 == 0 {
                    u64::from(input.word())
                } else {
                    u64::from_le_bytes(input.array())
                };
                let length = if kind & 0x40 == 0 { u32::from(input.word()) } else { input.dword() };
                let next = if kind & 0x20 == 0 { u16::from(index) + 1 } else { input.word() };
                let mut descriptor = [0; 16];
                descriptor[..8].copy_from_slice(&address.to_le_bytes());
                descriptor[8..12].copy_from_slice(&length.to_le_bytes());
                descriptor[12..14].copy_from_slice(&u16::from(kind & 0x1f).to_le_bytes());
                descriptor[14..].copy_from_slice(&next.to_le_bytes());
                guest.write(descriptors.0 + 16 * u64::from(index), &descriptor);
            }
            2 => {
                let head = u16::from(input.byte());
                let place = u64::from(offered.checked_rem(size).unwrap_or(0));
                guest.write(available.0 + 4 + 2 * place, &head.to_le_bytes());
                offered = offered.wrapping_add(1);
                guest.write(available.0 + 2, &offered.to_le_bytes());
            }
            3 => match (&inflight_file, step & 8) {
                (Some(file), 8) => {
                    let offset = u64::from(input.word()) % INFLIGHT_BYTES;
                    let length = usize::from(input.byte() & 15);
                    let bytes =
                        input.bytes(length.min(usize::try_from(INFLIGHT_BYTES - offset).unwrap_or(0)));
                    file.write_all_at(bytes, offset).expect("memory has room");
                }
                _ => {
                    offered = input.word();
                    guest.write(available.0 + 2, &offered.to_le_bytes());
                }
            },
            4 | 5 => {
                let Some(served) = queue.as_mut() else {
                    taken_count = 0;
                    queue = new_queue(&guest, rings, inflight.as_ref());
                    guest.check(&[]);
                    continue;
                };
                if work.len() == WORK_MAX {
                    continue;
                }
                let taken = served.take(&guest.memory, &mut chain);
                guest.check(&[]);
                let Ok(taken) = taken else {
                    // The queue is closed.
                    queue = None;
                    continue;
                };
                let Some(head) = taken else { continue };
                taken_count += 1;
                assert!(taken_count <= u32::from(size) + u32::from(INFLIGHT_SIZE), "requests without an end");
                assert!(chain.readable.len() + chain.writable.len() <= 1024);
                let writable = chain.writable.clone();
                let mut data = Vec::new();
                let Ok(request) = Request::take(&guest.memory, &mut chain, &mut data) else {
                    queue = None;
                    continue;
                };
                let is_writable = |address: u64| {
                    writable.iter().any(|segment| {
                        address
                            .checked_sub(segment.address.0)
                            .is_some_and(|at| at < u64::from(segment.length))
                    })
                };
                assert!(is_writable(request.status.0), "{request:?} has its status elsewhere");
                if matches!(request.kind, Kind::Read | Kind::Id) {
                    for segment in data.iter().filter(|segment| segment.length > 0) {
                        assert!(is_writable(segment.address.0), "{segment:?} is not to be written");
                    }
                }
                assert_eq!(
                    request.data_bytes,
                    data.iter().map(|segment| u64::from(segment.length)).sum::<u64>()
                );
                let is_inside = data.iter().all(|segment| {
                    let length = usize::try_from(segment.length).expect("64 bits");
                    length == 0 || guest.memory.check_range(segment.address, length)
                });
                assert_eq!(request.is_inside, is_inside);
                if matches!(request.kind, Kind::Discard | Kind::WriteZeroes)
                    && read_ranges(&guest.memory, &request, &data, lba_bytes, RANGES_MAX, &mut ranges).is_ok()
                {
                    assert!(!ranges.is_empty() && ranges.len() <= usize::from(RANGES_MAX));
                }
                guest.check(&[]);
                work.push(Work { head, request, data });
            }
            6 => {
                let which = usize::from(input.byte());
                let Some(served) = queue.as_mut().filter(|_| !work.is_empty()) else { continue };
                let Work { head, request, data } = work.swap_remove(which % work.len());
                // A part of the data, as a command of the bridge has it.
                let offset = u64::from(input.word()).min(request.data_bytes);
                let length =
                    usize::try_from(request.data_bytes - offset).unwrap_or(usize::MAX).min(PIECE_BYTES);
                let part = &mut piece[..length];
                if matches!(request.kind, Kind::Read | Kind::Id) {
                    part.fill(step);
                    let copied = copy_to_guest(&guest.memory, &data, offset, part);
                    assert!(copied.is_some() || !request.is_inside, "{request:?}");
                    let allowed: Vec<_> =
                        data.iter().map(|segment| (segment.address.0, u64::from(segment.length))).collect();
                    guest.check(&allowed);
                } else {
                    let copied = copy_from_guest(&guest.memory, &data, offset, part);
                    assert!(copied.is_some() || !request.is_inside, "{request:?}");
                    guest.check(&[]);
                }
                guest.memory.write_obj(step, request.status).expect("it was checked");
                guest.check(&[(request.status.0, 1)]);
                let put = served.put(&guest.memory, head, 1);
                guest.check(&[used_ring]);
                if put.is_err() {
                    queue = None;
                }
            }
            _ if step & 8 == 0 => {
                let Some(served) = queue.as_mut() else { continue };
                served.notify(&guest.memory);
                let wanted = served.want_kicks(&guest.memory);
                guest.check(&[used_ring]);
                if wanted.is_err() {
                    queue = None;
                }
            }
            _ => {
                // The bridge ends, with requests in work, and another one begins.
                work.clear();
                taken_count = 0;
                queue = new_queue(&guest, rings, inflight.as_ref());
                guest.check(&[]);
            }
        }
    }
}
