//! Volumes of pools: made by `nvlane ctl`, seen by hosts, and there after a kill.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use store::pool::Pool;
use tempfile::TempDir;

use crate::ctl::Target;
use crate::support::{nvlane, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// A target with a pool, on the file system of this program, which has extended attributes, or that of `NVLANE_REFLINK_DIR`.
fn started(settings: &str) -> (TempDir, Target) {
    let beside = std::env::current_exe().expect("a path").with_file_name("");
    let place = std::env::var_os("NVLANE_REFLINK_DIR").map_or(beside, Into::into);
    let directory = tempfile::tempdir_in(place).expect("a directory");
    let target = Target::start(&text(&directory, settings));
    (directory, target)
}

fn text(directory: &TempDir, settings: &str) -> String {
    format!(
        "[reactors]\ncount = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[pool]]\nname = \"fast\"\ndir = \"{}\"\n{settings}\n[[subsystem]]\n\
         nqn = \"nqn.2026-01.io.nvlane:controlled\"\nhosts = \"any\"\n",
        directory.path().display()
    )
}

/// A number that `nvlane list` has of the first namespace, bytes.
fn listed(target: &Target, field: &str) -> u64 {
    let listed = run(["list", &target.address(), "-o", "json"]).json();
    listed["Devices"][0][field].as_u64().expect("a namespace")
}

/// The size of the first namespace that a host sees, bytes.
fn seen(target: &Target) -> u64 {
    listed(target, "PhysicalSize")
}

#[test]
fn a_volume_grows_under_its_hosts_and_is_there_after_a_kill() {
    let (directory, target) = started("");
    let made = target.json(&["volume", "create", "fast/db", "--size", "4M"]);
    target.ctl(&["namespace", "add", "--storage", "pool:fast/db"]).text();
    assert_eq!(seen(&target), 4 << 20);
    assert!(listed(&target, "UsedBytes") < 1 << 16);
    let volume = fs::OpenOptions::new().write(true).open(directory.path().join("db")).expect("a volume");
    volume.write_all_at(&[1; 1 << 20], 1 << 20).expect("written");
    drop(volume);
    let until = Instant::now() + PATIENCE;
    while !(1 << 20..1 << 21).contains(&listed(&target, "UsedBytes")) {
        assert!(Instant::now() < until, "{} bytes used", listed(&target, "UsedBytes"));
        std::thread::sleep(Duration::from_millis(50));
    }
    target.ctl(&["volume", "resize", "fast/db", "--size", "8M"]).text();
    assert_eq!(seen(&target), 8 << 20);
    let uuid = target.json(&["namespace", "show", "1"])["running"]["uuid"].clone();
    assert_eq!(uuid, made["uuid"]);
    let busy = target.ctl(&["volume", "delete", "fast/db"]);
    assert!(busy.code == 1 && busy.stderr.contains("remove the namespace first"), "{}", busy.stderr);
    let refused = target.ctl(&["snapshot", "create", "fast/monday", "--of", "fast/db"]);
    let pools = target.json(&["pool", "list"]);
    match pools["objects"][0]["can_clone"] == true {
        true => {
            refused.text();
            target.ctl(&["volume", "clone", "fast/test", "--from", "fast/monday"]).text();
        }
        false => assert!(refused.code == 1 && refused.stderr.contains("reflink=1"), "{}", refused.stderr),
    }
    assert!(target.ctl(&["pool", "list"]).text().contains("fast"));
    let audit = fs::read_to_string(target.path("audit")).expect("a log");
    assert!(audit.contains("volume_create") && audit.contains("fast/db"), "{audit}");

    // A kill while volumes are made and removed: what was answered is there, and nothing else.
    let socket = target.path("control.sock");
    let mut answered = vec!["fast/db".to_owned()];
    let names = (0..200).map(|number| format!("fast/v{number:03}"));
    let killer = {
        let after = Instant::now() + Duration::from_millis(700);
        let target = &target;
        move || {
            std::thread::sleep(after.saturating_duration_since(Instant::now()));
            target.signal(Signal::KILL);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(killer);
        for name in names {
            let mut command = nvlane();
            command.args(["ctl", "volume", "create", &name, "--size", "1M", "--control"]).arg(&socket);
            let is_answered = command.output().expect("it starts").status.success();
            answered.push(name);
            if !is_answered {
                break;
            }
        }
    });
    let last = answered.pop().expect("a name");
    let target = target.restarted();
    let listed = target.json(&["volume", "list"]);
    let objects = listed["objects"].as_array().expect("a list").iter();
    let mut found: Vec<String> =
        objects.map(|volume| volume["name"].as_str().expect("a name").to_owned()).collect();
    // The one that was not answered is there as a whole or not at all.
    found.retain(|name| *name != last && name != "fast/test");
    answered.sort_unstable();
    assert_eq!(found, answered);
    assert!(found.len() > 2, "some were made before the kill");
    assert_eq!(seen(&target), 8 << 20);
    target.ctl(&["volume", "create", "fast/after", "--size", "1M"]).text();
    let left = fs::read_dir(directory.path()).expect("a directory").filter_map(Result::ok);
    let left: Vec<_> = left.filter(|entry| entry.file_name().to_string_lossy().ends_with(".new")).collect();
    assert!(left.is_empty(), "{left:?}");
    target.end();
}

#[test]
fn a_pool_that_is_low_or_gone_is_in_the_log_and_in_the_state_and_found_by_doctor() {
    let (directory, target) = started("space_low = \"90%\"\nquota = \"64M\"");
    let quota = target.ctl(&["volume", "create", "fast/large", "--size", "65M"]);
    assert!(quota.code == 1 && quota.stderr.contains("past its quota"), "{}", quota.stderr);
    target.ctl(&["volume", "create", "fast/db", "--size", "32M"]).text();
    assert!(!target.log().contains("little space"), "{}", target.log());
    fs::write(directory.path().join("db"), vec![1; 16 << 20]).expect("written");
    let eventually = |text: &str| {
        let until = Instant::now() + PATIENCE;
        while !target.log().contains(text) {
            assert!(Instant::now() < until, "never: {text}: {}", target.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    eventually("pool fast has little space left");
    let pool = &target.json(&["pool", "list"])["objects"][0];
    assert_eq!((&pool["is_low"], &pool["quota"]), (&json!(true), &json!(64 << 20)));
    let found = |target: &Target| {
        run(["doctor", "--quiet", "--control", &target.path("control.sock").display().to_string()]).stdout
    };
    assert!(found(&target).contains("warning  pool: fast has "), "{}", found(&target));
    target.ctl(&["pool", "set", "fast", "--space-low", "1%"]).text();
    assert!(!found(&target).contains("pool: fast"), "{}", found(&target));
    assert_eq!(target.json(&["pool", "list"])["objects"][0]["is_low"], false);
    let added = target.ctl(&["pool", "add", "slow", "--dir", "/no/such/directory"]);
    assert!(added.code == 1 && added.stderr.contains("No such file"), "{}", added.stderr);
    fs::rename(directory.path(), directory.path().with_extension("moved")).expect("moved");
    eventually("pool fast cannot be used");
    fs::rename(directory.path().with_extension("moved"), directory.path()).expect("moved");
    assert_eq!(target.json(&["pool", "list"])["objects"][0]["error"], json!(null));
    target.end();
}

/// Processor time of a process so far: other processes of a busy machine do not count.
fn processor_time(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, behind) = text.rsplit_once(") ").expect("its name is in brackets");
    let ticks = behind.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("ticks"));
    Duration::from_millis(ticks.sum::<u64>() * 1000 / rustix::param::clock_ticks_per_second())
}

#[test]
fn a_thousand_volumes_start_in_a_second() {
    // The bar is 1 ms of each volume. These are fewer, so that they are made fast, with five times that in an unoptimized build.
    const COUNT: usize = 200;
    const MOST: Duration = Duration::from_millis(5 * COUNT as u64);
    let (directory, target) = started("");
    let before = processor_time(target.pid());
    target.end();
    let mut pool = Pool::new(directory.path(), None);
    let mut all = text(&directory, "");
    for number in 0..COUNT {
        let name = format!("v{number:03}");
        pool.create(&name, 1 << 20, 4096).expect("created");
        all.push_str(&format!("[[subsystem.namespace]]\nstorage = \"pool:fast/{name}\"\n"));
    }
    let target = Target::start(&all);
    let took = processor_time(target.pid()).saturating_sub(before);
    assert_eq!(target.json(&["namespace", "list"])["objects"].as_array().map(Vec::len), Some(COUNT));
    assert!(took < MOST, "{COUNT} volumes took {took:?} of processor time");
    target.end();
}
