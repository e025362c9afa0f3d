//! One front end: what it sets up by the vhost-user protocol, and the workers that serve its queues.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_blk::VIRTIO_BLK_F_FLUSH;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use super::config::{Device, PROTOCOL_FEATURES};
use super::inflight::{Inflight, check_length};
use super::virtqueue::{QUEUE_SIZE_MAX, Rings, Virtqueue};
use super::worker::{Message, Settings, Worker};
use crate::flush_ledger::FlushMember;

/// Starts workers: a lane, and what is to be done if the target is given up.
pub(crate) trait Workers: Send {
    /// Starts the worker of this number.
    ///
    /// # Errors
    /// There is no thread, or no lane.
    fn start(&self, number: u16, settings: Settings) -> io::Result<Worker>;
}

/// A part of the guest's memory, as addresses of the front end.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    front_end: u64,
    bytes: u64,
    guest: u64,
}

/// A queue, as the front end sets it up.
#[derive(Debug, Default)]
struct Queue {
    size: u16,
    /// Descriptors, available ring and used ring, in addresses of the front end.
    addresses: Option<[u64; 3]>,
    next_available: u16,
    call: Option<File>,
    error: Option<File>,
    is_enabled: bool,
    /// A worker has it.
    is_started: bool,
}

/// A front end that is connected.
pub(crate) struct Session {
    device: Device,
    starter: Box<dyn Workers>,
    flushes: Arc<FlushMember>,
    features: u64,
    memory: Option<Arc<GuestMemoryMmap>>,
    mappings: Vec<Mapping>,
    queues: Vec<Queue>,
    inflight: Option<Inflight>,
    /// By number: queue N belongs to worker N modulo their count.
    workers: Vec<Option<Worker>>,
    /// To the front end: changes of the configuration.
    requests: Option<UnixStream>,
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

impl Session {
    /// A front end that has set up nothing yet.
    pub(crate) fn new(
        device: Device,
        worker_count: u16,
        starter: Box<dyn Workers>,
        flushes: Arc<FlushMember>,
    ) -> Self {
        Self {
            features: 0,
            memory: None,
            mappings: Vec::new(),
            queues: (0..device.queue_count).map(|_| Queue::default()).collect(),
            inflight: None,
            workers: (0..worker_count.max(1)).map(|_| None).collect(),
            requests: None,
            device,
            starter,
            flushes,
        }
    }

    /// The front end's descriptor for requests to it.
    pub(crate) fn set_requests(&mut self, descriptor: OwnedFd) {
        self.requests = Some(UnixStream::from(descriptor));
    }

    /// The namespace has changed: tells the front end.
    pub(crate) fn on_changed(&mut self, device: Device) {
        self.device = device;
        for worker in self.workers.iter().flatten() {
            worker.send(Message::Device(self.device.clone()));
        }
        let Some(requests) = &self.requests else {
            tracing::info!(
                "front end takes no news of its disk: the guest sees the new size when it starts again"
            );
            return;
        };
        // VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, version 1, without data: the crate vhost does not send it.
        let header = [2u32, 1, 0].map(u32::to_ne_bytes).concat();
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        if let Err(error) = rustix::net::send(requests, &header, flags) {
            tracing::warn!(%error, "front end cannot be told that the size of its disk has changed");
        }
    }

    /// Ends the workers. Requests under way are given back, unless the front end is gone.
    pub(crate) fn end(&mut self, is_gone: bool) {
        let mut workers: Vec<Worker> = self.workers.iter_mut().filter_map(Option::take).collect();
        workers.iter().for_each(|worker| worker.send(Message::End { is_gone }));
        workers.iter_mut().for_each(Worker::join);
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue> {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        self.queues.get_mut(index).ok_or(Error::InvalidParam)
    }

    /// The number of the worker of a queue.
    fn number(&self, index: u32) -> usize {
        usize::try_from(index).unwrap_or_default() % self.workers.len()
    }

    /// Sends a message about a queue that is served.
    fn tell(&self, index: u32, message: Message) {
        if let Some(worker) = &self.workers[self.number(index)] {
            worker.send(message);
        }
    }

    fn guest_address(&self, front_end: u64) -> Result<GuestAddress> {
        let inside = |mapping: &&Mapping| {
            front_end.checked_sub(mapping.front_end).is_some_and(|offset| offset < mapping.bytes)
        };
        let mapping =
            self.mappings.iter().find(inside).ok_or_else(|| failed("a ring that is in no memory"))?;
        Ok(GuestAddress(front_end - mapping.front_end + mapping.guest))
    }

    /// Gives a queue to its worker, with this kick descriptor.
    fn start(&mut self, index: u32, kick: File) -> Result<()> {
        let has_event_index = self.features >> VIRTIO_RING_F_EVENT_IDX & 1 == 1;
        let queue = self.queue(index)?;
        let (size, next_available, is_enabled) = (queue.size, queue.next_available, queue.is_enabled);
        let addresses = queue.addresses.ok_or_else(|| failed("a queue is started without addresses"))?;
        let copy = |file: &Option<File>| file.as_ref().map(File::try_clone).transpose();
        let call = copy(&queue.call).map_err(failed)?;
        let error = copy(&queue.error).map_err(failed)?;
        let memory = self.memory.clone().ok_or_else(|| failed("a queue is started without memory"))?;
        let [descriptors, available, used] = addresses;
        let rings = Rings {
            size,
            descriptors: self.guest_address(descriptors)?,
            available: self.guest_address(available)?,
            used: self.guest_address(used)?,
            next_available,
            has_event_index,
        };
        let number = u16::try_from(index).map_err(|_| Error::InvalidParam)?;
        let inflight = match &self.inflight {
            Some(inflight) => inflight.queue(number, size).map_err(failed)?,
            None => None,
        };
        let mut virtqueue = Virtqueue::new(number, rings, &memory, inflight, kick).map_err(failed)?;
        (virtqueue.call, virtqueue.error, virtqueue.is_enabled) = (call, error, is_enabled);
        let worker_number = self.number(index);
        if self.workers[worker_number].is_none() {
            let settings = Settings {
                device: self.device.clone(),
                memory,
                is_write_through: self.features >> VIRTIO_BLK_F_FLUSH & 1 == 0,
                flushes: Arc::clone(&self.flushes),
            };
            let started = self.starter.start(u16::try_from(worker_number).unwrap_or_default(), settings);
            self.workers[worker_number] = Some(started.map_err(|error| {
                tracing::warn!(%error, queue = index, "queue has no lane to the target");
                Error::ReqHandlerError(error)
            })?);
        }
        self.tell(index, Message::Start(Box::new(virtqueue)));
        self.queue(index)?.is_started = true;
        Ok(())
    }

    /// Takes a queue back from its worker, once its requests have ended.
    fn stop(&mut self, index: u32) -> Result<()> {
        if std::mem::take(&mut self.queue(index)?.is_started) {
            let number = u16::try_from(index).map_err(|_| Error::InvalidParam)?;
            let (answer, stopped) = channel();
            self.tell(index, Message::Stop { index: number, answer });
            let next = stopped.recv().map_err(|_| failed("the target is given up"))?;
            self.queue(index)?.next_available = next;
        }
        Ok(())
    }
}

const UNSUPPORTED: Error = Error::InvalidOperation("not supported");

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        for index in 0..u32::from(self.device.queue_count) {
            self.stop(index)?;
            *self.queue(index)? = Queue::default();
        }
        self.features = 0;
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.device.features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.device.features() != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        // Without the messages that enable queues all of them are enabled.
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            self.queues.iter_mut().for_each(|queue| queue.is_enabled = true);
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut mapped = Vec::with_capacity(regions.len());
        let mut mappings = Vec::with_capacity(regions.len());
        for (region, file) in regions.iter().zip(files) {
            let guest = region.guest_phys_addr;
            check_length(&file, region.mmap_offset, region.memory_size).map_err(failed)?;
            let mapping = GuestRegionMmap::new(region.mmap_region(file)?, GuestAddress(guest));
            mapped.push((guest, mapping.ok_or(Error::InvalidParam)?));
            mappings.push(Mapping { front_end: region.user_addr, bytes: region.memory_size, guest });
        }
        mapped.sort_by_key(|(guest, _)| *guest);
        let mapped = mapped.into_iter().map(|(_, region)| region).collect();
        let memory = Arc::new(GuestMemoryMmap::from_regions(mapped).map_err(failed)?);
        // The front end may use the former memory for something else once it has the answer.
        for worker in self.workers.iter().flatten() {
            let (answer, replaced) = channel();
            worker.send(Message::Memory { memory: Arc::clone(&memory), answer });
            replaced.recv().map_err(|_| failed("the target is given up"))?;
        }
        self.memory = Some(memory);
        self.mappings = mappings;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|size| size.is_power_of_two() && *size <= QUEUE_SIZE_MAX);
        self.queue(index)?.size = size.ok_or_else(|| {
            tracing::warn!(
                size = num,
                limit = QUEUE_SIZE_MAX,
                "queue refused: its size must be a power of two up to the limit"
            );
            Error::InvalidParam
        })?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.queue(index)?.addresses = Some([descriptor, available, used]);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.queue(index)?.next_available = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.stop(index)?;
        let queue = self.queue(index)?;
        (queue.call, queue.error) = (None, None);
        Ok(VhostUserVringState::new(index, queue.next_available.into()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let kick = file.ok_or_else(|| failed("a guest that is to be polled: not supported"))?;
        self.stop(index.into())?;
        self.start(index.into(), kick)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let queue = self.queue(index.into())?;
        queue.call = file;
        if queue.is_started {
            let file = queue.call.as_ref().map(File::try_clone).transpose().map_err(failed)?;
            self.tell(index.into(), Message::Call { index: index.into(), file });
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let queue = self.queue(index.into())?;
        queue.error = file;
        if queue.is_started {
            let file = queue.error.as_ref().map(File::try_clone).transpose().map_err(failed)?;
            self.tell(index.into(), Message::Error { index: index.into(), file });
        }
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL_FEATURES)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.device.queue_count.into())
    }

    fn set_vring_enable(&mut self, index: u32, is_enabled: bool) -> Result<()> {
        let queue = self.queue(index)?;
        queue.is_enabled = is_enabled;
        if queue.is_started {
            let number = u16::try_from(index).map_err(|_| Error::InvalidParam)?;
            self.tell(index, Message::Enable { index: number, is_enabled });
        }
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let space = self.device.space();
        let (offset, size) =
            (usize::try_from(offset).unwrap_or(usize::MAX), usize::try_from(size).unwrap_or(0));
        Ok(space.into_iter().skip(offset).chain(std::iter::repeat(0)).take(size).collect())
    }

    fn set_config(&mut self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidOperation("nothing of the configuration can be changed"))
    }

    fn set_gpu_socket(&mut self, _socket: GpuBackend) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(UNSUPPORTED)
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queue_count, queue_size) = self.inflight_limits(wanted)?;
        let (inflight, file, bytes) = Inflight::new(queue_count, queue_size).map_err(failed)?;
        self.inflight = Some(inflight);
        let answer = VhostUserInflight { mmap_size: bytes, mmap_offset: 0, ..*wanted };
        Ok((answer, file))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let (queue_count, queue_size) = self.inflight_limits(given)?;
        let inflight = Inflight::of_file(file, given.mmap_offset, given.mmap_size, queue_count, queue_size);
        self.inflight = Some(inflight.map_err(failed)?);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Err(UNSUPPORTED)
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        Err(UNSUPPORTED)
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(UNSUPPORTED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(UNSUPPORTED)
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(UNSUPPORTED)
    }
}

impl Session {
    /// Queues, and entries of each, that memory of requests in work is for.
    fn inflight_limits(&self, wanted: &VhostUserInflight) -> Result<(u16, u16)> {
        let is_possible = wanted.num_queues <= self.device.queue_count && wanted.queue_size <= QUEUE_SIZE_MAX;
        is_possible.then_some((wanted.num_queues, wanted.queue_size)).ok_or(Error::InvalidParam)
    }
}
