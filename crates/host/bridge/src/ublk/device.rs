//! A device from its start, or the end of an earlier bridge, to its removal.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use host::{Association, Lane, Namespace, Nsid};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use ublk::commands::{DeviceInfo, State, attribute, feature};
use ublk::{CharacterDevice, Control, DeviceName, Queue};

use super::error::{UblkError, is, system};
use super::identity::mark_of;
use super::shape::{BLOCK_BYTES_MAX, parameters, request_bytes_max, sectors};
use super::worker::{CurrentNamespace, Data, Settings, serve};
use crate::flush_ledger::SharedFlushes;
use crate::lanes::connect_lane;

/// Requests of a queue at once.
const DEPTH: u16 = 128;

/// Time in which a queue gets its lane, while the target may be lost.
const LANE_TIME: Duration = Duration::from_secs(30);

/// Time in which the kernel sees the end of the process that served a device.
const RECOVERY_TIME: Duration = Duration::from_secs(30);

/// Time in which udev makes a new device accessible.
const NODE_TIME: Duration = Duration::from_secs(10);

/// Time in which requests end once the association is closed.
const CUT_TIME: Duration = Duration::from_secs(10);

/// Pause before the kernel is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// How a namespace is served.
#[derive(Clone, Copy, Debug)]
pub struct UblkSettings {
    /// Refuse what changes data.
    pub is_read_only: bool,
    /// Queues, each with a thread and a lane. The kernel makes no more than there are cores.
    pub queues: u16,
    /// The number of the device; the first free one otherwise.
    pub number: Option<u32>,
    /// If this process is killed, the device stays, and its requests wait for the next one. Otherwise they fail, and the device
    /// goes away.
    pub outlives_bridge: bool,
}

/// Whether this process may make devices that outlive it, and that all users may use. Without that it makes unprivileged ones,
/// where the administrator lets it.
#[must_use]
pub fn ublk_is_privileged() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Whether this kernel has what it takes, and this user may use it.
///
/// # Errors
/// [`UblkError`]: what is missing.
pub fn check_ublk() -> Result<(), UblkError> {
    open_control()?.features().map(drop).map_err(UblkError::TooOld)
}

/// A namespace as a block device of this machine.
#[derive(Debug)]
pub struct UblkDevice {
    name: DeviceName,
    nsid: Nsid,
    association: Association,
    namespace: Arc<CurrentNamespace>,
    can_resize: bool,
    is_taken_over: bool,
    is_ending: Arc<AtomicBool>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl UblkDevice {
    /// Makes a device, or takes over the one that a bridge has left that was killed. `on_removed` is called when another process
    /// has removed the device.
    ///
    /// # Errors
    /// [`UblkError`].
    pub fn start(
        association: &Association,
        nsid: Nsid,
        settings: &UblkSettings,
        on_removed: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, UblkError> {
        let namespace = association.namespace(nsid)?;
        if namespace.lba_bytes() > BLOCK_BYTES_MAX {
            return Err(UblkError::BlockTooLarge(namespace.lba_bytes()));
        }
        let is_read_only = settings.is_read_only || namespace.info().is_write_protected;
        let mut control = open_control()?;
        let features = control.features().map_err(UblkError::TooOld)?;
        let mark = mark_of(association, &namespace);
        let wanted = parameters(&namespace, is_read_only);
        let found = find_left(&mut control, mark, settings.number)?;
        let is_left = found.is_some();
        let info = match found {
            Some(info) => {
                check_fit(&mut control, &info, &namespace, is_read_only, association)?;
                info
            }
            None => add(&mut control, settings, mark, request_bytes_max(&namespace))?,
        };
        let name = name_of(&info);
        let mut device = Self {
            name,
            nsid,
            association: association.clone(),
            namespace: Arc::new(CurrentNamespace::new(namespace.clone())),
            can_resize: features & feature::UPDATE_SIZE != 0,
            is_taken_over: is_left,
            is_ending: Arc::default(),
            workers: Mutex::default(),
        };
        let started = device.serve(&mut control, &info, is_left, is_read_only, on_removed, &wanted);
        if let Err(error) = started {
            device.is_ending.store(true, Ordering::Relaxed);
            if !is_left {
                // The device was not started, so no process uses it.
                let _ = control.stop(name);
                device.join();
                let _ = control.delete(name);
            }
            return Err(error);
        }
        if is_left {
            tracing::info!(
                device = name.block_path(),
                "block device of a bridge that has ended is taken over"
            );
            let actual = control.parameters(name).map_err(system("ublk parameters"))?;
            if actual.sectors != sectors(&namespace) {
                device.resize(&mut control, &namespace);
            }
        }
        Ok(device)
    }

    /// Starts the workers, then the device.
    fn serve(
        &mut self,
        control: &mut Control,
        info: &DeviceInfo,
        is_left: bool,
        is_read_only: bool,
        on_removed: impl Fn() + Send + Sync + 'static,
        wanted: &ublk::commands::Parameters,
    ) -> Result<(), UblkError> {
        if !is_left {
            // The first command that takes the rights which udev gives.
            until(NODE_TIME, &[Errno::ACCESS, Errno::NOENT], || control.set_parameters(self.name, wanted))
                .map_err(|error| match is(&error, Errno::ACCESS) {
                    true => UblkError::NotPermitted { path: self.name.character_path() },
                    false => UblkError::System { what: "ublk parameters", error },
                })?;
        }
        let mut shared = SharedFlushes::default();
        // All queues are one client's.
        let (epoch, member) = shared.join();
        let (member, on_removed) = (Arc::new(member), Arc::new(on_removed));
        let mut starting = Vec::new();
        for number in 0..info.queue_count {
            let settings = Settings {
                namespace: Arc::clone(&self.namespace),
                is_read_only,
                flushes: Arc::clone(&member),
            };
            let (association, is_ending) = (self.association.clone(), Arc::clone(&self.is_ending));
            let (epoch, on_removed, info) = (epoch.clone(), Arc::clone(&on_removed), *info);
            let (go, wait) = channel();
            let (answer, answers) = channel();
            let work = move || {
                let until = Instant::now() + LANE_TIME;
                let mut lane: Lane<Data> =
                    match connect_lane(&association, || is_ending.load(Ordering::Relaxed), until) {
                        Ok(lane) => lane,
                        Err(error) => return drop(answer.send(Err(UblkError::Host(error)))),
                    };
                lane.share_flush_epoch(epoch);
                let _ = answer.send(Ok(()));
                let Some(queue) = begin_queue(&wait, &answer, &info, number) else { return };
                if let Err(error) = serve(queue, info.depth, settings, &mut lane) {
                    tracing::error!(%error, queue = number, "queue of a block device has failed");
                }
                if !is_ending.load(Ordering::Relaxed) {
                    on_removed();
                }
            };
            let thread = std::thread::Builder::new().name(format!("ublk-{}-{number}", self.name.number));
            let thread = thread.spawn(work).map_err(system("cannot start a thread"))?;
            self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
            starting.push((go, answers));
        }
        // All have their lane before the device is touched: one that was left could not be taken over again by halves.
        for (_, answers) in &starting {
            answers.recv().unwrap_or_else(|_| Err(ended()))?;
        }
        if is_left {
            until(RECOVERY_TIME, &[Errno::BUSY], || control.start_recovery(self.name))
                .map_err(system("ublk recovery"))?;
        }
        let character = open_character(self.name)?;
        for (go, _) in &starting {
            let _ = go.send(character.clone());
        }
        for (_, answers) in &starting {
            answers.recv().unwrap_or_else(|_| Err(ended()))?;
        }
        if is_left {
            return control.end_recovery(self.name).map_err(system("ublk recovery"));
        }
        control.start(self.name).map_err(system("start of the ublk device"))?;
        self.await_node();
        Ok(())
    }

    /// Its path: `/dev/ublkbN`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.name.block_path().into()
    }

    /// Whether an earlier bridge has left it.
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        self.is_taken_over
    }

    /// The namespace, as it is now.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        self.namespace.get()
    }

    /// Follows a change of the namespace.
    pub fn on_changed(&self) {
        let before = self.namespace.get();
        let namespace = match self.association.namespace(self.nsid) {
            Ok(namespace) if namespace.lba_bytes() == before.lba_bytes() => namespace,
            Ok(_) => {
                return tracing::warn!(device = self.name.block_path(), "namespace has other blocks now");
            }
            Err(error) => {
                return tracing::warn!(device = self.name.block_path(), %error, "namespace of a block device is gone");
            }
        };
        self.namespace.set(namespace.clone());
        if namespace.block_count() != before.block_count() {
            match open_control() {
                Ok(mut control) => self.resize(&mut control, &namespace),
                Err(error) => tracing::warn!(%error, "block device keeps its size"),
            }
        }
    }

    fn resize(&self, control: &mut Control, namespace: &Namespace) {
        let device = self.name.block_path();
        let sectors = sectors(namespace);
        if !self.can_resize {
            return tracing::warn!(
                device,
                sectors,
                "namespace has another size, and the block device keeps its own: this kernel cannot change it (Linux 6.16 can). It \
                 has the new size once it is removed and made again"
            );
        }
        match control.update_size(self.name, sectors) {
            Ok(()) => tracing::info!(device, sectors, "block device has another size"),
            Err(error) => tracing::warn!(device, sectors, %error, "block device keeps its size"),
        }
    }

    /// Removes the device: what is cached of it is written, requests under way end, later ones fail, and the device goes away, also
    /// where it is mounted. After `limit` the association is closed, which ends the requests with errors. Returns whether that was
    /// not necessary.
    pub fn remove(&self, limit: Duration) -> bool {
        self.is_ending.store(true, Ordering::Relaxed);
        let name = self.name;
        let stopping = stop(name);
        let mut stopped = stopping.recv_timeout(limit);
        let in_time = stopped.is_ok();
        if !in_time {
            self.association.close();
            stopped = stopping.recv_timeout(CUT_TIME);
        }
        match stopped {
            Ok(Ok(())) => {}
            // Another process has removed it.
            Ok(Err(UblkError::System { error, .. })) if is(&error, Errno::NODEV) => return true,
            Ok(Err(error)) => {
                tracing::error!(device = name.block_path(), %error, "block device is not stopped");
                return true;
            }
            Err(_) => {
                tracing::error!(device = name.block_path(), "block device does not stop");
                return false;
            }
        }
        self.join();
        match open_control().and_then(|mut control| control.delete(name).map_err(system("ublk"))) {
            Ok(()) => tracing::info!(device = name.block_path(), "block device is removed"),
            Err(error) => {
                tracing::warn!(device = name.block_path(), %error, "block device is stopped, and not deleted");
            }
        }
        in_time
    }

    fn join(&self) {
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        workers.into_iter().for_each(|worker| drop(worker.join()));
    }

    /// Waits until its node is there, for those who are told the path.
    fn await_node(&self) {
        let node = self.name.block_path();
        let found = until(NODE_TIME, &[Errno::NOENT], || fs::metadata(&node).map(drop));
        if let Err(error) = found {
            tracing::warn!(device = node, %error, "block device has no node: no udev and no devtmpfs?");
        }
    }
}

/// A worker's queue, once the device may be served.
fn begin_queue(
    wait: &Receiver<CharacterDevice>,
    answer: &Sender<Result<(), UblkError>>,
    info: &DeviceInfo,
    number: u16,
) -> Option<Queue> {
    let device = wait.recv().ok()?;
    match Queue::new(&device, number, info.depth, info.request_bytes_max) {
        Ok(queue) => {
            let _ = answer.send(Ok(()));
            Some(queue)
        }
        Err(error) => {
            let _ = answer.send(Err(UblkError::System { what: "queue of the ublk device", error }));
            None
        }
    }
}

fn ended() -> UblkError {
    UblkError::System { what: "queue of the ublk device", error: io::Error::other("its thread has ended") }
}

fn name_of(info: &DeviceInfo) -> DeviceName {
    DeviceName { number: info.number, is_unprivileged: info.has(feature::UNPRIVILEGED) }
}

fn open_control() -> Result<Control, UblkError> {
    Control::open().map_err(|error| {
        if is(&error, Errno::NOENT) || is(&error, Errno::NXIO) || is(&error, Errno::NODEV) {
            UblkError::NoDriver
        } else if is(&error, Errno::ACCESS) && !ublk_is_privileged() {
            UblkError::NotPermitted { path: "/dev/ublk-control".into() }
        } else {
            UblkError::NoRing(error)
        }
    })
}

/// Tries again until it succeeds, as long as it fails with one of these errors.
fn until(limit: Duration, errnos: &[Errno], mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let end = Instant::now() + limit;
    loop {
        match attempt() {
            Err(error) if errnos.iter().any(|errno| is(&error, *errno)) && Instant::now() < end => {
                std::thread::sleep(PAUSE);
            }
            ended => return ended,
        }
    }
}

/// Opens the character device, once udev has made it accessible.
fn open_character(name: DeviceName) -> Result<CharacterDevice, UblkError> {
    let end = Instant::now() + NODE_TIME;
    loop {
        let error = match CharacterDevice::open(name) {
            Ok(device) => return Ok(device),
            Err(error) => error,
        };
        let is_passing = [Errno::NOENT, Errno::ACCESS, Errno::BUSY].iter().any(|errno| is(&error, *errno));
        if !is_passing || Instant::now() >= end {
            return Err(match is(&error, Errno::ACCESS) {
                true => UblkError::NotPermitted { path: name.character_path() },
                false => UblkError::System { what: "character device of ublk", error },
            });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Adds a device.
fn add(
    control: &mut Control,
    settings: &UblkSettings,
    mark: u64,
    request_bytes_max: u32,
) -> Result<DeviceInfo, UblkError> {
    let mut wanted = DeviceInfo::wanted(settings.number, settings.queues, DEPTH, request_bytes_max);
    wanted.mark = mark;
    if !ublk_is_privileged() {
        wanted.flags = feature::UNPRIVILEGED;
    } else if settings.outlives_bridge {
        wanted.flags = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
    }
    control.add(&wanted).map_err(|error| match settings.number {
        Some(number) if is(&error, Errno::EXIST) => {
            UblkError::Taken { path: DeviceName { number, is_unprivileged: false }.block_path() }
        }
        _ => UblkError::System { what: "new ublk device", error },
    })
}

/// The numbers of all devices.
fn numbers() -> Vec<u32> {
    let entries = fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("ublkc")?.parse().ok()).collect()
}

/// The device that an earlier bridge has left for the namespace with this mark.
fn find_left(control: &mut Control, mark: u64, wanted: Option<u32>) -> Result<Option<DeviceInfo>, UblkError> {
    for number in numbers() {
        // Those of other users are not told.
        let Ok(info) = control.info(number) else { continue };
        let name = name_of(&info);
        let path = name.block_path();
        if info.mark != mark {
            if wanted == Some(number) {
                return Err(UblkError::Taken { path });
            }
            continue;
        }
        if is_alive(info.process) {
            return Err(UblkError::Served { path, process: info.process });
        }
        if !info.has(feature::USER_RECOVERY) || info.state() == State::Dead {
            // The kernel has stopped it, or does so; or a bridge has ended while it made it.
            let is_unused =
                until(RECOVERY_TIME, &[Errno::BUSY], || CharacterDevice::open(name).map(drop)).is_ok();
            if is_unused {
                tracing::info!(device = path, "what a bridge that has ended has left is removed");
                let _ = control.stop(name);
                let _ = control.delete(name);
            }
            continue;
        }
        if let Some(other) = wanted.filter(|wanted| *wanted != number) {
            return Err(UblkError::Unfit { path, why: format!("--number {other} asks for another one") });
        }
        return Ok(Some(info));
    }
    Ok(None)
}

/// Whether a process lives. A zombie does not.
fn is_alive(process: i32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    // Behind the name, which may have any characters.
    let state = text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    process > 0 && !matches!(state, None | Some('Z' | 'X'))
}

/// Whether a device that was left is still like its namespace.
fn check_fit(
    control: &mut Control,
    info: &DeviceInfo,
    namespace: &Namespace,
    is_read_only: bool,
    association: &Association,
) -> Result<(), UblkError> {
    let name = name_of(info);
    let actual = control.parameters(name).map_err(system("ublk parameters"))?;
    let wanted = parameters(namespace, is_read_only);
    let granted = association.queues().default;
    let is_same = |flag| actual.attributes & flag == wanted.attributes & flag;
    let why = if actual.block_shift != wanted.block_shift {
        format!(
            "it has blocks of {} bytes, and the namespace of {}",
            1u64 << actual.block_shift.min(63),
            namespace.lba_bytes()
        )
    } else if !is_same(attribute::READ_ONLY) {
        "one of the two is read-only".to_owned()
    } else if actual.request_sectors_max > wanted.request_sectors_max {
        "the target takes shorter transfers than before".to_owned()
    } else if granted < info.queue_count {
        format!("it has {} queues, and the target grants {granted} queue pairs", info.queue_count)
    } else {
        return Ok(());
    };
    Err(UblkError::Unfit { path: name.block_path(), why })
}

/// Writes what is cached of a device, and stops it, on a thread of its own. Returns what tells its end.
fn stop(name: DeviceName) -> Receiver<Result<(), UblkError>> {
    let (sender, receiver) = channel();
    let stop = move || {
        // Without it a device that is not mounted would lose what a program has written and not synced.
        let written = File::open(name.block_path()).and_then(|device| device.sync_all());
        if let Err(error) = written {
            tracing::debug!(device = name.block_path(), %error, "cache of a block device is not written");
        }
        let stopped = open_control().and_then(|mut control| control.stop(name).map_err(system("ublk stop")));
        let _ = sender.send(stopped);
    };
    // Without a thread the receiver reports an end at once.
    let _ = std::thread::Builder::new().name("ublk-stop".into()).spawn(stop);
    receiver
}

/// Removes a device whose bridge is gone, or hangs; also one that is in use, whose requests fail then. `device` is its path or its
/// number.
///
/// # Errors
/// There is no such device, or its bridge does not end its requests within `limit`.
pub fn remove_ublk_device(device: &str, limit: Duration) -> Result<(), UblkError> {
    let no_device = || UblkError::System {
        what: "no ublk device of that name",
        error: io::Error::from_raw_os_error(Errno::NODEV.raw_os_error()),
    };
    let text = device.strip_prefix("/dev/").unwrap_or(device);
    let text = text.strip_prefix("ublkb").or_else(|| text.strip_prefix("ublkc")).unwrap_or(text);
    let number = text.parse().map_err(|_| no_device())?;
    let mut control = open_control()?;
    let info = control.info(number).map_err(system("ublk device"))?;
    let name = name_of(&info);
    let stopped = if info.state() == State::Live {
        stop(name).recv_timeout(limit).unwrap_or_else(|_| {
            let path = name.block_path();
            Err(UblkError::Served { path, process: info.process })
        })
    } else {
        control.stop(name).map_err(system("ublk stop"))
    };
    stopped?;
    control.delete(name).map_err(system("ublk delete"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_has_ended() {
        assert!(is_alive(i32::try_from(std::process::id()).expect("small")));
        assert!(!is_alive(0) && !is_alive(-1) && !is_alive(i32::MAX));
        let mut child = std::process::Command::new("true").spawn().expect("it runs");
        let process = i32::try_from(child.id()).expect("small");
        // It becomes a zombie, which counts as ended.
        while is_alive(process) {
            std::thread::yield_now();
        }
        child.wait().expect("it ends");
        assert!(!is_alive(process));
    }
}
