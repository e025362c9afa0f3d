//! `nvlane attach fuse`: files that programs read and write, a bridge that is killed, mistakes.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::mistakes::code_soon;
use crate::support::{Target, nvlane, run};

/// A bridge of its own process; `None` where this process must not mount.
fn bridge(target: &Target, place: &Path, options: &[&str]) -> Option<(Child, Vec<String>)> {
    let mut command = nvlane();
    command.args(["attach", "fuse", &target.address]).arg(place).args(options);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
    let files: Vec<String> = lines.take(1).map(|line| line.expect("text")).collect();
    if files.is_empty() {
        let output = process.wait_with_output().expect("it ends");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_refused = message.contains("may not mount") || message.contains("/dev/fuse");
        assert!(is_refused && output.status.code() == Some(2), "{message}");
        eprintln!("skipped: {message}");
        return None;
    }
    Some((process, files))
}

fn end(process: &mut Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("a pid")).expect("a pid");
    kill_process(pid, signal).expect("it lives");
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().as_ref().and_then(Errno::from_io_error)
}

#[test]
fn a_file_is_read_and_written_as_its_namespace() {
    let target = Target::serving(&["ram:1M"]);
    let directory = tempfile::tempdir().expect("a directory");
    let Some((mut process, files)) = bridge(&target, directory.path(), &["--mode", "0640"]) else { return };
    let place = fs::canonicalize(directory.path()).expect("a path");
    let path = place.join("ns1");
    assert_eq!(files, [path.display().to_string()]);
    let names: Vec<_> =
        fs::read_dir(&place).expect("entries").map(|entry| entry.expect("one").path()).collect();
    assert_eq!(names, [path.as_path()]);
    let metadata = fs::metadata(&path).expect("attributes");
    assert_eq!((metadata.len(), metadata.mode() & 0o7777, metadata.blocks()), (1 << 20, 0o640, 2048));
    let open = |flags: OFlags| {
        let flags = i32::try_from(flags.bits()).expect("small");
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).expect("it opens")
    };
    // Within blocks, over several commands, without a multiple anywhere.
    let data: Vec<u8> = (0..700_001_u32).map(|at| at.to_le_bytes()[1] ^ at.to_le_bytes()[0]).collect();
    let file = open(OFlags::empty());
    file.write_all_at(&data, 4099).expect("it is written");
    file.sync_all().expect("it is durable");
    let mut read = vec![0; data.len()];
    let other = open(OFlags::empty());
    other.read_exact_at(&mut read, 4099).expect("it is read");
    assert!(read == data);
    let mut edge = [1; 4099];
    other.read_exact_at(&mut edge, 0).expect("it is read");
    assert_eq!(edge, [0; 4099]);
    // The end stays where it is.
    assert_eq!(file.write_at(&[1; 8192], (1 << 20) - 100).expect("a part"), 100);
    assert_eq!(errno(file.write_at(&[1], 1 << 20)), Some(Errno::NOSPC));
    assert_eq!(errno(file.set_len(4096)), Some(Errno::PERM));
    let truncated = OpenOptions::new().write(true).truncate(true).open(&path).expect("it opens");
    assert_eq!(truncated.metadata().expect("attributes").len(), 1 << 20);
    assert_eq!(errno(File::create(place.join("other"))), Some(Errno::PERM));
    // Without the page cache in blocks only, as with block devices.
    let direct = open(OFlags::DIRECT);
    let page = rustix::param::page_size();
    let mut memory = vec![0; 3 * page];
    let aligned = memory.as_ptr().align_offset(page);
    let block = &mut memory[aligned..][..page];
    direct.read_exact_at(block, 4096).expect("it is read");
    assert!(block[3..] == data[..page - 3]);
    assert_eq!(errno(direct.read_at(&mut block[..512], 0)), Some(Errno::INVAL));
    assert_eq!(errno(direct.write_at(&block[..512], 0)), Some(Errno::INVAL));
    fallocate(&direct, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 8192).expect("a hole");
    assert_eq!(
        errno(fallocate(&direct, FallocateFlags::empty(), 0, 8192).map_err(Into::into)),
        Some(Errno::OPNOTSUPP)
    );
    other.read_exact_at(&mut edge, 4000).expect("it is read");
    assert_eq!(edge, [0; 4099]);
    drop((file, other, direct, truncated));
    end(&mut process, Signal::TERM);
    assert_eq!(code_soon(&mut process), Some(0));
    assert_eq!(fs::read_dir(&place).expect("entries").count(), 0);
}

#[test]
fn what_a_killed_bridge_has_mounted_is_replaced() {
    let target = Target::serving(&["ram:1M"]);
    let directory = tempfile::tempdir().expect("a directory");
    let Some((mut process, files)) = bridge(&target, directory.path(), &[]) else { return };
    let file = File::open(&files[0]).expect("it opens");
    let ended = run(["attach", "fuse", &target.address, directory.path().to_str().expect("text")]);
    assert!(
        ended.code == 2 && ended.stderr.contains("is a mount point already (fuse.nvlane, of"),
        "{ended:?}"
    );
    end(&mut process, Signal::KILL);
    assert_eq!(code_soon(&mut process), None);
    assert!(file.read_at(&mut [0; 4096], 0).is_err());
    let (mut process, files) = bridge(&target, directory.path(), &["--read-only"]).expect("it mounts");
    assert_eq!(fs::metadata(&files[0]).expect("attributes").mode() & 0o777, 0o400);
    assert_eq!(errno(OpenOptions::new().write(true).open(&files[0])), Some(Errno::ROFS));
    // In use, it is unmounted all the same.
    let file = File::open(&files[0]).expect("it opens");
    end(&mut process, Signal::TERM);
    assert_eq!(code_soon(&mut process), Some(0));
    assert!(file.read_at(&mut [0; 4096], 0).is_err());
    assert_eq!(fs::read_dir(directory.path()).expect("entries").count(), 0);
}

#[test]
fn a_bridge_ends_with_its_mount_or_its_command() {
    let target = Target::serving(&["ram:1M", "ram:2M"]);
    let directory = tempfile::tempdir().expect("a directory");
    let Some((mut process, _)) = bridge(&target, directory.path(), &[]) else { return };
    let unmounted = Command::new("umount").arg(directory.path()).status();
    assert!(unmounted.expect("umount runs").success(), "it is idle");
    assert_eq!(code_soon(&mut process), Some(0));
    let command = "stat -c %n:%s $(dirname \"$NVLANE_DEVICE\")/*; exit 7";
    let ended = run(["attach", "fuse", &target.address, "--run", command]);
    let sizes: Vec<_> = ended.stdout.lines().filter_map(|line| line.rsplit('/').next()).collect();
    assert_eq!((ended.code, sizes), (7, vec!["ns1:1048576", "ns2:2097152"]));
}

#[test]
fn mistakes_are_named() {
    let target = Target::serving(&["ram:1M", "ram:1M"]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let (file, address) = (file.path().to_str().expect("text"), target.address.as_str());
    for (arguments, message) in [
        (&[address][..], "say where to mount: ADDR MOUNTPOINT, or --run COMMAND"),
        (&[address, "/none/at/all"], "/none/at/all: No such file or directory"),
        (&[address, file], "is not a directory; name one that is empty"),
        (&[address, "/etc"], "is not empty; name an empty directory"),
        (&[address, "/proc"], "is a mount point already"),
        (&[address, "/etc", "--mode", "9"], "write permissions in octal digits"),
        (&[address, "/etc", "--name", "a/b"], "write the name of a file"),
        (&[address, "/etc", "--name", "a"], "there are 2 namespaces"),
    ] {
        let ended = run([&["attach", "fuse"], arguments].concat());
        assert!(ended.code == 2 && ended.stderr.contains(message), "{arguments:?}: {ended:?}");
    }
}
