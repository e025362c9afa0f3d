//! What is shown of two documents of a target: rates and percentiles of the time between them, as tables.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use metrics::live::{Caravans, HostRow, LaneRow, Live, NamespaceRow, Phases, ReactorRow, Rows, Work};
use serde_json::{Map, Value as Json, json};
use wire::text::without_hidden;

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Text.
    Text,
    /// A name that is a number.
    Number,
    /// A number, with a decimal prefix if it is large.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Time,
    /// A part of 1.
    Share,
}

/// A column of a table.
#[derive(Debug)]
pub(super) struct Column {
    /// Its name in JSON.
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    pub(super) unit: Unit,
    /// Characters; 0 for the column that takes the rest.
    pub(super) width: usize,
    /// Those with the highest are left out first where the terminal is narrow.
    pub(super) rank: u8,
}

const fn column(key: &'static str, title: &'static str, unit: Unit, width: usize, rank: u8) -> Column {
    Column { key, title, unit, width, rank }
}

/// A value of a cell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// Not known: what is new has no rates yet.
    None,
    Number(f64),
    Text(String),
}

/// The objects of a kind.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Vec<Value>>,
    /// All objects, also those that have no row.
    pub(super) count: usize,
    /// The column that the table is sorted by at first, and whether in ascending order.
    pub(super) sort: (usize, bool),
}

/// What is shown.
#[derive(Debug)]
pub(super) struct View {
    /// Lines of sums: a name, and the text.
    pub(super) sums: Vec<(&'static str, String)>,
    pub(super) tables: [Table; 4],
    /// The sums for programs.
    json: Json,
}

const NAMESPACES: &[Column] = &[
    column("nsid", "NSID", Unit::Number, 5, 0),
    column("subsystem", "SUBSYSTEM", Unit::Text, 0, 0),
    column("storage", "STORAGE", Unit::Text, 8, 3),
    column("size_bytes", "SIZE", Unit::Bytes, 8, 4),
    column("commands_per_s", "CMDS/s", Unit::Count, 7, 0),
    column("read_bytes_per_s", "READ/s", Unit::Bytes, 8, 1),
    column("written_bytes_per_s", "WRITE/s", Unit::Bytes, 8, 1),
    column("p50_ns", "P50", Unit::Time, 7, 2),
    column("p99_ns", "P99", Unit::Time, 7, 0),
    column("state", "STATE", Unit::Text, 8, 0),
];

const HOSTS: &[Column] = &[
    column("host", "HOST", Unit::Text, 0, 0),
    column("controllers", "CTRLS", Unit::Number, 6, 3),
    column("lanes", "LANES", Unit::Number, 6, 2),
    column("commands_per_s", "CMDS/s", Unit::Count, 7, 0),
    column("read_bytes_per_s", "READ/s", Unit::Bytes, 8, 1),
    column("written_bytes_per_s", "WRITE/s", Unit::Bytes, 8, 1),
    column("failed_per_s", "FAILED/s", Unit::Count, 9, 2),
    column("pdus_per_batch", "BATCH", Unit::Count, 6, 0),
];

const LANES: &[Column] = &[
    column("host", "HOST", Unit::Text, 0, 0),
    column("subsystem", "SUBSYSTEM", Unit::Text, 28, 5),
    column("controller", "CTRL", Unit::Number, 5, 3),
    column("queue", "QUEUE", Unit::Number, 6, 0),
    column("reactor", "REACTOR", Unit::Number, 8, 2),
    column("commands_per_s", "CMDS/s", Unit::Count, 7, 0),
    column("read_bytes_per_s", "READ/s", Unit::Bytes, 8, 4),
    column("written_bytes_per_s", "WRITE/s", Unit::Bytes, 8, 4),
    column("pdus_per_batch", "BATCH", Unit::Count, 6, 0),
    column("doorbell", "DOORBELL", Unit::Text, 9, 1),
    column("p50_ns", "P50", Unit::Time, 7, 2),
    column("p99_ns", "P99", Unit::Time, 7, 0),
];

const REACTORS: &[Column] = &[
    column("reactor", "REACTOR", Unit::Number, 8, 0),
    column("lanes", "LANES", Unit::Number, 6, 0),
    column("busy", "BUSY", Unit::Share, 6, 0),
    column("polling", "POLLING", Unit::Share, 8, 0),
    column("asleep", "ASLEEP", Unit::Share, 7, 1),
    column("turns_per_s", "TURNS/s", Unit::Count, 8, 2),
    column("sleeps_per_s", "SLEEPS/s", Unit::Count, 9, 3),
    column("buffer_bytes", "BUFFERS", Unit::Bytes, 8, 1),
    column("free_buffer_bytes", "FREE", Unit::Bytes, 8, 0),
    column("buffer_waits_per_s", "WAITS/s", Unit::Count, 8, 0),
];

/// p50 and p99 of a phase, ns; `None` if no command was timed.
type Percentiles = (&'static str, [Option<f64>; 2]);

/// A time between two documents.
struct Between<'a> {
    now: &'a Live,
    before: Option<&'a Live>,
    seconds: f64,
}

impl View {
    /// What is shown of a document and an earlier one, whose target may be another process.
    pub(super) fn new(now: &Live, before: Option<&Live>) -> Self {
        let is_earlier = |before: &&Live| {
            // Read from text: it is the same number, or that of another process.
            (before.started_unix_s - now.started_unix_s).abs() < 1e-3 && before.age_ns < now.age_ns
        };
        let before = before.filter(is_earlier);
        let seconds = before.map_or(0.0, |before| (now.age_ns - before.age_ns) as f64 / 1e9);
        let between = Between { now, before, seconds };
        let mut tables = [between.namespaces(), between.hosts(), between.lanes(), between.reactors()];
        tables.iter_mut().for_each(|table| table.sort_by(table.sort));
        Self { sums: between.sums(), tables, json: between.json() }
    }

    /// The view for programs.
    pub(super) fn to_json(&self) -> Json {
        let mut all = self.json.clone();
        for table in &self.tables {
            let row = |row: &Vec<Value>| {
                let fields = table.columns.iter().zip(row);
                Json::Object(
                    fields
                        .map(|(column, value)| (column.key.to_owned(), value.to_json(column.unit)))
                        .collect(),
                )
            };
            let name = table.title.to_lowercase();
            all[format!("{name}_count")] = table.count.into();
            all[name] = table.rows.iter().map(row).collect();
        }
        all
    }
}

impl Table {
    /// The rows in the order of a column.
    pub(super) fn sort_by(&mut self, (column, is_ascending): (usize, bool)) {
        self.rows.sort_by(|left, right| {
            let order = compare(&left[column], &right[column]);
            if is_ascending { order } else { order.reverse() }
        });
    }
}

fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.total_cmp(right),
        (Value::Text(left), Value::Text(right)) => left.cmp(right),
        (Value::None, Value::None) => Ordering::Equal,
        (Value::None, _) => Ordering::Less,
        (_, Value::None) => Ordering::Greater,
        (Value::Number(_), Value::Text(_)) => Ordering::Less,
        (Value::Text(_), Value::Number(_)) => Ordering::Greater,
    }
}

impl Value {
    fn number(number: impl TryInto<u32>) -> Self {
        number.try_into().map_or(Self::None, |number| Self::Number(number.into()))
    }

    /// Text that may be a peer's: without characters that a terminal would obey.
    fn text(text: &str) -> Self {
        Self::Text(without_hidden(text, false).into_owned())
    }

    fn to_json(&self, unit: Unit) -> Json {
        match self {
            Self::None => Json::Null,
            Self::Text(text) => text.as_str().into(),
            Self::Number(number) => number_json(*number, unit),
        }
    }

    /// As it is shown.
    pub(super) fn shown(&self, unit: Unit) -> Cow<'_, str> {
        match self {
            Self::None => "-".into(),
            Self::Text(text) => text.as_str().into(),
            Self::Number(number) => written(*number, unit).into(),
        }
    }
}

impl From<Option<f64>> for Value {
    fn from(number: Option<f64>) -> Self {
        number.map_or(Self::None, Self::Number)
    }
}

/// A number with as many digits as are worth it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Below 2^53.
fn number_json(number: f64, unit: Unit) -> Json {
    match unit {
        Unit::Number | Unit::Bytes | Unit::Time => (number.round() as u64).into(),
        Unit::Share => ((number * 1e4).round() / 1e4).into(),
        Unit::Text | Unit::Count => ((number * 10.0).round() / 10.0).into(),
    }
}

/// A number as people read it.
pub(super) fn written(number: f64, unit: Unit) -> String {
    match unit {
        Unit::Text | Unit::Number => format!("{number:.0}"),
        Unit::Count if number < 1000.0 && number.fract() == 0.0 => format!("{number:.0}"),
        Unit::Count => scaled(number, 1000.0, &["", "k", "M", "G", "T"]),
        Unit::Bytes => scaled(number, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]),
        Unit::Time => scaled(number, 1000.0, &["ns", "µs", "ms", "s"]),
        Unit::Share => format!("{:.0} %", number * 100.0),
    }
}

/// Three digits and a unit.
fn scaled(mut number: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while number >= base * 0.9995 && unit + 1 < units.len() {
        (number, unit) = (number / base, unit + 1);
    }
    let digits = match number {
        number if number.fract() == 0.0 || number >= 99.95 => 0,
        10.0.. => 1,
        _ => 2,
    };
    let unit = units[unit];
    let space = if unit.is_empty() { "" } else { " " };
    format!("{number:.digits$}{space}{unit}")
}

/// A time for people.
pub(super) fn age(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Objects of an earlier document by their keys.
fn earlier<'a, Row, Key: Eq + std::hash::Hash>(
    before: Option<&'a Rows<Row>>,
    key: impl Fn(&'a Row) -> Key,
) -> HashMap<Key, &'a Row> {
    before.into_iter().flat_map(|rows| &rows.rows).map(|row| (key(row), row)).collect()
}

impl Between<'_> {
    /// A rate; `None` if it is not known, or the counter has begun again.
    fn rate(&self, now: u64, before: Option<u64>) -> Option<f64> {
        (self.seconds > 0.0).then_some(())?;
        Some(now.checked_sub(before?)? as f64 / self.seconds)
    }

    fn of_work(&self, now: &Work, before: Option<&Work>, of: fn(&Work) -> u64) -> Option<f64> {
        self.rate(of(now), before.map(of))
    }

    fn namespaces(&self) -> Table {
        let key = |row: &NamespaceRow| (row.subsystem.clone(), row.nsid);
        let old = earlier(self.before.map(|before| &before.namespaces), key);
        let row = |row: &NamespaceRow| {
            let old = old.get(&key(row));
            let work = old.map(|old| &old.work);
            let storage = since(&row.phases, old.map(|old| &old.phases)).map(|phases| phases.storage);
            let percentile =
                |percent| Value::from(storage.as_ref().and_then(|storage| storage.percentile_ns(percent)));
            let state = if row.trouble.is_empty() { "ok" } else { &row.trouble };
            vec![
                Value::number(row.nsid),
                Value::text(&row.subsystem),
                Value::text(&row.kind),
                Value::Number(row.bytes as f64),
                self.of_work(&row.work, work, Work::command_count).into(),
                self.of_work(&row.work, work, |work| work.read_bytes).into(),
                self.of_work(&row.work, work, |work| work.written_bytes).into(),
                percentile(50.0),
                percentile(99.0),
                Value::text(state),
            ]
        };
        let Rows { count, rows } = &self.now.namespaces;
        let rows = rows.iter().map(row).collect();
        Table { title: "Namespaces", columns: NAMESPACES, rows, count: *count, sort: (4, false) }
    }

    fn hosts(&self) -> Table {
        let old = earlier(self.before.map(|before| &before.hosts), |row: &HostRow| row.host.clone());
        let row = |row: &HostRow| {
            let old = old.get(&row.host);
            let work = old.map(|old| &old.work);
            vec![
                Value::text(&row.host),
                Value::number(row.controller_count),
                Value::number(row.lane_count),
                self.of_work(&row.work, work, Work::command_count).into(),
                self.of_work(&row.work, work, |work| work.read_bytes).into(),
                self.of_work(&row.work, work, |work| work.written_bytes).into(),
                self.of_work(&row.work, work, |work| work.failed_count).into(),
                batch(&row.caravans, old.map(|old| &old.caravans)).into(),
            ]
        };
        let Rows { count, rows } = &self.now.hosts;
        let rows = rows.iter().map(row).collect();
        Table { title: "Hosts", columns: HOSTS, rows, count: *count, sort: (3, false) }
    }

    fn lanes(&self) -> Table {
        let old = earlier(self.before.map(|before| &before.lanes), |row: &LaneRow| row.lane.clone());
        let row = |row: &LaneRow| {
            let old = old.get(&row.lane);
            let work = old.map(|old| &old.work);
            let storage = since(&row.phases, old.map(|old| &old.phases)).map(|phases| phases.storage);
            let percentile =
                |percent| Value::from(storage.as_ref().and_then(|storage| storage.percentile_ns(percent)));
            vec![
                Value::text(&row.host),
                Value::text(&row.subsystem),
                Value::number(row.cntlid),
                Value::number(row.qid),
                Value::number(row.reactor),
                self.of_work(&row.work, work, Work::command_count).into(),
                self.of_work(&row.work, work, |work| work.read_bytes).into(),
                self.of_work(&row.work, work, |work| work.written_bytes).into(),
                batch(&row.caravans, old.map(|old| &old.caravans)).into(),
                doorbell(&row.caravans, old.map(|old| &old.caravans)),
                percentile(50.0),
                percentile(99.0),
            ]
        };
        let Rows { count, rows } = &self.now.lanes;
        let rows = rows.iter().map(row).collect();
        Table { title: "Lanes", columns: LANES, rows, count: *count, sort: (5, false) }
    }

    fn reactors(&self) -> Table {
        let old = earlier(self.before.map(|before| &before.reactors), |row: &ReactorRow| row.reactor);
        let row = |row: &ReactorRow| {
            let old = old.get(&row.reactor).copied();
            let [busy, polling, asleep] = times(row, old);
            vec![
                Value::number(row.reactor),
                Value::number(row.lane_count),
                busy.into(),
                polling.into(),
                asleep.into(),
                self.rate(row.busy_turn_count, old.map(|old| old.busy_turn_count)).into(),
                self.rate(row.sleep_count, old.map(|old| old.sleep_count)).into(),
                Value::Number(row.buffer_bytes as f64),
                Value::Number(row.free_buffer_bytes as f64),
                self.rate(row.buffer_wait_count, old.map(|old| old.buffer_wait_count)).into(),
            ]
        };
        let Rows { count, rows } = &self.now.reactors;
        let rows = rows.iter().map(row).collect();
        Table { title: "Reactors", columns: REACTORS, rows, count: *count, sort: (0, true) }
    }

    /// Sums of work, latency, batches, doorbells and reactors.
    fn sums(&self) -> Vec<(&'static str, String)> {
        let work = self.before.map(|before| &before.work);
        let of = |of: fn(&Work) -> u64, unit| {
            self.of_work(&self.now.work, work, of).map_or("-".into(), |rate| written(rate, unit))
        };
        let count = |field| of(field, Unit::Count);
        let bytes = |field| of(field, Unit::Bytes);
        let commands = format!(
            "{}/s: read {}, write {}, other {}, failed {}",
            count(Work::command_count),
            count(|work| work.read_count),
            count(|work| work.write_count),
            count(|work| work.other_count),
            count(|work| work.failed_count),
        );
        let data = format!(
            "read {}/s, written {}/s",
            bytes(|work| work.read_bytes),
            bytes(|work| work.written_bytes)
        );
        let [p50, p99] = [0, 1].map(|at| {
            self.percentiles().map_or("-".into(), |phases| {
                let time = |ns: Option<f64>| ns.map_or("-".into(), |ns| written(ns, Unit::Time));
                phases.map(|(phase, parts)| format!("{phase} {}", time(parts[at]))).join(", ")
            })
        });
        let traffic = &self.now.traffic;
        let old = self.before.map(|before| &before.traffic.caravans);
        let pdus = batch(&traffic.caravans, old).map_or("-".into(), |pdus| written(pdus, Unit::Count));
        let sizes = parts(self.sizes());
        let rings = parts(self.rings());
        let waited = self.waited_ns().map_or("-".into(), |ns| written(ns, Unit::Time));
        let [busy, polling, asleep] = self.reactor_times();
        let share = |share: Option<f64>| share.map_or("-".into(), |share| written(share, Unit::Share));
        let rows = &self.now.reactors.rows;
        let pool: u64 = rows.iter().map(|row| row.buffer_bytes).sum();
        let free: u64 = rows.iter().map(|row| row.free_buffer_bytes).sum();
        let free = (pool > 0).then(|| free as f64 / pool as f64);
        vec![
            ("commands", commands),
            ("data", data),
            ("p50", p50),
            ("p99", p99),
            ("batch", format!("{pdus} PDUs; {sizes}")),
            ("doorbell", format!("{rings}; first PDU waited {waited}")),
            (
                "reactors",
                format!(
                    "busy {}, polling {}, asleep {}, buffers {} free",
                    share(busy),
                    share(polling),
                    share(asleep),
                    share(free)
                ),
            ),
        ]
    }

    /// p50 and p99 of each phase, ns.
    fn percentiles(&self) -> Option<[Percentiles; 4]> {
        let phases = since(&self.now.phases, self.before.map(|before| &before.phases))?;
        Some(phases.named().map(|(name, times)| (name, [50.0, 99.0].map(|part| times.percentile_ns(part)))))
    }

    /// Batches by the number of their PDUs.
    fn sizes(&self) -> Vec<(String, u64)> {
        let now = &self.now.traffic.caravan_sizes;
        let old = self.before.map_or(&[][..], |before| &before.traffic.caravan_sizes);
        let last = now.len().saturating_sub(1);
        let name = |bin: usize| match bin {
            0 | 1 => (bin + 1).to_string(),
            bin if bin == last => format!("{}-", (1u64 << (bin - 1)) + 1),
            bin => format!("{}-{}", (1u64 << (bin - 1)) + 1, 1u64 << bin),
        };
        let count =
            |(bin, now): (usize, &u64)| (name(bin), now.saturating_sub(old.get(bin).copied().unwrap_or(0)));
        now.iter().enumerate().map(count).collect()
    }

    /// Doorbells by reason.
    fn rings(&self) -> Vec<(String, u64)> {
        let old = self.before.map(|before| &before.traffic.caravans.doorbells);
        rung(&self.now.traffic.caravans.doorbells, old)
    }

    /// Time that the first PDU of a batch waited, ns.
    fn waited_ns(&self) -> Option<f64> {
        let (now, old) = (&self.now.traffic.caravans, &self.before?.traffic.caravans);
        let caravans = now.caravan_count.checked_sub(old.caravan_count).filter(|count| *count > 0)?;
        Some(now.doorbell_waited_ns.checked_sub(old.doorbell_waited_ns)? as f64 / caravans as f64)
    }

    /// The mean of all reactors.
    fn reactor_times(&self) -> [Option<f64>; 3] {
        let before = self.before.map(|before| &before.reactors);
        let old = earlier(before, |row: &ReactorRow| row.reactor);
        let all: Vec<_> =
            self.now.reactors.rows.iter().map(|row| times(row, old.get(&row.reactor).copied())).collect();
        [0, 1, 2].map(|at| {
            let known: Vec<f64> = all.iter().filter_map(|times| times[at]).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        })
    }

    fn json(&self) -> Json {
        let work = self.before.map(|before| &before.work);
        let rate =
            |of: fn(&Work) -> u64, unit| Value::from(self.of_work(&self.now.work, work, of)).to_json(unit);
        let percentiles = self.percentiles().into_iter().flatten().map(|(phase, [p50, p99])| {
            let ns = |ns: Option<f64>| Value::from(ns).to_json(Unit::Time);
            (phase.to_owned(), json!({ "p50_ns": ns(p50), "p99_ns": ns(p99) }))
        });
        let caravans = &self.now.traffic.caravans;
        let old = self.before.map(|before| &before.traffic.caravans);
        let counts = |counts: Vec<(String, u64)>| {
            counts.into_iter().map(|(name, count)| (name, count.into())).collect::<Map<String, Json>>()
        };
        json!({
            "version": self.now.version,
            "started_unix_s": self.now.started_unix_s,
            "age_ns": self.now.age_ns,
            "interval_s": Value::Number(self.seconds).to_json(Unit::Share),
            "connections": self.now.connection_count,
            "memcached_connections": self.now.memcached_connection_count,
            "commands_per_s": rate(Work::command_count, Unit::Count),
            "reads_per_s": rate(|work| work.read_count, Unit::Count),
            "writes_per_s": rate(|work| work.write_count, Unit::Count),
            "others_per_s": rate(|work| work.other_count, Unit::Count),
            "failed_per_s": rate(|work| work.failed_count, Unit::Count),
            "read_bytes_per_s": rate(|work| work.read_bytes, Unit::Bytes),
            "written_bytes_per_s": rate(|work| work.written_bytes, Unit::Bytes),
            "phases": percentiles.collect::<Map<String, Json>>(),
            "pdus_per_batch": Value::from(batch(caravans, old)).to_json(Unit::Count),
            "batches_by_pdus": counts(self.sizes()),
            "doorbells": counts(self.rings()),
        })
    }
}

/// Time of the commands since an earlier document.
fn since(now: &Phases, before: Option<&Phases>) -> Option<Phases> {
    let before = before?;
    Some(Phases {
        queue: now.queue.since(&before.queue),
        storage: now.storage.since(&before.storage),
        doorbell: now.doorbell.since(&before.doorbell),
        send: now.send.since(&before.send),
    })
}

/// Mean PDUs of a batch.
fn batch(now: &Caravans, before: Option<&Caravans>) -> Option<f64> {
    let before = before?;
    let caravans = now.caravan_count.checked_sub(before.caravan_count).filter(|count| *count > 0)?;
    Some(now.pdu_count.checked_sub(before.pdu_count)? as f64 / caravans as f64)
}

fn rung(now: &BTreeMap<String, u64>, before: Option<&BTreeMap<String, u64>>) -> Vec<(String, u64)> {
    let old = |reason: &String| before.and_then(|before| before.get(reason)).copied().unwrap_or(0);
    now.iter().map(|(reason, count)| (reason.clone(), count.saturating_sub(old(reason)))).collect()
}

/// The most frequent reason of a doorbell.
fn doorbell(now: &Caravans, before: Option<&Caravans>) -> Value {
    let Some(before) = before else { return Value::None };
    let most = rung(&now.doorbells, Some(&before.doorbells)).into_iter().max_by_key(|(_, count)| *count);
    most.filter(|(_, count)| *count > 0).map_or(Value::None, |(reason, _)| Value::text(&reason))
}

/// Busy, polling and asleep parts of a reactor's time.
fn times(now: &ReactorRow, before: Option<&ReactorRow>) -> [Option<f64>; 3] {
    let parts = before.and_then(|before| {
        let all = now.age_ns.checked_sub(before.age_ns).filter(|ns| *ns > 0)? as f64;
        let part = |now: u64, before: u64| (now.saturating_sub(before) as f64 / all).min(1.0);
        let polling = part(now.spun_ns, before.spun_ns);
        let asleep = part(now.asleep_ns, before.asleep_ns);
        Some([(1.0 - polling - asleep).max(0.0), polling, asleep])
    });
    parts.map_or([None; 3], |parts| parts.map(Some))
}

/// Parts of a whole, those that are there.
fn parts(counts: Vec<(String, u64)>) -> String {
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    if all == 0 {
        return "none".into();
    }
    let shown = counts.into_iter().filter(|(_, count)| *count > 0);
    let shown = shown.map(|(name, count)| {
        let part = count as f64 / all as f64;
        let part = if part < 0.005 { "<1 %".into() } else { written(part, Unit::Share) };
        format!("{name}: {part}")
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use metrics::live::Histogram;

    use super::*;

    fn live(age_s: u64, reads: u64) -> Live {
        let work = Work { read_count: reads, read_bytes: reads * 4096, ..Work::default() };
        let storage = Histogram { skipped: 3, counts: vec![reads] };
        let phases = Phases { storage, ..Phases::default() };
        let row = NamespaceRow {
            subsystem: "nqn.a:\u{1b}[2J".into(),
            nsid: 7,
            work,
            phases: phases.clone(),
            ..NamespaceRow::default()
        };
        let reactor = ReactorRow {
            age_ns: age_s * 1_000_000_000,
            asleep_ns: age_s * 250_000_000,
            ..ReactorRow::default()
        };
        Live {
            started_unix_s: 1e9,
            age_ns: age_s * 1_000_000_000,
            work,
            phases,
            namespaces: Rows { count: 1, rows: vec![row] },
            reactors: Rows { count: 1, rows: vec![reactor] },
            ..Live::default()
        }
    }

    #[test]
    fn rates_are_those_of_the_time_between() {
        let view = View::new(&live(12, 3000), Some(&live(10, 1000)));
        let json = view.to_json();
        assert_eq!((&json["interval_s"], &json["reads_per_s"]), (&json!(2.0), &json!(1000.0)));
        let row = &json["namespaces"][0];
        assert_eq!((&row["nsid"], &row["commands_per_s"]), (&json!(7), &json!(1000.0)));
        assert_eq!(row["read_bytes_per_s"], json!(4_096_000));
        let p99 = row["p99_ns"].as_u64().expect("commands were timed");
        assert!((512..=1024).contains(&p99), "{p99}");
        assert_eq!(
            (&json["reactors"][0]["busy"], &json["reactors"][0]["asleep"]),
            (&json!(0.75), &json!(0.25))
        );
        assert_eq!(view.sums[0].1, "1 k/s: read 1 k, write 0, other 0, failed 0");
        assert!(!row["subsystem"].as_str().expect("text").contains('\u{1b}'), "{row}");
    }

    #[test]
    fn a_target_that_began_again_has_no_rates_yet() {
        let mut other = live(1, 5);
        other.started_unix_s += 60.0;
        for (now, before) in [(&other, Some(&live(10, 1000))), (&live(10, 1000), None)] {
            let json = View::new(now, before).to_json();
            assert_eq!(json["reads_per_s"], Json::Null);
            assert_eq!(json["namespaces"][0]["commands_per_s"], Json::Null);
        }
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (number, unit, text) in [
            (0.0, Unit::Count, "0"),
            (999.0, Unit::Count, "999"),
            (3.672, Unit::Count, "3.67"),
            (22_900.0, Unit::Count, "22.9 k"),
            (999_900.0, Unit::Count, "1.00 M"),
            (67_108_864.0, Unit::Bytes, "64 MiB"),
            (1_590.0, Unit::Time, "1.59 µs"),
            (0.384, Unit::Share, "38 %"),
        ] {
            assert_eq!(written(number, unit), text, "{number}");
        }
    }

    #[test]
    fn unknown_values_are_sorted_below_known_ones() {
        let mut table = View::new(&live(12, 3000), None).tables.into_iter().next().expect("four");
        table.rows = [Value::Number(1.0), Value::None, Value::Number(3.0)]
            .map(|value| vec![value; NAMESPACES.len()])
            .into();
        table.sort_by((4, false));
        let first: Vec<_> = table.rows.iter().map(|row| row[4].clone()).collect();
        assert_eq!(first, [Value::Number(3.0), Value::Number(1.0), Value::None]);
    }
}
