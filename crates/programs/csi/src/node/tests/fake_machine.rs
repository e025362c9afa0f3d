//! A machine in memory: what is connected and mounted, and which programs ran.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use tonic::Status;

use crate::authentication::Secrets;
use crate::node::machine::{Export, Machine};
use crate::node::mounts::Mount;

/// The device of the only volume.
const DEVICE: &str = "/dev/nvme0n1";

#[derive(Default)]
pub(super) struct FakeMachine(Mutex<State>);

#[derive(Default)]
struct State {
    connected: BTreeMap<String, PathBuf>,
    /// Those of the last connect.
    secrets: Secrets,
    content: Option<String>,
    mounts: Vec<Mount>,
    runs: Vec<String>,
    /// What fails: the next run that begins so.
    failing: Option<String>,
    is_read_only: bool,
    /// Until the kernel sees the volume's new size.
    rescans_left: Option<u32>,
    size_bytes: Option<u64>,
}

impl FakeMachine {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test has panicked in it")
    }

    pub(super) fn take_runs(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().runs)
    }

    pub(super) fn secrets(&self) -> Secrets {
        self.lock().secrets.clone()
    }

    pub(super) fn is_connected(&self, nqn: &str) -> bool {
        self.lock().connected.contains_key(nqn)
    }

    /// Where something is mounted, and whether it is read-only.
    pub(super) fn mounted(&self) -> Vec<(String, bool)> {
        let shown = |mount: &Mount| (mount.at.to_string_lossy().into_owned(), mount.is_read_only);
        self.lock().mounts.iter().map(shown).collect()
    }

    pub(super) fn set_content(&self, content: Option<&str>) {
        self.lock().content = content.map(str::to_owned);
    }

    pub(super) fn set_read_only(&self) {
        self.lock().is_read_only = true;
    }

    pub(super) fn fail_at(&self, start: &str) {
        self.lock().failing = Some(start.into());
    }

    /// Mounts what is no volume.
    pub(super) fn mount_other(&self, at: &str) {
        self.lock().mounts.push(mount("/dev/sda1", at, "ext4", "/"));
    }

    /// The kernel gives up a target: the device is gone, its mounts are not.
    pub(super) fn lose(&self, nqn: &str) {
        self.lock().connected.remove(nqn);
    }

    pub(super) fn grow_after_rescans(&self, count: u32) {
        self.lock().rescans_left = Some(count);
    }
}

fn mount(source: &str, at: &str, file_system: &str, root: &str) -> Mount {
    Mount {
        root: root.into(),
        at: at.into(),
        file_system: file_system.into(),
        source: source.into(),
        is_read_only: false,
    }
}

impl State {
    fn run(&mut self, program: &str, arguments: &[&str]) {
        match (program, arguments) {
            ("mount", ["--bind", DEVICE, at]) => self.mounts.push(mount("udev", at, "devtmpfs", "/nvme0n1")),
            ("mount", ["--bind", from, at]) => {
                let staged =
                    self.mounts.iter().find(|mount| mount.at == Path::new(from)).expect("it is mounted");
                self.mounts.push(Mount { at: at.into(), ..staged.clone() });
            }
            ("mount", ["-o", "remount,bind,ro", at]) => {
                let found = self.mounts.iter_mut().find(|mount| mount.at == Path::new(at));
                found.expect("it is mounted").is_read_only = true;
            }
            ("mount", ["-t", kind, "-o", options, device, at]) => {
                let is_read_only = options.split(',').any(|option| option == "ro");
                self.mounts.push(Mount { is_read_only, ..mount(device, at, kind, "/") });
            }
            ("umount", [at]) => {
                let top =
                    self.mounts.iter().rposition(|mount| mount.at == Path::new(at)).expect("it is mounted");
                self.mounts.remove(top);
            }
            (mkfs, [.., DEVICE]) if mkfs.starts_with("mkfs.") => {
                self.content = Some(mkfs.trim_start_matches("mkfs.").into());
            }
            ("resize2fs" | "xfs_growfs", [_]) => {}
            other => panic!("{other:?}"),
        }
    }
}

impl Machine for Arc<FakeMachine> {
    fn problem(&self) -> Option<String> {
        None
    }

    fn connect(&self, export: &Export) -> Result<PathBuf, Status> {
        self.lock().secrets = export.secrets.clone();
        Ok(self.lock().connected.entry(export.nqn.clone()).or_insert_with(|| DEVICE.into()).clone())
    }

    fn disconnect(&self, nqn: &str) -> Result<(), Status> {
        self.lock().connected.remove(nqn);
        Ok(())
    }

    fn device(&self, nqn: &str) -> Option<PathBuf> {
        self.lock().connected.get(nqn).cloned()
    }

    fn size_bytes(&self, _: &Path) -> Option<u64> {
        Some(self.lock().size_bytes.unwrap_or(1 << 30))
    }

    fn is_read_only(&self, _: &Path) -> bool {
        self.lock().is_read_only
    }

    fn rescan(&self, _: &str) {
        let mut state = self.lock();
        state.rescans_left = state.rescans_left.map(|left| left.saturating_sub(1));
        if state.rescans_left == Some(0) {
            state.size_bytes = Some(2 << 30);
        }
    }

    fn content(&self, _: &Path) -> Result<Option<String>, Status> {
        Ok(self.lock().content.clone())
    }

    fn mounts(&self) -> Result<Vec<Mount>, Status> {
        Ok(self.lock().mounts.clone())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), Status> {
        let mut state = self.lock();
        let line = format!("{program} {}", arguments.join(" "));
        if state.failing.take_if(|start| line.starts_with(start.as_str())).is_some() {
            return Err(Status::internal(format!("{line}: broken")));
        }
        state.run(program, arguments);
        state.runs.push(line);
        Ok(())
    }
}
