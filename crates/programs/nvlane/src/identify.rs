//! `nvlane identify`: the Identify data of a controller and its namespaces.

use std::fmt;
use std::process::ExitCode;

use clap::Args;
use command_line::connection::Connection;
use command_line::exit::{Ended, Failure};
use command_line::output::Output;
use host::{Association, ControllerInfo};
use proto::host_namespaces::{Geometry, NamespaceInfo};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use wire::field::Field;
use wire::id::{Csi, Nsid};
use wire::identify::controller::IdentifyController;
use wire::identify::namespace::IdentifyNamespace;
use wire::identify::namespace::Nsfeat;
use wire::text::Text;
use wire::zerocopy::IntoBytes;

use crate::columns::Columns;
use crate::disk_path::disk_path;
use crate::human_size::HumanSize;

/// I/O queues requested, to learn how many the controller grants; none is connected.
const QUEUES_ASKED: u16 = 1024;

#[derive(Debug, Args)]
pub(crate) struct IdentifyArguments {
    #[command(flatten)]
    connection: Connection,
    /// Show this namespace only. [default: all]
    #[arg(short, long, alias = "namespace-id", value_name = "NSID", value_parser = clap::value_parser!(u32).range(1..))]
    namespace: Option<u32>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn identify(arguments: &IdentifyArguments) -> Ended {
    let (address, options) = arguments.connection.subsystem()?;
    let options = options.with_lanes(QUEUES_ASKED);
    let association = Association::connect(&address, options)?;
    let wanted = arguments.namespace.map(Nsid::new).or(address.nsid);
    let report = Report::new(&association, wanted)?;
    association.close();
    arguments.output.print(&report)?;
    Ok(ExitCode::SUCCESS)
}

/// A controller and its namespaces.
#[derive(Debug, Serialize)]
struct Report {
    controller: Controller,
    namespaces: Vec<Namespace>,
}

#[derive(Debug)]
struct Controller(std::sync::Arc<ControllerInfo>);

#[derive(Debug)]
struct Namespace {
    info: NamespaceInfo,
    /// Identify data of a block namespace.
    identify: Option<Box<IdentifyNamespace>>,
}

impl Namespace {
    /// Link to its disk on Linux hosts; key-value namespaces have none.
    fn disk_path(&self) -> Option<String> {
        self.identify.as_ref().and_then(|_| disk_path(self.info.uuid, self.info.nguid, self.info.eui64))
    }
}

impl Report {
    fn new(association: &Association, wanted: Option<Nsid>) -> Result<Self, Failure> {
        let known = association.namespaces();
        let chosen: Vec<_> =
            known.iter().filter(|info| wanted.is_none_or(|nsid| nsid == info.nsid)).collect();
        if let (Some(nsid), []) = (wanted, &chosen[..]) {
            association.namespace(nsid)?;
        }
        let namespace = |info: &NamespaceInfo| {
            let is_of_blocks = info.csi == Csi::NVM;
            let identify = is_of_blocks.then(|| association.identify_namespace(info.nsid)).transpose()?;
            Ok(Namespace { info: *info, identify })
        };
        let namespaces = chosen.into_iter().map(namespace).collect::<Result<_, Failure>>()?;
        Ok(Self { controller: Controller(association.controller()), namespaces })
    }
}

/// Fields by their own names and as the wire has them: numbers, text, and identifiers in hexadecimal.
fn serialize_fields<S: SerializeMap>(
    map: &mut S,
    fields: &[Field],
    structure: &[u8],
) -> Result<(), S::Error> {
    for field in fields {
        let Some(bytes) = field.bytes(structure) else { continue };
        match (field.name, field.number(structure)) {
            ("sn" | "mn" | "fr" | "subnqn", _) => {
                map.serialize_entry(field.name, &Text::of(bytes).to_string_lossy())?;
            }
            ("fguid" | "nguid" | "eui64", _) => map.serialize_entry(field.name, &hex(bytes))?,
            ("crdt", _) => {
                for (index, delay) in bytes.chunks_exact(2).enumerate() {
                    let delay = u16::from_le_bytes([delay[0], delay[1]]);
                    map.serialize_entry(&format!("crdt{}", index + 1), &delay)?;
                }
            }
            (name, Some(number)) => match u64::try_from(number) {
                Ok(number) => map.serialize_entry(name, &number)?,
                // Wider than the numbers that JSON readers handle.
                Err(_) => map.serialize_entry(name, &number.to_string())?,
            },
            (_, None) => {}
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Serialize for Controller {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let info = &*self.0;
        let mut map = serializer.serialize_map(None)?;
        serialize_fields(&mut map, IdentifyController::FIELDS, info.identify.as_bytes())?;
        // In addition to nvme-cli's fields: derived values in bytes and counts.
        map.serialize_entry("address", &info.peer.to_string())?;
        map.serialize_entry("version", &info.vs.to_string())?;
        let limit = info.identify.transfer_limit_bytes(info.cap.page_bytes_min());
        map.serialize_entry("transfer_bytes_max", &limit)?;
        map.serialize_entry("in_capsule_bytes", &info.limits.in_capsule_bytes)?;
        map.serialize_entry("queue_entries_max", &info.limits.queue_entries_max)?;
        map.serialize_entry("io_queues", &info.queue_pairs)?;
        map.end()
    }
}

impl Serialize for Namespace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("nsid", &self.info.nsid.get())?;
        map.serialize_entry("csi", &self.info.csi.raw())?;
        map.serialize_entry("uuid", &self.info.uuid.map(|uuid| uuid.to_string()))?;
        if let Some(path) = self.disk_path() {
            map.serialize_entry("by_id", &path)?;
        }
        if let Some(identify) = &self.identify {
            serialize_fields(&mut map, IdentifyNamespace::FIELDS, identify.as_bytes())?;
            map.serialize_entry("lbafs", &formats(identify))?;
        }
        match self.info.geometry {
            Ok(Geometry { lba_bytes, block_count }) => {
                map.serialize_entry("lba_bytes", &lba_bytes)?;
                map.serialize_entry("size_bytes", &block_count.saturating_mul(lba_bytes.into()))?;
            }
            Err(unusable) => map.serialize_entry("unusable", &unusable.to_string())?,
        }
        map.end()
    }
}

/// A block format as nvme-cli has it: the size as a power of two.
#[derive(Debug, Serialize)]
struct Format {
    ms: u16,
    ds: u32,
    rp: u8,
}

fn formats(identify: &IdentifyNamespace) -> Vec<Format> {
    let count = usize::from(identify.format_count()).min(identify.lbaf.len());
    let format = |format: &wire::identify::namespace::LbaFormat| Format {
        ms: format.ms.get(),
        ds: format.block_bytes().map_or(0, u32::trailing_zeros),
        rp: format.rp,
    };
    identify.lbaf[..count].iter().map(format).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.controller.fmt(f)?;
        for namespace in &self.namespaces {
            write!(f, "\n{namespace}")?;
        }
        Ok(())
    }
}

/// "Compare, Write zeroes" for a set of flags.
fn names(flags: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<_> = flags.map(|name| name.to_ascii_lowercase().replace('_', " ")).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

fn limit(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "no limit".into(), |bytes| HumanSize(bytes.into()).to_string())
}

fn blocks(count: u32) -> String {
    format!("{count} block{}", if count == 1 { "" } else { "s" })
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ControllerInfo { peer, cap, vs, identify, limits, queue_pairs, .. } = &*self.0;
        writeln!(f, "Controller {} at {peer}", identify.cntlid())?;
        let mut facts = Columns::list();
        let nqn = identify.subsystem().map_or_else(|error| format!("({error})"), |nqn| nqn.to_string());
        facts.fact("Subsystem", nqn);
        facts.fact("Model", identify.model());
        facts.fact("Serial number", identify.serial());
        facts.fact("Firmware", identify.firmware());
        facts.fact("Kind", identify.cntrltype);
        facts.fact("NVMe version", vs);
        facts.fact("Largest transfer", limit(identify.transfer_limit_bytes(cap.page_bytes_min())));
        facts.fact("In-capsule data", limit(Some(limits.in_capsule_bytes.into())));
        facts.fact("I/O queues", queue_pairs);
        facts.fact("Entries of a queue", limits.queue_entries_max);
        facts.fact("Commands on a queue", identify.maxcmd.get());
        facts.fact("Highest namespace id", identify.nn.get());
        facts.fact("NVM commands", names(identify.oncs().iter_names().map(|(name, _)| name)));
        facts.fact("Fused commands", names(identify.fuses().iter_names().map(|(name, _)| name)));
        facts.fact("Admin commands", names(identify.oacs().iter_names().map(|(name, _)| name)));
        let cache = if identify.vwc.present() { "volatile: Flush or FUA makes durable" } else { "none" };
        facts.fact("Write cache", cache);
        facts.fact("Atomic write", blocks(identify.atomic_write_blocks()));
        facts.fact("Atomic write, power failure", blocks(identify.atomic_write_blocks_power_fail()));
        facts.fact("Atomic compare and write", blocks(identify.atomic_compare_write_blocks()));
        facts.fact("Keep-alive granularity", format!("{} ms", identify.keep_alive_granularity_ms()));
        facts.fact("Event requests", identify.aer_limit());
        facts.fact("Aborts at once", identify.abort_limit());
        facts.fact("Error log entries", identify.error_log_entries());
        facts.fact("Log pages", names(identify.lpa.iter_names().map(|(name, _)| name)));
        facts.fact("Several controllers", names(identify.cmic.iter_names().map(|(name, _)| name)));
        facts.fmt(f)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.info;
        writeln!(f, "Namespace {}", info.nsid)?;
        let mut facts = Columns::list();
        match info.geometry {
            Ok(Geometry { lba_bytes, block_count }) => {
                let bytes = |count: u64| u128::from(count) * u128::from(lba_bytes);
                let size = HumanSize(bytes(block_count));
                facts.fact("Size", format!("{size} ({block_count} blocks of {lba_bytes} bytes)"));
                facts.fact("In use", HumanSize(bytes(info.used_blocks)));
                facts.fact("Capacity", HumanSize(bytes(info.capacity_blocks)));
            }
            Err(unusable) => facts.fact("Not usable", unusable),
        }
        facts.fact("Command set", info.csi);
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".into());
        facts.fact("UUID", or_none(info.uuid.map(|uuid| uuid.to_string())));
        facts.fact("NGUID", or_none(info.nguid.map(|nguid| hex(&nguid))));
        facts.fact("EUI-64", or_none(info.eui64.map(|eui64| hex(&eui64))));
        if let Some(path) = self.disk_path() {
            facts.fact("Disk on Linux hosts", path);
        }
        if let Some(identify) = &self.identify {
            block_facts(&mut facts, info, identify);
        }
        facts.fmt(f)
    }
}

/// Fields of block namespaces only.
fn block_facts(facts: &mut Columns, info: &NamespaceInfo, identify: &IdentifyNamespace) {
    facts.fact("Features", names(identify.nsfeat.iter_names().map(|(name, _)| name)));
    facts.fact("Shared", if info.is_shared { "yes" } else { "no" });
    facts.fact("Write protected", if info.is_write_protected { "yes" } else { "no" });
    facts.fact("Deallocated blocks read as", info.deallocated_value);
    let deallocates = if info.write_zeroes_deallocates { "yes" } else { "no" };
    facts.fact("Write Zeroes deallocates", deallocates);
    if identify.nsfeat.contains(Nsfeat::ATOMIC_SIZES) {
        facts.fact("Atomic write", blocks(identify.atomic_write_blocks()));
        facts.fact("Atomic write, power failure", blocks(identify.atomic_write_blocks_power_fail()));
        facts.fact("Atomic compare and write", blocks(identify.atomic_compare_write_blocks()));
    }
    if identify.nsfeat.contains(Nsfeat::OPTIMAL_SIZES) {
        facts.fact("Optimal write", blocks(identify.optimal_write_blocks()));
        facts.fact("Write granularity", blocks(identify.write_granularity_blocks()));
        facts.fact("Write alignment", blocks(identify.write_alignment_blocks()));
        facts.fact("Deallocate granularity", blocks(identify.deallocate_granularity_blocks()));
        facts.fact("Deallocate alignment", blocks(identify.deallocate_alignment_blocks()));
    }
    if info.optimal_boundary_blocks != 0 {
        facts.fact("Boundary better not crossed", blocks(info.optimal_boundary_blocks.into()));
    }
    if info.copy.blocks != 0 {
        let (all, range, ranges) = (info.copy.blocks, info.copy.range_blocks, info.copy.ranges);
        facts.fact("Copy", format!("{}, {ranges} ranges of up to {range}", blocks(all)));
    }
    if info.ana_group != 0 {
        facts.fact("ANA group", info.ana_group);
    }
}
