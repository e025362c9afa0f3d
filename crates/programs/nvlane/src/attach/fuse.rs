//! `nvlane attach fuse`: namespaces as files.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use anyhow::Context;
use bridge::fuse::{FileSettings, FuseError, Unmounted};
use bridge::{ExportSettings, FuseMount, FuseSettings, keep_memory, leave_io_flusher};
use clap::Args;
use command_line::connection::{Connection, with_subsystem};
use command_line::exit::{Ended, Failure};
use command_line::output::write;
use host::{Association, Event, Events};
use rustix::process::{getgid, getuid};

use super::process::{END_TIME, LaneArguments, Wake, handle_signals, start_command, wait};
use super::running::{Entry, own_directory};
use crate::human_size::HumanSize;
use crate::serve::start_thread;
use crate::service_manager::ServiceManager;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane attach fuse 192.0.2.1 /mnt                       each namespace a file: /mnt/ns1, /mnt/ns2
  nvlane attach fuse ADDR --run 'fio --name=a --filename=\"$NVLANE_DEVICE\" --direct=1 --rw=randread'
  nvlane attach fuse ADDR --run 'qemu-img convert -p -n disk.qcow2 -O raw \"$NVLANE_DEVICE\"'
  losetup --find --show --direct-io=on --sector-size 4096 /mnt/ns1      a block device, as root: mkfs, mount, fstrim
  umount /mnt                                             ends the bridge; fusermount3 -u /mnt without root

A file is as long as its namespace, and stays so. Files that programs open with O_DIRECT are read and written in multiples of the block \
size, without the page cache; all others as programs like, through the page cache. Deallocate is fallocate --punch-hole; \
fsync is Flush.

root mounts by itself, other users by fusermount3 of the package fuse3. Without --allow-other the files are there for the user who \
started the bridge alone.

While the target is lost, requests wait: up to --fast-io-fail, then they fail with EIO, and after --ctrl-loss-timeout the bridge ends. \
After a reconnect, the next fsync of every open file fails with EIO once if the target has a volatile write cache: writes that were not \
flushed before may be lost.

SIGTERM and Ctrl-C unmount the directory, also while it is in use, and end the bridge once the requests under way are answered, after \
30 s at most; a second one ends it at once. What a killed bridge leaves mounted is removed by the next one there.")]
pub(crate) struct FuseArguments {
    #[command(flatten)]
    connection: Connection,
    /// Directory to mount at: an empty one. [default for --run: a temporary one]
    #[arg(value_name = "MOUNTPOINT")]
    place: Option<PathBuf>,
    #[command(flatten)]
    files: FileArguments,
    #[command(flatten)]
    lanes: LaneArguments,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Files")]
struct FileArguments {
    /// Name of the file, for a single namespace. [default: ns and its id]
    #[arg(long, value_name = "FILE", value_parser = file_name)]
    name: Option<String>,
    /// Refuse what changes data; the files have mode 0444.
    #[arg(long)]
    read_only: bool,
    /// Permissions of the files.
    #[arg(long, value_name = "OCTAL", default_value = "0600", value_parser = mode)]
    mode: u32,
    /// Owner of the files. [default: this user]
    #[arg(long, value_name = "NUMBER")]
    uid: Option<u32>,
    /// Group of the files. [default: this user's]
    #[arg(long, value_name = "NUMBER")]
    gid: Option<u32>,
    /// Let other users use the files, as far as --mode, --uid and --gid allow. Users other than root may say so if
    /// /etc/fuse.conf has user_allow_other.
    #[arg(long)]
    allow_other: bool,
    /// Run this command with the path of the (first) file in $NVLANE_DEVICE, and exit with its exit code. A single word is a
    /// line for the shell.
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true)]
    run: Vec<String>,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "write permissions in octal digits, 0600 for example, at most 0777".into())
}

fn file_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.len() <= 255 && !text.contains('/') && text != "." && text != "..";
    let why = "write the name of a file: 1 to 255 bytes, without a slash";
    if is_name { Ok(text.to_owned()) } else { Err(why.into()) }
}

pub(crate) fn fuse(arguments: &FuseArguments) -> Ended {
    let files = &arguments.files;
    if arguments.place.is_none() && files.run.is_empty() {
        return Err(Failure::usage(
            "say where to mount: ADDR MOUNTPOINT, or --run COMMAND for a directory of its own",
        ));
    }
    let (wakes, wake) = channel();
    // Before the directory is mounted: a signal then unmounts it.
    handle_signals(wakes.clone())?;
    if !keep_memory() {
        tracing::debug!(
            "memory is not locked, or not that of an I/O flusher: that takes CAP_IPC_LOCK and CAP_SYS_RESOURCE"
        );
    }
    let (address, options) = with_subsystem(arguments.connection.address()?, |address| {
        arguments.lanes.options(arguments.connection.host(), address, 1)
    })?;
    let association = Association::connect(&address, options)?;
    // Removed once it is unmounted.
    let directory = arguments.place.is_none().then(|| {
        tempfile::Builder::new().prefix("nvlane-fuse-").tempdir().context("no directory to mount at")
    });
    let directory = directory.transpose()?;
    let own = directory.as_ref().map(|directory| directory.path().to_owned());
    let place = arguments.place.clone().or(own).unwrap_or_default();
    let settings = FuseSettings {
        export: ExportSettings {
            name: files.name.clone().unwrap_or_default(),
            is_read_only: files.read_only,
        },
        files: FileSettings {
            uid: files.uid.unwrap_or_else(|| getuid().as_raw()),
            gid: files.gid.unwrap_or_else(|| getgid().as_raw()),
            mode: files.mode,
        },
        allow_other: files.allow_other,
    };
    let detached = wakes.clone();
    let on_end = move |why: &str| drop(detached.send(Wake::Detached(why.to_owned())));
    let mount = FuseMount::mount(association.clone(), settings, &place, on_end).map_err(failure_of)?;
    let mount = Arc::new(mount);
    let (events, changed, over) = (association.events(), Arc::clone(&mount), wakes.clone());
    start_thread(move || follow_events(&events, &changed, &over))?;
    let mut paths = Vec::new();
    for file in mount.files() {
        let path = file.path.display().to_string();
        let size = HumanSize(file.size_bytes.into()).to_string();
        tracing::info!(file = %path, %size, block_bytes = file.block_bytes, "namespace as a file");
        paths.push(path);
    }
    let told = if files.run.is_empty() { write(paths.join("\n") + "\n") } else { Ok(()) };
    ServiceManager::of_environment().tell(format_args!(
        "READY=1\nSTATUS={} files at {}",
        paths.len(),
        mount.place().display()
    ));
    let _entry = Entry::make("fuse", &[address.to_string()], &paths);
    leave_io_flusher();
    let ended = told
        .and_then(|()| start_command(&files.run, paths.first(), wakes).map_err(Failure::from))
        .and_then(|command| wait(&wake, command));
    end(&mount);
    // One that `attach auto` has made.
    if own_directory().is_some_and(|own| place.starts_with(own)) {
        let _ = std::fs::remove_dir(&place);
    }
    association.close();
    ended
}

fn end(mount: &FuseMount) {
    let place = mount.place().display();
    match mount.end(END_TIME) {
        Ok((is_ended, unmounted)) => {
            if unmounted == Unmounted::Busy {
                tracing::warn!(%place, "directory is in use: it is unmounted, and programs that have its files open get errors");
            }
            if !is_ended {
                tracing::warn!(limit_s = END_TIME.as_secs(), "requests are cut: they have not ended in time");
            }
        }
        Err(error) => tracing::warn!(%error, "directory cannot be unmounted"),
    }
}

fn failure_of(error: FuseError) -> Failure {
    match error {
        FuseError::NoExport(bridge::NoExport::Host(error)) | FuseError::Host(error) => error.into(),
        error => Failure::usage(error),
    }
}

/// Tells the kernel of changes, until the association's end. The host library logs its loss and return.
fn follow_events(events: &Events, mount: &FuseMount, wakes: &Sender<Wake>) {
    while let Ok(event) = events.recv() {
        match event {
            Event::NamespacesChanged(nsids) => mount.on_changed(&nsids),
            Event::Over(error) => drop(wakes.send(Wake::Over(error.to_string()))),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_permissions_are_checked() {
        assert_eq!((mode("0640"), mode("444")), (Ok(0o640), Ok(0o444)));
        assert!(mode("1777").is_err() && mode("9").is_err() && mode("").is_err());
        assert!(file_name("disk").is_ok());
        for text in ["", ".", "..", "a/b"] {
            assert!(file_name(text).is_err(), "{text}");
        }
    }
}
