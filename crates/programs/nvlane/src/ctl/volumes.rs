//! `nvlane ctl volume` and `nvlane ctl snapshot`, and the list of pools with their space.

use std::fmt;

use clap::{Arg, ArgMatches, Command, value_parser};
use command_line::exit::Failure;
use command_line::output::Output;
use serde::Serialize;
use serde_json::{Map, Value};
use store::Size;

use super::client::Client;
use crate::columns::Columns;
use crate::human_size::HumanSize;

const VOLUME_HELP: &str = "\
  nvlane ctl pool add fast --dir /srv/fast
  nvlane ctl volume create fast/db --size 100G           thin: takes space as it is written
  nvlane ctl namespace add --storage pool:fast/db        hosts see it
  nvlane ctl volume resize fast/db --size 200G           the namespace grows with it
  nvlane ctl snapshot create fast/monday --of fast/db    of the moment, also while hosts write
  nvlane ctl volume clone fast/test --from fast/monday   shares blocks with it
  nvlane ctl snapshot rollback fast/monday               fast/db as it was; remove its namespace first

Clones and snapshots share blocks, which XFS (reflink=1) and btrfs can; on other file systems they are refused, and nothing is ever copied.";

/// The commands.
pub(super) fn commands() -> [Command; 2] {
    let named = |name: &'static str, about: &'static str| {
        Command::new(name)
            .about(about)
            .arg(Arg::new("name").value_name("POOL/NAME").required(true).help("Its pool, and its name there"))
    };
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let size = |is_required: bool, help: &'static str| {
        let parser = |text: &str| Size::parse(text).map_err(|(_, why)| why);
        option("size", "SIZE", help).required(is_required).value_parser(parser)
    };
    let pool = || option("pool", "POOL", "Only those of this pool");
    let volume = Command::new("volume")
        .alias("volumes")
        .about("Volumes of pools: disks that are thin, grow, and can be cloned")
        .after_help(VOLUME_HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("list").about("List volumes").arg(pool()))
        .subcommand(named("show", "Show one"))
        .subcommand(
            named("create", "Create one without content").arg(size(true, "Size, such as 10G")).arg(
                option("block-bytes", "BYTES", "Block size, 512 to 65536  [default: 4096]")
                    .value_parser(value_parser!(u32)),
            ),
        )
        .subcommand(
            named("clone", "Create one with the content of a volume or snapshot")
                .arg(option("from", "POOL/NAME", "The volume or snapshot, of the same pool").required(true))
                .arg(size(false, "Size, if it is to be larger")),
        )
        .subcommand(named("resize", "Make one larger, and the namespace on it").arg(size(true, "New size")))
        .subcommand(named("delete", "Delete one that no namespace is on; its snapshots and clones stay"));
    let snapshot = Command::new("snapshot")
        .alias("snapshots")
        .about("Snapshots of volumes: their content of a moment")
        .after_help(VOLUME_HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("list").about("List snapshots").arg(pool()).arg(option(
            "of",
            "POOL/NAME",
            "Only those of this volume",
        )))
        .subcommand(named("show", "Show one"))
        .subcommand(
            named("create", "Keep what a volume has now")
                .arg(option("of", "POOL/NAME", "The volume, of the same pool").required(true)),
        )
        .subcommand(named("rollback", "Give the volume of a snapshot the content that it had then"))
        .subcommand(named("delete", "Delete one; its clones stay"));
    [volume, snapshot]
}

/// Names of parameters where options have shorter ones.
const PARAMETERS: [(&str, &str); 6] = [
    ("name", "name"),
    ("pool", "pool"),
    ("from", "source"),
    ("of", "volume"),
    ("size", "size"),
    ("block-bytes", "block_bytes"),
];

/// Carries out a command.
pub(super) fn perform(
    noun: &str,
    matches: &ArgMatches,
    client: &mut Client,
    output: &Output,
) -> Result<(), Failure> {
    let Some((verb, matches)) = matches.subcommand() else {
        return Err(Failure::usage("name a verb: nvlane ctl --help"));
    };
    let mut params = Map::new();
    for (option, parameter) in PARAMETERS {
        let value: Option<Value> = match option {
            "size" => matches.try_get_one::<Size>(option).ok().flatten().map(|size| size.0.into()),
            "block-bytes" => matches.try_get_one::<u32>(option).ok().flatten().map(|bytes| (*bytes).into()),
            _ => matches.try_get_one::<String>(option).ok().flatten().map(|text| text.as_str().into()),
        };
        if let Some(value) = value {
            params.insert(parameter.into(), value);
        }
    }
    let answer = client.call(&format!("{noun}_{verb}"), &params)?;
    match verb {
        "list" => output.print(&Volumes(noun.to_owned(), answer)),
        "delete" => output.print(&Deleted(answer)),
        _ => output.print(&Volume(answer)),
    }
}

/// Lists the pools with their space.
pub(super) fn list_pools(client: &mut Client, output: &Output) -> Result<(), Failure> {
    output.print(&Pools(client.call("pool_list", &Map::new())?))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn size(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".into(), |bytes| HumanSize(bytes.into()).to_string())
}

/// The namespaces on a volume.
fn served(volume: &Value) -> String {
    let by = volume["served_by"].as_array().into_iter().flatten();
    let by: Vec<String> = by.map(|by| format!("{} {}", text(&by["subsystem"]), by["nsid"])).collect();
    if by.is_empty() { "-".into() } else { by.join(", ") }
}

fn objects(answer: &Value) -> &[Value] {
    answer["objects"].as_array().map_or(&[], Vec::as_slice)
}

#[derive(Serialize)]
#[serde(transparent)]
struct Volumes(#[serde(skip)] String, Value);

impl fmt::Display for Volumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(noun, answer) = self;
        if objects(answer).is_empty() {
            return writeln!(f, "there is no {noun}");
        }
        let source = if noun == "volume" { "CLONE OF" } else { "VOLUME" };
        let mut table = Columns::titled(["NAME", "SIZE", "ALLOCATED", source, "NAMESPACES"]);
        for volume in objects(answer) {
            let (bytes, allocated) = (size(&volume["size"]), size(&volume["allocated"]));
            table.row([
                text(&volume["name"]),
                bytes,
                allocated,
                text(&volume["source"]["name"]),
                served(volume),
            ]);
        }
        table.fmt(f)
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Volume(Value);

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let volume = &self.0;
        writeln!(f, "{}", text(&volume["name"]))?;
        let mut list = Columns::list();
        list.fact("kind", text(&volume["kind"]));
        list.fact("size", size(&volume["size"]));
        list.fact("allocated", size(&volume["allocated"]));
        list.fact("block size", &volume["block_bytes"]);
        list.fact("uuid", text(&volume["uuid"]));
        if volume["source"].is_object() {
            list.fact("content of", text(&volume["source"]["name"]));
        }
        list.fact("storage", text(&volume["storage"]));
        list.fact("namespaces", served(volume));
        list.fmt(f)
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Deleted(Value);

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deleted\n")
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Pools(Value);

impl fmt::Display for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if objects(&self.0).is_empty() {
            return f.write_str("there is no pool\n");
        }
        let mut table = Columns::titled([
            "NAME",
            "DIR",
            "SIZE",
            "LEFT",
            "ALLOCATED",
            "COMMITTED",
            "VOLUMES",
            "SNAPSHOTS",
            "CLONES",
            "STATE",
        ]);
        for pool in objects(&self.0) {
            let state = match (&pool["error"], &pool["is_low"]) {
                (Value::String(error), _) => error.clone(),
                (_, Value::Bool(true)) => "low".into(),
                _ => "ok".into(),
            };
            let can_clone = if pool["can_clone"] == true { "yes" } else { "no reflink" };
            table.row([
                text(&pool["name"]),
                text(&pool["dir"]),
                size(&pool["total"]),
                size(&pool["left"]),
                size(&pool["allocated"]),
                size(&pool["committed"]),
                pool["volumes"].to_string(),
                pool["snapshots"].to_string(),
                can_clone.into(),
                state,
            ]);
        }
        table.fmt(f)
    }
}
