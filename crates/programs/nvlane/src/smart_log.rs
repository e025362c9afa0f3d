//! `nvlane smart-log`: health and traffic. An nvlane target counts the traffic of all hosts of the subsystem, or of one
//! namespace.

use std::fmt;
use std::process::ExitCode;

use clap::Args;
use command_line::connection::Connection;
use command_line::exit::{Ended, Failure};
use command_line::output::Output;
use host::{Association, Error};
use serde::{Serialize, Serializer};
use wire::id::Nsid;
use wire::log::health::HealthLog;

use crate::columns::Columns;
use crate::human_size::HumanSize;

/// Bytes of a data unit.
const DATA_UNIT_BYTES: u128 = 512_000;

/// Kelvin at 0 degrees Celsius, rounded as nvme-cli does.
const FREEZING_KELVIN: i32 = 273;

#[derive(Debug, Args)]
pub(crate) struct SmartLogArguments {
    #[command(flatten)]
    connection: Connection,
    /// Traffic of this namespace only, if the controller counts per namespace. [default: of the whole subsystem]
    #[arg(short, long, alias = "namespace-id", value_name = "NSID", value_parser = clap::value_parser!(u32).range(1..))]
    namespace: Option<u32>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn smart_log(arguments: &SmartLogArguments) -> Ended {
    let association = arguments.connection.associate()?;
    let named = arguments.namespace.map(Nsid::new).or(association.address().nsid);
    let log = association
        .smart_log(named.unwrap_or(Nsid::ALL))
        .map_err(|error| about(error, named, &association))?;
    association.close();
    arguments.output.print(&Report::new(&log))?;
    Ok(ExitCode::SUCCESS)
}

/// Explains a refused log page: the status does not say whether the namespace exists.
fn about(error: Error, named: Option<Nsid>, association: &Association) -> Failure {
    if matches!(error, Error::Failed { .. }) && association.address().is_discovery() {
        return Failure::from(error)
            .later("; it is a discovery service: `nvlane discover` lists the subsystems");
    }
    let (Some(nsid), Error::Failed { .. }) = (named, &error) else { return error.into() };
    match association.namespace(nsid) {
        Err(missing @ Error::NoNamespace { .. }) => missing.into(),
        _ => Failure::from(error).later(format_args!(
            "; namespace {nsid} may have no log of its own: leave it out to see the controller's"
        )),
    }
}

/// The log with the field names of nvme-cli.
#[derive(Debug, Serialize)]
struct Report {
    critical_warning: u8,
    /// Kelvin.
    temperature: u16,
    avail_spare: u8,
    spare_thresh: u8,
    percent_used: u8,
    data_units_read: Count,
    data_units_written: Count,
    host_read_commands: Count,
    host_write_commands: Count,
    controller_busy_time: Count,
    power_cycles: Count,
    power_on_hours: Count,
    unsafe_shutdowns: Count,
    media_errors: Count,
    num_err_log_entries: Count,
    warning_temp_time: u32,
    critical_comp_time: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    temperature_sensors: Vec<u16>,
}

/// A number of up to 128 bits: in JSON a number while programs can read it as one, above that text.
#[derive(Clone, Copy, Debug)]
struct Count(u128);

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match u64::try_from(self.0) {
            Ok(count) => serializer.serialize_u64(count),
            Err(_) => serializer.collect_str(&self.0),
        }
    }
}

impl Report {
    fn new(log: &HealthLog) -> Self {
        Self {
            critical_warning: log.critical_warning,
            temperature: log.temperature.get(),
            avail_spare: log.spare,
            spare_thresh: log.spare_threshold,
            percent_used: log.used,
            data_units_read: Count(log.bytes_read() / DATA_UNIT_BYTES),
            data_units_written: Count(log.bytes_written() / DATA_UNIT_BYTES),
            host_read_commands: Count(log.host_reads.get()),
            host_write_commands: Count(log.host_writes.get()),
            controller_busy_time: Count(log.busy_minutes.get()),
            power_cycles: Count(log.power_cycles.get()),
            power_on_hours: Count(log.power_on_hours.get()),
            unsafe_shutdowns: Count(log.unsafe_shutdowns.get()),
            media_errors: Count(log.media_errors.get()),
            num_err_log_entries: Count(log.error_entries.get()),
            warning_temp_time: log.warning_temperature_minutes.get(),
            critical_comp_time: log.critical_temperature_minutes.get(),
            temperature_sensors: log
                .sensors
                .iter()
                .map(|kelvin| kelvin.get())
                .filter(|kelvin| *kelvin != 0)
                .collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let celsius = |kelvin: u16| format!("{} °C ({kelvin} K)", i32::from(kelvin) - FREEZING_KELVIN);
        let traffic =
            |units: Count| format!("{} ({})", units.0, HumanSize(units.0.saturating_mul(DATA_UNIT_BYTES)));
        let mut facts = Columns::list();
        facts.fact("Critical warnings", format!("{:#04x}", self.critical_warning));
        match self.temperature {
            0 => facts.fact("Temperature", "not reported"),
            kelvin => facts.fact("Temperature", celsius(kelvin)),
        }
        facts.fact("Spare left", format!("{} %", self.avail_spare));
        facts.fact("Spare, warning below", format!("{} %", self.spare_thresh));
        facts.fact("Life used", format!("{} %", self.percent_used));
        facts.fact("Data units read", traffic(self.data_units_read));
        facts.fact("Data units written", traffic(self.data_units_written));
        facts.fact("Read commands", self.host_read_commands.0);
        facts.fact("Write commands", self.host_write_commands.0);
        facts.fact("Busy, minutes", self.controller_busy_time.0);
        facts.fact("Power cycles", self.power_cycles.0);
        facts.fact("Power-on hours", self.power_on_hours.0);
        facts.fact("Unsafe shutdowns", self.unsafe_shutdowns.0);
        facts.fact("Media errors", self.media_errors.0);
        facts.fact("Error log entries", self.num_err_log_entries.0);
        facts.fact("Warm, minutes", self.warning_temp_time);
        facts.fact("Hot, minutes", self.critical_comp_time);
        for (index, kelvin) in self.temperature_sensors.iter().enumerate() {
            facts.fact(&format!("Sensor {}", index + 1), celsius(*kelvin));
        }
        facts.fmt(f)
    }
}
