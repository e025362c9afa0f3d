//! Reloads: changes that a new configuration makes, state that it leaves, and the report.

use std::cell::RefCell;
use std::path::Path;

use nvlane_subsystem::config::{ConfigFile, ConfigPlace, TargetConfig};
use nvlane_subsystem::identity::TargetIdentity;
use nvlane_subsystem::lane_id::LaneId;
use nvlane_subsystem::limits::Limits;
use nvlane_subsystem::machine::Machine;
use nvlane_subsystem::message::{LaneMessage, Message, Order, OrderAnswer, OrderKind, Step, StepOutcome};
use nvlane_subsystem::operator::{ChangeOutcome, Operator, Outline, Report, diff, state, stop};
use nvlane_subsystem::state::TargetState;
use peer::port::free_address;
use proptest::prelude::*;
use wire::id::Nsid;
use wire::identify::Cns;
use wire::identify::lists::read_nsid_list;
use wire::sgl::Sgl;
use wire::sqe::Sqe;

use crate::harness::{DISKS, HOST, OTHER_HOST, SECOND_NS, Target, host};

/// A target that was started from a configuration.
struct Running {
    target: RefCell<Target>,
    operator: Operator,
}

fn config(text: &str) -> TargetConfig {
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
    let text = if text.contains("[[listener]]") { text.to_owned() } else { format!("{text}\n{listener}") };
    ConfigFile::parse("nvlane.toml", &text).unwrap_or_else(|errors| panic!("{errors}")).config
}

fn start(config: &TargetConfig) -> Running {
    let (operator, steps) = Operator::start(config, 2).unwrap_or_else(|problems| panic!("{problems:?}"));
    let mut target = Target::named(Limits::default(), operator.discovery_nqn().clone());
    let applied = target.order(OrderKind::Apply(steps));
    let Ok(OrderAnswer::Applied(outcomes)) = applied.try_recv() else { panic!("not applied") };
    assert!(outcomes.iter().all(StepOutcome::is_ok));
    Running { target: RefCell::new(target), operator }
}

impl Running {
    fn reload(&mut self, text: &str) -> Report {
        self.reload_with(&config(text))
    }

    fn reload_with(&mut self, wanted: &TargetConfig) -> Report {
        let target = &self.target;
        self.operator.reload(wanted, &|order| post(target, order))
    }

    fn state(&self) -> TargetState {
        state(&|order| post(&self.target, order)).expect("it runs")
    }
}

fn post(target: &RefCell<Target>, order: Order) -> bool {
    let mut target = target.borrow_mut();
    let now_ns = target.now_ns;
    target.control.on_order(now_ns, order);
    target.settle();
    true
}

/// One subsystem, with these namespaces and hosts.
fn subsystem(nqn: &str, hosts: &str, namespaces: &[&str]) -> String {
    let namespaces: Vec<_> = namespaces.iter().map(|namespace| format!("{{ {namespace} }}")).collect();
    format!("[[subsystem]]\nnqn = \"{nqn}\"\nhosts = {hosts}\nnamespace = [{}]\n", namespaces.join(", "))
}

fn disks(namespaces: &[&str]) -> String {
    subsystem(DISKS, "\"any\"", namespaces)
}

fn shown(report: &Report) -> String {
    let line = |line: &nvlane_subsystem::operator::ReportLine| format!("{:?}: {}", line.outcome, line.text);
    report.lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_start_puts_everything_in_place() {
    let running = start(&config(&disks(&[
        "nsid = 1, storage = \"ram:1M\"",
        "nsid = 5, storage = \"null:1G?lba=512\"",
    ])));
    let state = running.state();
    assert_eq!(state.discovery_nqn, running.operator.discovery_nqn().as_str());
    let listening = running.operator.listeners()[0].address;
    assert_ne!(listening.port(), 0, "a port that was free");
    assert_eq!(state.listeners[0].address, listening.to_string());
    let namespaces = &state.subsystems[0].namespaces;
    assert_eq!(namespaces.iter().map(|namespace| namespace.nsid).collect::<Vec<_>>(), [1, 5]);
    assert_eq!((namespaces[1].bytes, namespaces[1].block_bytes, namespaces[1].shown), (1 << 30, 512, true));
    let association = running.target.borrow_mut().ready(host(HOST), DISKS, 1);
    let list = Sqe::identify(Cns::ACTIVE_NAMESPACES, Nsid::NONE).with_data(Sgl::transport(4096));
    let list = running.target.borrow_mut().data(association.admin, list);
    assert_eq!(read_nsid_list(&list).map(Nsid::get).collect::<Vec<_>>(), [1, 5]);
}

/// A message without the address that is in use, and without this process, which uses it.
fn nameless(text: &str, address: std::net::SocketAddr) -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let holder = format!("{} (process {})", name.trim_end(), std::process::id());
    text.replace(&address.to_string(), "ADDRESS").replace(&holder, "PROCESS")
}

#[test]
fn what_cannot_be_started_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let new = format!("nsid = 1, storage = \"file:{place}/new?size=1M\"");
    let missing = format!("nsid = 2, storage = \"file:{place}/missing\"");
    let wrong = config(&disks(&[&new, &missing]));
    let problems = Operator::start(&wrong, 1).err().expect("a file is missing");
    assert_eq!(problems[0].place, ConfigPlace::Namespace(0, 1, "storage"));
    assert!(!directory.path().join("new").exists());
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    let taken = config(&format!("{}[[listener]]\naddress = \"{address}\"\n", disks(&[&new])));
    let problems = Operator::start(&taken, 1).err().expect("the port is taken");
    assert_eq!(problems[0].place, ConfigPlace::Listener(0));
    insta::assert_snapshot!(nameless(&problems[0].message, address), @"cannot listen on ADDRESS: Address already in use (os error 98), by PROCESS: end what listens there, or take another port");
    assert!(!directory.path().join("new").exists());
}

#[test]
fn only_what_differs_is_touched_and_each_change_is_told() {
    let before = [
        subsystem("nqn.2026-01.io.nvlane:stays", "\"any\"", &["nsid = 1, storage = \"ram:1M\""]),
        subsystem("nqn.2026-01.io.nvlane:goes", "\"any\"", &["nsid = 1, storage = \"ram:1M\""]),
        disks(&[
            "nsid = 1, storage = \"ram:1M\"",
            "nsid = 2, storage = \"ram:2M\"",
            "nsid = 3, storage = \"null:1G\"",
            "nsid = 4, storage = \"ram:1M\"",
            "nsid = 5, storage = \"null:1G\"",
        ]),
    ];
    let mut running = start(&config(&before.concat()));
    let associations = {
        let mut target = running.target.borrow_mut();
        ["nqn.2026-01.io.nvlane:stays", "nqn.2026-01.io.nvlane:goes", DISKS]
            .map(|name| [HOST, OTHER_HOST].map(|from| target.ready(host(from), name, 1)))
    };
    let after = [
        subsystem("nqn.2026-01.io.nvlane:stays", "\"any\"", &["nsid = 1, storage = \"ram:1M\""]),
        subsystem("nqn.2026-01.io.nvlane:comes", "\"any\"", &["nsid = 9, storage = \"ram:1M\""]),
        subsystem(
            DISKS,
            &format!("[\"{HOST}\"]\ncntlids = [100, 200]\nserial = \"OTHER\""),
            &[
                "nsid = 2, storage = \"ram:4M\"",
                "nsid = 3, storage = \"null:2G\"",
                "nsid = 4, storage = \"ram:1M\"",
                "nsid = 5, storage = \"null:1G?lba=512\"",
                "nsid = 6, storage = \"ram:1M\"",
            ],
        ),
        "[limits]\nio_queues = 4\n[[discovery.referral]]\naddress = \"192.0.2.9\"\n".to_owned(),
        "[[listener]]\naddress = \"127.0.0.1:0\"\nsubsystems = true\ndiscovery = false\n".to_owned(),
        "[[listener]]\naddress = \"127.0.0.2:0\"\n".to_owned(),
    ];
    let report = running.reload(&after.concat());
    insta::assert_snapshot!(shown(&report), @r"
    Done: change listener 127.0.0.1:0: done
    Done: add listener 127.0.0.2:0: done
    Done: refer hosts to 1 discovery service: done
    Done: remove subsystem nqn.2026-01.io.nvlane:goes: done, 2 associations ended
    Done: remove nqn.2026-01.io.nvlane:disks namespace 1 (ram:1M): done
    Done: open nqn.2026-01.io.nvlane:disks to 1 host only: done, 1 association ended
    Done: give controllers of nqn.2026-01.io.nvlane:disks the ids 100 to 200: done
    Done: resize nqn.2026-01.io.nvlane:disks namespace 2 to 4M: done
    Done: resize nqn.2026-01.io.nvlane:disks namespace 3 to 2G: done
    Done: put null:1G?lba=512 in the place of nqn.2026-01.io.nvlane:disks namespace 5: done
    Done: add subsystem nqn.2026-01.io.nvlane:comes: done
    Done: add nqn.2026-01.io.nvlane:comes namespace 9 (ram:1M): done
    Done: add nqn.2026-01.io.nvlane:disks namespace 6 (ram:1M): done
    NeedsRestart: change serial or model of nqn.2026-01.io.nvlane:disks: takes a restart
    NeedsRestart: change limits: takes a restart
    ");
    let state = running.state();
    let names: Vec<_> =
        state.subsystems.iter().map(|subsystem| subsystem.nqn.rsplit(':').next().unwrap()).collect();
    assert_eq!(names, ["stays", "disks", "comes"]);
    assert_eq!(state.subsystems[0].controllers.len(), 2, "untouched");
    assert_eq!(state.subsystems[1].controllers.len(), 1);
    // A change that needs no restart is not reported again.
    let again = running.reload(&after.concat());
    insta::assert_snapshot!(shown(&again), @r"
    NeedsRestart: change serial or model of nqn.2026-01.io.nvlane:disks: takes a restart
    NeedsRestart: change limits: takes a restart
    ");
    drop(associations);
}

#[test]
fn a_part_that_fails_stays_and_the_rest_is_applied() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let file = |nsid: u32, name: &str, options: &str| {
        format!("nsid = {nsid}, storage = \"file:{}{options}\"", path(name))
    };
    let mut running = start(&config(&disks(&[&file(1, "a", "?size=1M"), "nsid = 2, storage = \"ram:1M\""])));
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    let wanted = format!(
        "{}[[listener]]\naddress = \"127.0.0.1:0\"\n[[listener]]\naddress = \"{address}\"\n",
        disks(&[
            &file(1, "a", "?size=1M"),
            &file(5, "missing", ""),
            "nsid = 2, storage = \"ram:2M\"",
            &file(3, "nowhere/b", "?size=1M"),
            "nsid = 4, storage = \"ram:1M\"",
        ])
    );
    let report = running.reload(&wanted);
    let text = shown(&report).replace(&directory.path().display().to_string(), "/place");
    insta::assert_snapshot!(nameless(&text, address), @r"
    Done: resize nqn.2026-01.io.nvlane:disks namespace 2 to 2M: done
    Done: add nqn.2026-01.io.nvlane:disks namespace 4 (ram:1M): done
    Failed: add listener ADDRESS: not done, cannot listen on ADDRESS: Address already in use (os error 98), by PROCESS: end what listens there, or take another port
    Failed: add nqn.2026-01.io.nvlane:disks namespace 3 (file:/place/nowhere/b?size=1M): not done, cannot create /place/nowhere/b: No such file or directory (os error 2)
    Failed: add nqn.2026-01.io.nvlane:disks namespace 5 (file:/place/missing): not done, /place/missing does not exist: add ?size=10G to create a file of that size
    ");
    assert!(!report.is_complete());
    let state = running.state();
    let storage: Vec<_> = state.subsystems[0].namespaces.iter().map(|namespace| namespace.bytes).collect();
    assert_eq!(storage, [1 << 20, 2 << 20, 1 << 20]);
    assert_eq!(state.listeners.len(), 1);
    // Once the reason is gone, the same configuration does the rest.
    std::fs::write(path("missing"), [0; 8192]).unwrap();
    std::fs::create_dir(path("nowhere")).unwrap();
    drop(busy);
    let report = running.reload(&wanted);
    assert!(report.is_complete(), "{report}");
    assert_eq!(report.lines.len(), 3);
    assert!(running.reload(&wanted).lines.is_empty());
}

#[test]
fn files_grow_but_are_never_cut() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a");
    let with = |options: &str| disks(&[&format!("nsid = 1, storage = \"file:{}{options}\"", file.display())]);
    let length = || std::fs::metadata(&file).unwrap().len();
    let mut running = start(&config(&with("?size=1M")));
    let told = |running: &mut Running, options: &str| {
        shown(&running.reload(&with(options))).replace(&directory.path().display().to_string(), "/place")
    };
    insta::assert_snapshot!(told(&mut running, "?size=2M"), @"Done: resize nqn.2026-01.io.nvlane:disks namespace 1 to 2M: done");
    assert_eq!(length(), 2 << 20);
    insta::assert_snapshot!(told(&mut running, "?size=1M"), @"Failed: cut nqn.2026-01.io.nvlane:disks namespace 1 to 1M: not done, what lies behind would be lost: remove it from the configuration, cut the file, and add it again");
    assert_eq!(told(&mut running, ""), "", "the size it has");
    insta::assert_snapshot!(told(&mut running, "?size=2M&lba=512"), @"Failed: make nqn.2026-01.io.nvlane:disks namespace 1 file:/place/a?size=2M&lba=512: not done, it is open as file:/place/a?size=2M: remove it from the configuration, and add it again after a reload, or restart");
    assert_eq!(length(), 2 << 20);
    assert_eq!(running.state().subsystems[0].namespaces[0].block_bytes, 4096);
}

/// A target with one file as namespace 1, and its reports of reloads.
struct OneFile {
    directory: tempfile::TempDir,
    running: Running,
}

impl OneFile {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), [0; 8192]).unwrap();
        let place = directory.path().display().to_string();
        let running = start(&config(&disks(&[&format!("nsid = 1, storage = \"file:{place}/a\"")])));
        Self { directory, running }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Reloads with these namespaces, DIR standing for the directory.
    fn reload(&mut self, namespaces: &[&str]) -> String {
        let place = self.directory.path().display().to_string();
        let namespaces: Vec<String> =
            namespaces.iter().map(|namespace| namespace.replace("DIR", &place)).collect();
        let namespaces: Vec<&str> = namespaces.iter().map(String::as_str).collect();
        shown(&self.running.reload(&disks(&namespaces))).replace(&place, "DIR")
    }

    fn uuid(&self, at: usize) -> String {
        self.running.state().subsystems[0].namespaces[at].uuid.clone()
    }
}

#[test]
fn a_file_that_is_renamed_stays_the_namespace_it_was() {
    let mut one = OneFile::new();
    let uuid = one.uuid(0);
    std::fs::rename(one.path("a"), one.path("b")).unwrap();
    insta::assert_snapshot!(one.reload(&["nsid = 1, storage = \"file:DIR/b\""]), @"Done: follow nqn.2026-01.io.nvlane:disks namespace 1 to DIR/b: done, it is the same file");
    assert_eq!(one.reload(&["nsid = 1, storage = \"file:DIR/b\""]), "");
    assert_eq!(one.uuid(0), uuid);
    let state = one.running.state();
    assert_eq!(state.subsystems[0].namespaces[0].storage, format!("file:{}", one.path("b").display()));
}

#[test]
fn storage_is_not_swapped_under_hosts() {
    let mut one = OneFile::new();
    let uuid = one.uuid(0);
    std::fs::copy(one.path("a"), one.path("b")).unwrap();
    insta::assert_snapshot!(one.reload(&["nsid = 1, storage = \"file:DIR/b\""]), @"Failed: put file:DIR/b in the place of nqn.2026-01.io.nvlane:disks namespace 1: not done, hosts would take it for file:DIR/a, and mix what they have cached of the one with the other: give the new storage an nsid of its own, and remove namespace 1 when nothing uses it");
    insta::assert_snapshot!(one.reload(&[&format!("nsid = 1, storage = \"ram:1M\", uuid = \"{uuid}\"")]).replace(&uuid, "UUID"), @"Failed: put ram:1M in the place of nqn.2026-01.io.nvlane:disks namespace 1: not done, hosts would take it for file:DIR/a, and mix what they have cached of the one with the other: give the new storage an nsid of its own, and remove namespace 1 when nothing uses it");
    await_free(&one.path("b"));
    assert!(is_in_use(&one.path("a")));
    // As it was told to do.
    let both = ["nsid = 1, storage = \"file:DIR/a\"", "nsid = 2, storage = \"file:DIR/b\""];
    insta::assert_snapshot!(one.reload(&both), @"Done: add nqn.2026-01.io.nvlane:disks namespace 2 (file:DIR/b): done");
    assert_ne!(one.uuid(1), uuid);
    insta::assert_snapshot!(one.reload(&both[1..]), @"Done: remove nqn.2026-01.io.nvlane:disks namespace 1 (file:DIR/a): done");
}

/// The other targets rely on them.
#[test]
fn controller_ids_beside_an_image_that_is_shared_stay() {
    let identity = TargetIdentity::new(Machine::named("a"), "", ([127, 0, 0, 1], 4420).into());
    let told = |lock: &str, last: u16| {
        let outline = |last: u16| {
            let image = format!("nsid = 1, storage = \"rbd:volumes/db?lock={lock}\"");
            let text = disks(&[&image]).replacen("hosts", &format!("cntlids = [1, {last}]\nhosts"), 1);
            Outline::new(&config(&text), &identity)
        };
        diff(&outline(1000), &outline(last)).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(told("share", 1000), [""; 0]);
    insta::assert_snapshot!(told("share", 2000).join(", "), @"set the controller ids of nqn.2026-01.io.nvlane:disks");
    insta::assert_snapshot!(told("acquire", 2000).join(", "), @"give controllers of nqn.2026-01.io.nvlane:disks the ids 1 to 2000");
}

/// Hosts that read the list of namespaces only after both reloads would see no difference.
#[test]
fn a_removed_identity_does_not_come_back_with_other_storage() {
    let mut one = OneFile::new();
    let uuid = one.uuid(0);
    std::fs::copy(one.path("a"), one.path("b")).unwrap();
    let with = |nsid: u8, storage: &str| format!("nsid = {nsid}, storage = \"{storage}\", uuid = \"{uuid}\"");
    for storage in ["file:DIR/b", "ram:1M"] {
        one.reload(&[]);
        let told = one.reload(&[&with(1, storage)]).replace(&uuid, "UUID");
        let refused = "it has the uuid UUID of file:DIR/a, which was removed";
        assert!(told.starts_with("Failed: add ") && told.contains(refused), "{told}");
        let told = one.reload(&[&with(1, "file:DIR/a")]);
        assert!(told.starts_with("Done: add "), "{told}");
    }
    one.reload(&[]);
    let told = one.reload(&[&with(2, "file:DIR/b")]);
    assert!(told.starts_with("Done: add "), "under another number: {told}");
}

#[test]
fn the_identity_of_a_namespace_is_not_changed_under_hosts() {
    let mut one = OneFile::new();
    let uuid = one.uuid(0);
    let mut told = |more: &str| {
        one.reload(&[&format!("nsid = 1, storage = \"file:DIR/a\"{more}")]).replace(&uuid, "UUID")
    };
    insta::assert_snapshot!(told(", uuid = \"11111111-2222-3333-4444-555555555555\""), @r#"Failed: give nqn.2026-01.io.nvlane:disks namespace 1 the uuid 11111111-2222-3333-4444-555555555555: not done, hosts would lose the disk that they know as UUID: keep uuid = "UUID", or remove the namespace, reload, and add it again under another nsid"#);
    assert!(told(", nguid = \"0123456789abcdef0123456789abcdef\"").starts_with("Failed: give "));
    assert_eq!(told(&format!(", uuid = \"{uuid}\"")), "", "what it has");
    assert_eq!(one.uuid(0), uuid);
}

#[test]
fn a_file_that_was_replaced_is_not_taken_for_the_one_that_is_open() {
    let mut one = OneFile::new();
    let uuid = one.uuid(0);
    let as_it_is = ["nsid = 1, storage = \"file:DIR/a\""];
    std::fs::write(one.path("b"), [1; 8192]).unwrap();
    std::fs::rename(one.path("b"), one.path("a")).unwrap();
    let told = one.reload(&as_it_is);
    let closed = "Failed: nqn.2026-01.io.nvlane:disks namespace 1 (file:DIR/a) is closed: its file was deleted or replaced; /proc/";
    let lines: Vec<&str> = told.lines().collect();
    insta::assert_snapshot!(lines[0], @"Failed: serve the file that is now at DIR/a as nqn.2026-01.io.nvlane:disks namespace 1: not done, hosts would take it for the file that was served: remove the namespace, reload, and add it again under another nsid");
    assert!(lines.len() == 2 && lines[1].starts_with(closed), "{told}");
    let told = one.reload(&as_it_is);
    let refused = "Failed: reopen nqn.2026-01.io.nvlane:disks namespace 1 (file:DIR/a): not done, DIR/a is another file than the one that was served";
    assert!(told.lines().count() == 1 && told.starts_with(refused), "{told}");
    assert_eq!(one.uuid(0), uuid);
    // In one step: under another number, it is the new file, with an identity of its own.
    insta::assert_snapshot!(one.reload(&["nsid = 2, storage = \"file:DIR/a\""]), @r"
    Done: remove nqn.2026-01.io.nvlane:disks namespace 1 (file:DIR/a): done
    Done: add nqn.2026-01.io.nvlane:disks namespace 2 (file:DIR/a): done
    ");
    assert_ne!(one.uuid(0), uuid);
    std::fs::remove_file(one.path("a")).unwrap();
    let told = one.reload(&["nsid = 2, storage = \"file:DIR/a\""]);
    let lines: Vec<&str> = told.lines().collect();
    insta::assert_snapshot!(lines[0], @"Failed: keep nqn.2026-01.io.nvlane:disks namespace 2: DIR/a is gone, and the open file's contents are lost when the target ends");
    assert!(
        lines.len() == 2 && lines[1].contains(" is closed: its file was deleted or replaced; /proc/"),
        "{told}"
    );
}

/// Whether the directory's file system keeps attributes: without, an identity is that of the path.
fn keeps_identities(one: &OneFile) -> bool {
    let is_kept = store::identity::read(&one.path("a")).is_some();
    if !is_kept {
        eprintln!("skipped: the directory for temporary files keeps no attributes");
    }
    is_kept
}

#[test]
fn a_file_has_its_identity_on_every_target() {
    let one = OneFile::new();
    if !keeps_identities(&one) {
        return;
    }
    let uuid = one.uuid(0);
    let OneFile { directory, running } = one;
    drop(running);
    std::fs::rename(directory.path().join("a"), directory.path().join("b")).unwrap();
    let with = |machine: &str, namespaces: &[&str]| {
        format!(
            "machine = \"{machine}\"\n{}",
            subsystem("nqn.2026-01.io.nvlane:other", "\"any\"", namespaces)
        )
    };
    let file = |name: &str| format!("storage = \"file:{}/{name}?readonly\"", directory.path().display());
    let running = start(&config(&with("another", &[&format!("nsid = 7, {}", file("b"))])));
    assert_eq!(running.state().subsystems[0].namespaces[0].uuid, uuid);
    drop(running);
    // Two namespaces of one file differ, in the same way each time.
    let twice = || {
        let running = start(&config(&with("another", &[&file("b"), &file("b")])));
        let state = running.state();
        [0, 1].map(|at: usize| state.subsystems[0].namespaces[at].uuid.clone())
    };
    let [first, second] = twice();
    assert!(first == uuid && second != uuid);
    assert_eq!(twice(), [first, second]);
}

#[test]
fn a_copy_with_the_identity_of_its_original_is_told_apart_or_refused() {
    let one = OneFile::new();
    if !keeps_identities(&one) {
        return;
    }
    let directory = &one.directory;
    let copy = |from: &str, to: &str| {
        let mut cp = std::process::Command::new("cp");
        cp.arg("--preserve=all").args([from, to].map(|name| directory.path().join(name)));
        assert!(cp.status().unwrap().success());
    };
    copy("a", "copy");
    let mut one = one;
    let both = ["nsid = 1, storage = \"file:DIR/a\"", "nsid = 2, storage = \"file:DIR/copy\""];
    insta::assert_snapshot!(one.reload(&both), @"Done: add nqn.2026-01.io.nvlane:disks namespace 2 (file:DIR/copy): done");
    assert_ne!(one.uuid(0), one.uuid(1));
    // Its original is not where it was when the copy is looked at, but served as well.
    let a = one.path("a");
    assert!(
        std::process::Command::new("cp")
            .arg("--preserve=all")
            .arg(&a)
            .arg(one.path("c"))
            .status()
            .unwrap()
            .success()
    );
    std::fs::rename(&a, one.path("moved")).unwrap();
    let uuid = one.uuid(0);
    let told = one.reload(&[
        "nsid = 1, storage = \"file:DIR/moved\"",
        both[1],
        "nsid = 3, storage = \"file:DIR/c\"",
    ]);
    insta::assert_snapshot!(told.replace(&uuid, "UUID"), @r"
    Done: follow nqn.2026-01.io.nvlane:disks namespace 1 to DIR/moved: done, it is the same file
    Failed: add nqn.2026-01.io.nvlane:disks namespace 3 (file:DIR/c): not done, file:DIR/c has the uuid UUID of file:DIR/moved (nqn.2026-01.io.nvlane:disks namespace 1), and hosts would take them for one disk: if it is a copy, write another uuid= with it
    ");
}

#[test]
fn a_removed_listener_lets_its_hosts_go() {
    let free = free_address().unwrap();
    let stays = "[[listener]]\naddress = \"127.0.0.2:0\"\n";
    let goes = format!("[[listener]]\naddress = \"{free}\"\n");
    let namespaces = disks(&["nsid = 1, storage = \"ram:1M\""]);
    let mut running = start(&config(&format!("{namespaces}{goes}{stays}")));
    let [gone, kept] = [1, 2].map(|tag| {
        let mut target = running.target.borrow_mut();
        target.listener = tag;
        target.ready(host(HOST), DISKS, 1)
    });
    let report = running.reload(&format!("{namespaces}{stays}"));
    insta::assert_snapshot!(shown(&report).replace(&free.to_string(), "ADDRESS"), @"Done: remove listener ADDRESS: done, 1 association that came in there to end in 5 s");
    let target = running.target.get_mut();
    target.pass(4 * SECOND_NS);
    assert!(!target.ended.contains(&gone.admin));
    target.pass(2 * SECOND_NS);
    assert!(target.ended.contains(&gone.admin) && target.ended.contains(&gone.io[0]));
    assert!(!target.ended.contains(&kept.admin));
}

/// Whether a target holds the file's lock.
fn is_in_use(path: &Path) -> bool {
    let spec: store::Spec = format!("file:{}", path.display()).parse().unwrap();
    match spec.open(false) {
        Ok(_) => false,
        Err(store::OpenError::Locked { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Waits until the file's lock is free: programs that other tests start hold copies of every descriptor until they
/// exec.
fn await_free(path: &Path) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while is_in_use(path) {
        assert!(std::time::Instant::now() < until, "{} is in use", path.display());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn storage_that_is_in_use_at_start_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let storage = format!("file:{}/a?size=1M", directory.path().display());
    let held = storage.parse::<store::Spec>().unwrap().open(false).unwrap();
    let before = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        drop(held);
    });
    let running = start(&config(&disks(&[&format!("nsid = 1, storage = \"{storage}\"")])));
    assert_eq!(running.state().subsystems[0].namespaces.len(), 1);
    before.join().unwrap();
}

#[test]
fn storage_may_move_to_another_subsystem() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("nsid = 1, storage = \"file:{}/a?size=1M\"", directory.path().display());
    let other = "nqn.2026-01.io.nvlane:other";
    let mut running = start(&config(&disks(&[&file])));
    let report = running.reload(&[disks(&[]), subsystem(other, "\"any\"", &[&file])].concat());
    assert!(report.is_complete(), "{report}");
    let state = running.state();
    assert!(state.subsystems[0].namespaces.is_empty() && state.subsystems[1].namespaces.len() == 1);
    assert!(is_in_use(&directory.path().join("a")), "in use by the other one");
    let report = running.reload(&disks(&[]));
    assert!(report.is_complete(), "{report}");
    await_free(&directory.path().join("a"));
}

#[test]
fn numbers_given_in_order_do_not_shift_under_hosts() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| format!("storage = \"file:{}/{name}?size=1M\"", directory.path().display());
    let (a, b, c) = (file("a"), file("b"), file("c"));
    let mut running = start(&config(&disks(&[&a, &b])));
    let uuid = running.state().subsystems[0].namespaces[1].uuid.clone();
    let mut told = |namespaces: &[&str]| {
        let text = shown(&running.reload(&disks(namespaces)));
        text.replace(&directory.path().display().to_string(), "/place").replace(&uuid, "UUID")
    };
    insta::assert_snapshot!(told(&[&b]), @r#"Failed: change the namespaces of nqn.2026-01.io.nvlane:disks: not done, file:/place/b?size=1M would get the number 1 under its hosts: write nsid = 2, uuid = "UUID" with it"#);
    insta::assert_snapshot!(told(&[&a, &b, &c]), @"Done: add nqn.2026-01.io.nvlane:disks namespace 3 (file:/place/c?size=1M): done");
    insta::assert_snapshot!(told(&[&a, &b]), @"Done: remove nqn.2026-01.io.nvlane:disks namespace 3 (file:/place/c?size=1M): done");
    // As it was told to do.
    insta::assert_snapshot!(told(&[&format!("nsid = 2, uuid = \"{uuid}\", {b}")]), @"Done: remove nqn.2026-01.io.nvlane:disks namespace 1 (file:/place/a?size=1M): done");
}

#[test]
fn a_configuration_that_cannot_be_changes_nothing() {
    let mut running = start(&config(&disks(&["nsid = 1, storage = \"ram:1M\""])));
    let mut wrong = config(&disks(&["nsid = 2, storage = \"ram:1M\""]));
    let twin = wrong.subsystems[0].namespaces[0].clone();
    wrong.subsystems[0].namespaces.push(twin);
    let report = running.reload_with(&wrong);
    insta::assert_snapshot!(shown(&report), @"Failed: nothing changed: nqn.2026-01.io.nvlane:disks has two namespaces 2: give one another number");
    assert_eq!(running.state().subsystems[0].namespaces[0].nsid, 1);
}

#[test]
fn a_target_that_is_gone_is_noticed() {
    let mut running = start(&config(&disks(&[])));
    let report = running.operator.reload(&config(&disks(&["storage = \"ram:1M\""])), &|_| false);
    assert_eq!((report.lines.len(), report.lines[0].outcome), (1, ChangeOutcome::Failed));
    assert_eq!(state(&|_| false), None);
    assert_eq!(stop(&|_| false, 0), None);
    assert_eq!(stop(&|order| post(&running.target, order), 0), Some(0));
    let steps = vec![Step::SetReferrals(Vec::new())];
    let refused = running.target.borrow_mut().order(OrderKind::Apply(steps));
    assert!(matches!(refused.try_recv(), Ok(OrderAnswer::Applied(outcomes)) if outcomes[0].is_err()));
    running.target.borrow_mut().pass(SECOND_NS);
}

/// A subsystem's namespaces by number, each with the index of its size. Storage and identity belong to the number:
/// hosts would not bear others.
type Shape = Vec<(u8, Vec<(u8, u8)>, bool)>;

fn shape() -> impl Strategy<Value = Shape> {
    let namespace = (1u8..6, 0u8..2);
    let subsystem = (0u8..3, prop::collection::vec(namespace, 0..4), any::<bool>());
    prop::collection::vec(subsystem, 0..3)
}

/// A valid configuration of that shape.
fn configured(shape: &Shape) -> String {
    let mut text = String::new();
    let mut names = Vec::new();
    for (name, namespaces, is_open) in shape {
        if names.contains(name) {
            continue;
        }
        names.push(*name);
        let mut numbers = Vec::new();
        let mut lines = Vec::new();
        for (nsid, size) in namespaces {
            if numbers.contains(nsid) {
                continue;
            }
            numbers.push(*nsid);
            let sizes = [["ram:1M", "ram:2M"], ["null:1G", "null:2G?lba=512"]][usize::from(*nsid % 2)];
            let storage = sizes[usize::from(*size)];
            // Without, an identity in memory is that of the first listener, and each target has another one here.
            let uuid = format!(", uuid = \"{:032x}\"", (u32::from(*name) + 1) << 8 | u32::from(*nsid));
            lines.push(format!("nsid = {nsid}, storage = \"{storage}\"{uuid}"));
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let hosts = if *is_open { "\"any\"".to_owned() } else { format!("[\"{HOST}\"]") };
        text += &subsystem(&format!("nqn.2026-01.io.nvlane:s{name}"), &hosts, &lines);
    }
    text
}

/// What a host could tell of a state: everything but counters and connections.
fn essence(state: &TargetState) -> Vec<String> {
    let mut all = Vec::new();
    for subsystem in &state.subsystems {
        all.push(format!("{} {} {:?}", subsystem.nqn, subsystem.serial, subsystem.hosts));
        for namespace in &subsystem.namespaces {
            all.push(format!("{} {namespace:?}", subsystem.nqn));
        }
    }
    all.sort();
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A reload leads to what a start with the same configuration gives, and leaves nothing to do.
    #[test]
    fn a_reload_is_as_good_as_a_start(first in shape(), second in shape()) {
        let mut running = start(&config(&configured(&first)));
        let report = running.reload(&configured(&second));
        let fresh = start(&config(&configured(&second)));
        prop_assert!(report.is_complete(), "{report}");
        prop_assert_eq!(essence(&running.state()), essence(&fresh.state()));
        let again = running.reload(&configured(&second));
        prop_assert!(again.lines.is_empty(), "{again}");
    }
}

#[test]
fn doorbells_and_placement_change_without_a_restart() {
    let mut running = start(&config(&disks(&["nsid = 1, storage = \"ram:1M\""])));
    let association = running.target.borrow_mut().ready(host(HOST), DISKS, 2);
    let [first, second] = association.io[..] else { panic!("two queues") };
    running.target.borrow_mut().messages.clear();
    let with = |reactors: &str, doorbell: &str| {
        let disks = disks(&["nsid = 1, storage = \"ram:1M\""]);
        format!("[reactors]\n{reactors}\n{}", disks.replace("hosts", &format!("{doorbell}hosts")))
    };
    let report = running.reload(&with("doorbell = \"immediate\"\nplacement = \"napi\"", ""));
    insta::assert_snapshot!(shown(&report), @r"
    Done: place lanes to come by napi: done
    Done: ring doorbells by immediate: done
    ");
    let told = |running: &Running| -> Vec<(LaneId, String)> {
        let target = running.target.borrow();
        let policies = target.messages.iter().filter_map(|(reactor, message)| match message {
            Message::Lane(LaneMessage::SetDoorbell(lane, policy)) => {
                assert_eq!(*reactor, usize::from(lane.reactor));
                Some((*lane, policy.to_string()))
            }
            _ => None,
        });
        policies.collect()
    };
    let lanes = told(&running);
    assert!(lanes.contains(&(first, "immediate".into())) && lanes.contains(&(second, "immediate".into())));
    running.target.borrow_mut().messages.clear();
    let report =
        running.reload(&with("doorbell = \"immediate\"\nplacement = \"napi\"", "doorbell = \"fixed\"\n"));
    insta::assert_snapshot!(shown(&report), @"Done: ring doorbells of nqn.2026-01.io.nvlane:disks by fixed:16,65536,50: done");
    assert!(told(&running).contains(&(second, "fixed:16,65536,50".into())));
    running.target.borrow_mut().messages.clear();
    // What a lane has already it is not told again; what else is said of reactors takes a restart.
    let report = running.reload(&with("doorbell = \"turn\"\nbusy_poll_us = 50", "doorbell = \"fixed\"\n"));
    insta::assert_snapshot!(shown(&report), @r"
    Done: place lanes to come by load: done
    Done: ring doorbells by turn: done
    NeedsRestart: change reactors: takes a restart
    ");
    assert_eq!(told(&running), []);
}
