//! `nvlane list`: the namespaces of one subsystem, or of every subsystem in a discovery log.

use std::collections::BTreeSet;
use std::fmt;
use std::process::ExitCode;

use clap::Args;
use command_line::connection::Connection;
use command_line::exit::{self, Ended, Failure};
use command_line::output::Output;
use command_line::survey::{listed, reachable, service_address, survey_service};
use host::{Address, Association, Options};
use proto::host_namespaces::{Geometry, NamespaceInfo};
use serde::Serialize;
use wire::id::Csi;

use crate::columns::Columns;
use crate::disk_path::disk_path;
use crate::human_size::HumanSize;

#[derive(Debug, Args)]
#[command(after_help = "\
With an NQN in ADDR, lists the namespaces of that subsystem; otherwise those of every subsystem in the discovery log there. \
The other commands take the Address column (DevicePath in JSON) as ADDR.")]
pub(crate) struct ListArguments {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn list(arguments: &ListArguments) -> Ended {
    let address = arguments.connection.address()?;
    let mut listing = Listing::default();
    let mut code = ExitCode::SUCCESS;
    if !address.is_discovery() {
        listing.add(&address, arguments.connection.options(&address)?)?;
    } else {
        let service = service_address(address);
        for addresses in subsystems(&service, &arguments.connection.options(&service)?)? {
            // An unreachable subsystem does not hide the others.
            let chosen = reachable(&addresses, |address| arguments.connection.options(address));
            if let Err(failure) = chosen.and_then(|(address, options)| listing.add(&address, options)) {
                code = exit::report(&failure);
            }
        }
    }
    arguments.output.print(&listing)?;
    Ok(code)
}

/// The addresses of each subsystem that the discovery logs list over TCP.
fn subsystems(service: &Address, options: &Options) -> Result<Vec<Vec<Address>>, Failure> {
    let survey = survey_service(service, options)?;
    let mut seen = BTreeSet::new();
    let found = survey.services.iter().flat_map(|(of, found)| listed(of, found, service));
    let mut unseen = Vec::new();
    for (nqn, addresses) in found {
        if seen.insert(nqn.to_string()) {
            unseen.push(addresses);
        }
    }
    Ok(unseen)
}

/// The namespaces found so far.
#[derive(Debug, Default, Serialize)]
struct Listing {
    #[serde(rename = "Devices")]
    devices: Vec<Device>,
}

/// A namespace, with the field names of nvme-cli.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Device {
    name_space: u32,
    device_path: String,
    #[serde(rename = "SubsystemNQN")]
    subsystem_nqn: String,
    firmware: String,
    model_number: String,
    serial_number: String,
    used_bytes: u64,
    #[serde(rename = "MaximumLBA")]
    maximum_lba: u64,
    physical_size: u64,
    sector_size: u32,
    #[serde(rename = "UUID")]
    uuid: Option<String>,
    /// Link to its disk on Linux hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_id: Option<String>,
    /// Why it cannot be read or written, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable: Option<String>,
}

impl Listing {
    /// Adds the namespaces of the subsystem at the address, or the one namespace that the address names.
    fn add(&mut self, address: &Address, options: Options) -> Result<(), Failure> {
        let association = Association::connect(address, options)?;
        let namespaces = association.namespaces();
        if let Some(nsid) = address.nsid
            && !namespaces.iter().any(|info| info.nsid == nsid)
        {
            association.namespace(nsid)?;
        }
        let wanted = namespaces.iter().filter(|info| address.nsid.is_none_or(|nsid| nsid == info.nsid));
        self.devices.extend(wanted.map(|info| Device::new(&association, info)));
        association.close();
        Ok(())
    }
}

impl Device {
    fn new(association: &Association, info: &NamespaceInfo) -> Self {
        let controller = association.controller();
        let (Geometry { lba_bytes, block_count }, unusable) = match info.geometry {
            Ok(geometry) => (geometry, None),
            Err(unusable) => (Geometry { lba_bytes: 0, block_count: 0 }, Some(unusable.to_string())),
        };
        let is_of_blocks = info.csi == Csi::NVM;
        let (bytes, used_bytes) = match info.keys {
            Some(keys) => (keys.bytes, keys.used_bytes),
            None => {
                let in_bytes = |blocks: u64| blocks.saturating_mul(lba_bytes.into());
                (in_bytes(block_count), in_bytes(info.used_blocks))
            }
        };
        let address = association.address();
        let address = address.clone().with_port(address.port()).with_nsid(info.nsid);
        Self {
            name_space: info.nsid.get(),
            device_path: address.to_string(),
            subsystem_nqn: association.subsystem().to_string(),
            firmware: controller.identify.firmware().to_string_lossy().into_owned(),
            model_number: controller.identify.model().to_string_lossy().into_owned(),
            serial_number: controller.identify.serial().to_string_lossy().into_owned(),
            used_bytes,
            maximum_lba: block_count,
            physical_size: bytes,
            sector_size: lba_bytes,
            uuid: info.uuid.map(|uuid| uuid.to_string()),
            by_id: is_of_blocks.then(|| disk_path(info.uuid, info.nguid, info.eui64)).flatten(),
            unusable,
        }
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Columns::titled([
            "NSID",
            "Size",
            "In use",
            "Block",
            "Model",
            "Serial",
            "Firmware",
            "Disk on Linux hosts",
            "Address",
        ]);
        for device in &self.devices {
            let block = match &device.unusable {
                None => format!("{} B", device.sector_size),
                Some(why) => format!("({why})"),
            };
            table.row([
                device.name_space.to_string(),
                HumanSize(device.physical_size.into()).to_string(),
                HumanSize(device.used_bytes.into()).to_string(),
                block,
                device.model_number.clone(),
                device.serial_number.clone(),
                device.firmware.clone(),
                device.by_id.clone().unwrap_or_else(|| "none".into()),
                device.device_path.clone(),
            ]);
        }
        table.fmt(f)
    }
}
