//! Programs as their makers ship them: how each is started on a path, and what it says about its speed.

use std::io::{Read, Seek};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::tempfile;

use crate::experiments::prelude::*;
use crate::fio;

/// A load by a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// fio on a device, in 4 KiB.
    Device {
        rw: &'static str,
        depth: u32,
    },
    /// fio on files, with these arguments.
    Files(&'static str),
    /// The benchmark of db_bench with this name, with threads, on a new database or on one that was filled before.
    RocksDb {
        threads: &'static str,
        is_filled: bool,
    },
    Pgbench,
    Sqlite,
}

/// Loads on a device.
pub(super) const DEVICE_LOADS: [Program; 3] = [
    Program { name: "read qd1", kind: Kind::Device { rw: "randread", depth: 1 } },
    Program { name: READ_DEEP, kind: Kind::Device { rw: "randread", depth: 32 } },
    Program { name: "write qd32", kind: Kind::Device { rw: "randwrite", depth: 32 } },
];

pub(super) const READ_ONE: &str = DEVICE_LOADS[0].name;
pub(super) const READ_DEEP: &str = "read qd32";

const fn rocksdb(name: &'static str, threads: &'static str, is_filled: bool) -> Program {
    Program { name, kind: Kind::RocksDb { threads, is_filled } }
}

const fn files(name: &'static str, shape: &'static str) -> Program {
    Program { name, kind: Kind::Files(shape) }
}

/// Programs on a file system. The three of fio have the shape of filebench's profiles: mail (small files, an fsync for each write), a
/// file server and a web server (whole files, which a log grows beside). Files of the latter are read without the page cache, which
/// holds all of them.
pub(super) const FILE_PROGRAMS: [Program; 8] = [
    rocksdb("fillrandom", "1", false),
    rocksdb("readrandom", "32", true),
    rocksdb("readwhilewriting", "32", true),
    files("varmail", "--rw=randrw --bs=16k --filesize=16k --nrfiles=32 --numjobs=16 --fsync=1"),
    Program {
        name: "fileserver",
        kind: Kind::Files(
            "--rw=rw --rwmixread=33 --bs=128k --filesize=128k --nrfiles=16 --numjobs=16 --direct=1",
        ),
    },
    Program {
        name: "webserver",
        kind: Kind::Files(
            "--rw=randrw --rwmixread=91 --bs=16k,8k --filesize=16k --nrfiles=32 --numjobs=32 --direct=1",
        ),
    },
    Program { name: "pgbench", kind: Kind::Pgbench },
    Program { name: "SQLite", kind: Kind::Sqlite },
];

/// Keys of a database of RocksDB, and bytes of a value.
const ROCKSDB: &str = "--num=200000 --value_size=400 --compression_type=none --cache_size=1048576 \
                       --use_direct_reads=1 --use_direct_io_for_flush_and_compaction=1";

/// Rounds of SQLite's load: an insert, an update and a select, each a transaction.
const SQLITE_ROUNDS: u32 = 100;

/// The user of PostgreSQL, which refuses to run as root: nobody.
const USER: u32 = 65534;

/// Time limit for PostgreSQL to start, and to stop.
const SERVER_TIME: Duration = Duration::from_secs(30);

/// What a program says about its speed.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) values: Values,
    /// Operations, from its start to its end.
    pub(super) count: f64,
}

impl Done {
    fn of(count: f64, per_second: f64) -> Self {
        Self { values: Values::from([("ops", per_second)]), count }
    }
}

impl Program {
    /// What this machine lacks for it.
    pub(super) fn needs(self) -> Option<&'static str> {
        match self.kind {
            Kind::Device { .. } | Kind::Files(_) if !is_there("fio") => Some("fio: apt install fio"),
            Kind::RocksDb { .. } if !is_there("db_bench") => Some("db_bench: apt install rocksdb-tools"),
            Kind::Pgbench if postgresql().is_none() => Some("postgres and pgbench: apt install postgresql"),
            Kind::Sqlite if !is_there("sqlite3") => Some("sqlite3: apt install sqlite3"),
            _ => None,
        }
    }

    /// Its program and version.
    pub(super) fn version(self) -> Option<String> {
        let (name, program) = match self.kind {
            Kind::Device { .. } | Kind::Files(_) => ("", "fio".into()),
            Kind::RocksDb { .. } => ("", "db_bench".into()),
            Kind::Pgbench => ("", postgresql()?.join("postgres")),
            Kind::Sqlite => ("SQLite ", PathBuf::from("sqlite3")),
        };
        let output = Command::new(program).arg("--version").output().ok()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let words: Vec<_> = said.lines().next()?.split(' ').take(3).collect();
        Some(format!("{name}{}", words.join(" ")))
    }

    /// The access to a device, and its depth, of a load on one.
    pub(super) fn access(self) -> Option<(&'static str, u32)> {
        match self.kind {
            Kind::Device { rw, depth } => Some((rw, depth)),
            _ => None,
        }
    }

    /// Runs it once on a device, a URI or a directory. What it needs there it makes the first time.
    pub(super) fn measure(self, place: &str, bench: &Bench) -> Result<Done, Error> {
        let directory = Path::new(place).join(self.name.replace(' ', "-"));
        match self.kind {
            Kind::Device { rw, depth } => {
                let mut arguments =
                    vec![format!("--rw={rw}"), format!("--iodepth={depth}"), "--bs=4k".into()];
                if place.starts_with("nbd") {
                    arguments.extend(["--ioengine=nbd".into(), format!("--uri={place}")]);
                } else {
                    let file = format!("--filename={place}");
                    arguments.extend(["--ioengine=libaio".into(), "--direct=1".into(), file]);
                }
                run_fio(&arguments, bench)
            }
            Kind::Files(shape) => {
                make(&directory)?;
                let mut arguments: Vec<_> = shape.split(' ').map(str::to_owned).collect();
                arguments.extend(["--ioengine=psync".into(), "--fallocate=none".into()]);
                arguments.push(format!("--directory={}", directory.display()));
                run_fio(&arguments, bench)
            }
            Kind::RocksDb { threads, is_filled } => {
                let database = format!("--db={}", directory.display());
                let run = |benchmark: &str, more: &[&str]| {
                    let mut command = program("db_bench");
                    command.arg(format!("--benchmarks={benchmark}")).arg(&database).args(ROCKSDB.split(' '));
                    finish(command.args(more), bench)
                };
                if is_filled && !directory.exists() {
                    run("fillseq", &[])?;
                }
                let duration = format!("--duration={}", whole_seconds(bench));
                let threads = format!("--threads={threads}");
                let is_kept = format!("--use_existing_db={is_filled}");
                parse_rocksdb(&run(self.name, &[&duration, &threads, &is_kept])?, self.name)
                    .ok_or_else(|| without_results("db_bench"))
            }
            Kind::Pgbench => pgbench(&directory, bench),
            Kind::Sqlite => {
                make(&directory)?;
                let database = directory.join("database");
                // One that has grown would be slower.
                let _ = std::fs::remove_file(&database);
                let mut command = program("sqlite3");
                command.arg(database).arg(sqlite_script());
                let begin = Instant::now();
                finish(&mut command, bench)?;
                let count = f64::from(3 * SQLITE_ROUNDS);
                Ok(Done::of(count, count / begin.elapsed().as_secs_f64()))
            }
        }
    }
}

/// Whether a program is in `PATH`.
pub(super) fn is_there(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|path| path.join(program).is_file())
}

/// The directory of PostgreSQL's programs, which Debian has for each version.
fn postgresql() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut all: Vec<_> = std::env::split_paths(&paths).chain(debian).collect();
    all.retain(|path| ["initdb", "postgres", "pgbench"].iter().all(|program| path.join(program).is_file()));
    all.pop()
}

fn make(directory: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(directory).doing("make a directory")
}

fn whole_seconds(bench: &Bench) -> u64 {
    bench.times.measure.as_secs().max(1)
}

fn without_results(program: &str) -> Error {
    Error::Load(format!("{program} has no results"))
}

/// A program that ends with this one, and that the terminal does not end.
fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(name).process_group(0);
    command
}

/// Runs a program to its end. Returns what it has written to its standard output.
fn finish(command: &mut Command, bench: &Bench) -> Result<String, Error> {
    let cannot = |error| Error::system("run a program", error);
    let (mut output, mut errors) = (tempfile().map_err(cannot)?, tempfile().map_err(cannot)?);
    command.stdin(Stdio::null());
    command.stdout(output.try_clone().map_err(cannot)?).stderr(errors.try_clone().map_err(cannot)?);
    let mut child = Running(command.spawn().map_err(cannot)?);
    let status = loop {
        match child.0.try_wait().map_err(cannot)? {
            Some(status) => break status,
            None if bench.is_stopped() => return Err(Error::Stopped),
            None => sleep(Duration::from_millis(2)),
        }
    };
    let text = |file: &mut std::fs::File| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(cannot)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    if status.success() {
        return text(&mut output);
    }
    // Behind setpriv's own.
    let words: Vec<_> = command.get_args().skip(2).map(|word| word.to_string_lossy()).collect();
    let said = text(&mut errors)?;
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(Error::Load(format!("{} ({status}): {last}", words.join(" "))))
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_fio(arguments: &[String], bench: &Bench) -> Result<Done, Error> {
    let mut command = program("fio");
    command.args("--name=load --output-format=json --group_reporting --time_based --norandommap".split(' '));
    command.args(arguments).arg(format!("--runtime={}ms", bench.times.measure.as_millis()));
    if !arguments.iter().any(|argument| argument.starts_with("--filesize")) {
        command.arg("--size=256M");
    }
    let mut values = fio::values(finish(&mut command, bench)?.as_bytes())?;
    let ops = values.remove("iops").unwrap_or_default();
    values.insert("ops", ops);
    Ok(Done { values, count: ops * bench.times.measure.as_secs_f64() })
}

/// Of a line such as `readrandom : 51.788 micros/op 298916 ops/sec 1.044 seconds 311984 operations; 70.8 MB/s`.
fn parse_rocksdb(said: &str, benchmark: &str) -> Option<Done> {
    let line =
        said.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == benchmark))?;
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let before = |unit: &str| words[words.iter().position(|word| *word == unit)? - 1].parse().ok();
    Some(Done::of(before("operations;")?, before("ops/sec")?))
}

/// Transactions like those of TPC-B by eight clients of a server that is started for them.
fn pgbench(directory: &Path, bench: &Bench) -> Result<Done, Error> {
    let programs = postgresql().ok_or_else(|| without_results("PostgreSQL"))?;
    let of_server = |name: &str| {
        let mut command = program(programs.join(name));
        command
            .uid(USER)
            .gid(USER)
            .current_dir(directory)
            .env("PGHOST", directory)
            .env("PGUSER", "nvlane")
            .env("PGDATABASE", "postgres");
        command
    };
    let data = directory.join("data");
    let is_new = !data.exists();
    if is_new {
        make(directory)?;
        chown(directory, Some(USER), Some(USER)).doing("give a directory away")?;
        let mut command = of_server("initdb");
        command.args(["--username=nvlane", "--auth=trust", "--no-sync", "--locale=C", "-D"]).arg(&data);
        finish(&mut command, bench)?;
    }
    let mut command = of_server("postgres");
    command.arg("-D").arg(&data).arg("-k").arg(directory);
    command.args(["-h", ""]);
    command.args("-c shared_buffers=16MB -c autovacuum=off -c log_min_messages=fatal".split(' '));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let server = command.spawn().doing("start PostgreSQL")?;
    let server = Server(Running(server));
    let until = Instant::now() + SERVER_TIME;
    while finish(&mut of_server("pg_isready"), bench).is_err() {
        if bench.is_stopped() || Instant::now() > until {
            return Err(Error::Load("PostgreSQL does not start".into()));
        }
        sleep(Duration::from_millis(10));
    }
    if is_new {
        finish(of_server("pgbench").args(["--initialize", "--quiet", "--scale=4"]), bench)?;
    }
    let time = format!("--time={}", whole_seconds(bench));
    let said = finish(of_server("pgbench").args(["--client=8", "--jobs=2", "--no-vacuum", &time]), bench);
    drop(server);
    parse_pgbench(&said?).ok_or_else(|| without_results("pgbench"))
}

/// Of lines such as `number of transactions actually processed: 4214` and `tps = 421.9 (without initial connection time)`.
fn parse_pgbench(said: &str) -> Option<Done> {
    let number = |begin: &str| {
        let rest = said.lines().find_map(|line| line.strip_prefix(begin))?;
        rest.split_ascii_whitespace().next()?.parse::<f64>().ok()
    };
    let mut done = Done::of(number("number of transactions actually processed: ")?, number("tps = ")?);
    done.values.insert("mean_us", number("latency average = ")? * 1e3);
    Some(done)
}

/// A server of PostgreSQL, which is told to stop, and ends with this value.
struct Server(Running);

impl Drop for Server {
    fn drop(&mut self) {
        let child = &mut self.0.0;
        let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return };
        // Clients are disconnected; a checkpoint follows.
        let _ = kill_process(pid, Signal::INT);
        let until = Instant::now() + SERVER_TIME;
        while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(5));
        }
    }
}

/// A mix of transactions of one statement each.
fn sqlite_script() -> String {
    let mut script = "CREATE TABLE t(id INTEGER PRIMARY KEY, number INTEGER, text TEXT);\n\
                      CREATE INDEX i ON t(number);\n"
        .to_owned();
    for round in 0..SQLITE_ROUNDS {
        let number = round * 7919 % 1000;
        script += &format!(
            "INSERT INTO t(number, text) VALUES({number}, hex(randomblob(100)));\n\
             UPDATE t SET text = hex(randomblob(100)) WHERE number = {};\n\
             SELECT count(*), max(text) FROM t WHERE number BETWEEN {number} AND {};\n",
            number / 2,
            number + 100
        );
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_say_is_read() {
        let said = "Initializing RocksDB Options\nDB path: [/x]\nreadrandom   :      51.788 micros/op 298916 ops/sec 1.044 seconds 311984 operations;   70.8 MB/s (10689 of 17999 found)\n";
        let done = parse_rocksdb(said, "readrandom").unwrap();
        assert_eq!((done.count, done.values), (311_984.0, Values::from([("ops", 298_916.0)])));
        assert!(
            parse_rocksdb(said, "read").is_none() && parse_rocksdb("readrandom : x", "readrandom").is_none()
        );
        let said = "pgbench (15.13)\nnumber of transactions actually processed: 4214\nnumber of failed transactions: 0 (0.000%)\n\
                    latency average = 2.500 ms\ntps = 421.9 (without initial connection time)\n";
        let done = parse_pgbench(said).unwrap();
        assert_eq!((done.count, done.values), (4214.0, Values::from([("ops", 421.9), ("mean_us", 2500.0)])));
        assert!(parse_pgbench("tps = x").is_none());
    }
}
