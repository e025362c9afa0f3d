//! The log of slow commands: each command above the threshold with its phases, and those that are still under way.

use std::time::{Duration, Instant};

use host::{Address, Association, BlockingNamespace, Options};
use wire::id::Nsid;

use crate::ctl::Target;
use crate::support::run;

const PATIENCE: Duration = Duration::from_secs(30);

fn toml(log: &str, delayed: &str) -> String {
    format!(
        "[reactors]\ncount = 1\n[log]\n{log}[[listener]]\naddress = \"127.0.0.1:0\"\n[[subsystem]]\n\
         nqn = \"nqn.2026-01.io.nvlane:controlled\"\nhosts = \"any\"\n[[subsystem.namespace]]\nnsid = 1\nstorage = \"ram:1M\"\n\
         [[subsystem.namespace]]\nnsid = 2\nstorage = \"ram:1M?delay={delayed}\"\n"
    )
}

/// A host, with a handle for each namespace.
struct Host([(Association, BlockingNamespace); 2]);

impl Host {
    fn of(target: &Target) -> Self {
        let address: Address = target.address().parse().expect("an address");
        Self([1, 2].map(|nsid| {
            let association = Association::connect(&address, Options::default()).expect("connected");
            let namespace = association.namespace(Nsid::new(nsid)).expect("it is there");
            let blocks = BlockingNamespace::new(&association, namespace).expect("a lane");
            (association, blocks)
        }))
    }

    /// Reads two blocks from the ninth on.
    fn read(&mut self, nsid: usize) {
        self.0[nsid - 1].1.read_at(&mut [1; 8192], 8 * 4096).expect("read");
    }
}

fn lines(target: &Target, text: &str) -> Vec<String> {
    target.log().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

fn eventually(target: &Target, what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}\n{}", target.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn number(line: &str, field: &str) -> u64 {
    let text = line.split(' ').find_map(|word| word.strip_prefix(field)?.strip_prefix('='));
    text.unwrap_or_else(|| panic!("no {field}: {line}")).parse().expect("a number")
}

#[test]
fn every_command_above_the_threshold_is_logged_with_its_phases() {
    let target = Target::start(&toml("slow = \"30ms\"\n", "read:60ms"));
    let mut host = Host::of(&target);
    let slow = || lines(&target, "command slow");
    // Far fewer than one in 64.
    for count in 1..4 {
        host.read(1);
        host.read(2);
        eventually(&target, "each is logged", || slow().len() == count);
    }
    let line = &slow()[1];
    let words = [
        "host=\"nqn.",
        "subsystem=\"nqn.2026-01.io.nvlane:controlled\"",
        "nsid=2",
        "qid=",
        "cid=",
        "opcode=\"Read\"",
        "lba=8",
        "blocks=2",
        "bytes=8192",
    ];
    for word in words {
        assert!(line.contains(word), "{word}: {line}");
    }
    let [total_us, storage_us] = ["total_us", "storage_us"].map(|field| number(line, field));
    let others = ["socket_us", "data_us", "doorbell_us", "send_us"].map(|field| number(line, field));
    let sum_us = storage_us + others.iter().sum::<u64>();
    assert!(storage_us >= 59_000 && total_us.abs_diff(sum_us) <= 5, "{line}");
    assert_eq!(slow().len(), 3, "no line of the other namespace:\n{}", target.log());

    // At run time, on queues that are connected.
    assert_eq!(target.ctl(&["log", "set", "--slow", "off"]).text(), "log no slow commands: done\n");
    host.read(2);
    let told = target.ctl(&["log", "set", "--slow", "20ms"]).text();
    assert_eq!(told, "log commands that take 20ms or more: done\n");
    host.read(2);
    eventually(&target, "the second is logged", || slow().len() == 4);
    let refused = target.ctl(&["log", "set", "--slow", "20"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("log.slow: \"20\" is no threshold"), "{}", refused.stderr);
    // The file was edited: it wins.
    target.configure(&toml("", "read:60ms"));
    let told = target.ctl(&["reload"]).text();
    assert!(told.contains("log no slow commands: done"), "{told}");
    host.read(2);
    assert_eq!(slow().len(), 4);
}

#[test]
fn a_flood_of_slow_commands_is_counted_and_not_logged() {
    let target = Target::start(&toml("slow = \"10us\"\n", "read:60ms"));
    let began = Instant::now();
    let ended = run([
        "perf",
        &format!("{}?ns=1", target.address()),
        "-t",
        "1",
        "-q",
        "8",
        "-o",
        "4096",
        "-w",
        "randread",
    ]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let seconds = usize::try_from(began.elapsed().as_secs()).expect("few") + 1;
    let lines = lines(&target, "command slow");
    assert!(lines.len() >= 20 && lines.len() <= 20 + 2 * seconds, "{} in {seconds} s", lines.len());
    let suppressed: u64 =
        lines.iter().filter(|line| line.contains("suppressed=")).map(|line| number(line, "suppressed")).sum();
    assert!(suppressed > 100, "{suppressed}");
}

#[test]
fn a_command_that_storage_does_not_answer_is_logged_before_it_ends() {
    let target = Target::start(&toml("slow = \"100ms\"\n", "read:7s"));
    let mut host = Host::of(&target);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| host.read(2));
        eventually(&target, "it is told", || !lines(&target, "command outstanding").is_empty());
        assert!(!read.is_finished(), "the storage has not answered");
    });
    let told = lines(&target, "command outstanding");
    assert_eq!(told.len(), 1, "once: {told:?}");
    assert!(
        told[0].contains("nsid=2")
            && told[0].contains("phase=\"storage\"")
            && told[0].contains("opcode=\"Read\""),
        "{told:?}"
    );
    assert!(number(&told[0], "since_us") >= 100_000);
    eventually(&target, "its end is logged, too", || {
        lines(&target, "command slow").iter().any(|line| number(line, "storage_us") >= 6_900_000)
    });
}

#[test]
fn a_command_that_waits_for_a_rate_limit_says_so() {
    let limited = toml("slow = \"20ms\"\n", "read:1ms").replacen(
        "storage = \"ram:1M\"",
        "storage = \"ram:1M\"\niops = 10",
        1,
    );
    let target = Target::start(&limited);
    let mut host = Host::of(&target);
    let slow = || lines(&target, "command slow");
    let until = Instant::now() + PATIENCE;
    while slow().is_empty() {
        assert!(Instant::now() < until, "the burst is used up");
        host.read(1);
    }
    let line = &slow()[0];
    let limit_us = number(line, "limit_us");
    assert!(line.contains("nsid=1") && limit_us >= 15_000, "{line}");
    assert!(
        number(line, "storage_us") + number(line, "socket_us") < number(line, "total_us") - limit_us + 1000,
        "{line}"
    );
}
