//! `nvlane discover`: the discovery log, referrals included.

use std::fmt;
use std::process::ExitCode;

use clap::Args;
use command_line::connection::Connection;
use command_line::exit::Ended;
use command_line::host_advice::Advised;
use command_line::output::Output;
use command_line::survey::{service_address, survey_service};
use host::Address;
use host::discovery::{Discovered, Survey};
use serde::Serialize;
use wire::discovery::{
    AddressFamily, DiscoveryEntry, Eflags, SecureChannel, SubsystemType, TcpSecurity, TransportType, Treq,
};

use crate::columns::Columns;

#[derive(Debug, Args)]
#[command(after_help = "\
The port is 8009 unless ADDR has one, or 4420 if nothing listens on 8009. An NQN in ADDR is ignored: the discovery service \
at that address is read. Discovery services that it refers to are read as well, each once.")]
pub(crate) struct DiscoverArguments {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn discover(arguments: &DiscoverArguments) -> Ended {
    let address = service_address(arguments.connection.address()?);
    let survey = survey_service(&address, &arguments.connection.options(&address)?)?;
    arguments.output.print(&Report::new(&survey))?;
    Ok(ExitCode::SUCCESS)
}

/// The logs: that of the first service, then those of its referrals.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    first: Log,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    referrals: Vec<Log>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreachable: Vec<Unreachable>,
    /// Referrals were omitted: too deep, or too many.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_cut: bool,
}

/// The log of one service.
#[derive(Debug, Serialize)]
struct Log {
    service: String,
    genctr: u64,
    records: Vec<Record>,
}

/// A record, with the field names of nvme-cli.
#[derive(Debug, Serialize)]
struct Record {
    trtype: String,
    adrfam: String,
    subtype: String,
    treq: String,
    portid: u16,
    cntlid: u16,
    asqsz: u16,
    trsvcid: String,
    subnqn: String,
    traddr: String,
    eflags: String,
    sectype: String,
}

#[derive(Debug, Serialize)]
struct Unreachable {
    service: String,
    error: String,
}

impl Report {
    fn new(survey: &Survey) -> Self {
        let mut logs = survey.services.iter().map(Log::new);
        Self {
            first: logs.next().expect("the first service was asked"),
            referrals: logs.collect(),
            unreachable: survey
                .failures
                .iter()
                .map(|(address, error)| Unreachable {
                    service: place(address),
                    error: Advised(error).to_string(),
                })
                .collect(),
            is_cut: survey.is_cut,
        }
    }
}

impl Log {
    fn new((address, found): &(Address, Discovered)) -> Self {
        let records = found.entries.iter().map(Record::new).collect();
        Self { service: place(address), genctr: found.generation, records }
    }
}

/// `HOST:PORT` of a service.
fn place(address: &Address) -> String {
    format!("{}:{}", address.host, address.port())
}

impl Record {
    fn new(entry: &DiscoveryEntry) -> Self {
        Self {
            trtype: transport(entry.trtype),
            adrfam: family(entry.adrfam),
            subtype: subsystem_type(entry.subtype),
            treq: requirements(entry.treq),
            portid: entry.portid.get(),
            cntlid: entry.cntlid().get(),
            asqsz: entry.asqsz.get(),
            trsvcid: entry.service_id().to_string_lossy().into_owned(),
            subnqn: entry.subsystem_text().to_string_lossy().into_owned(),
            traddr: entry.address().to_string_lossy().into_owned(),
            eflags: attributes(entry.eflags()),
            sectype: security(entry.tcp_security()),
        }
    }
}

fn transport(transport: TransportType) -> String {
    match transport {
        TransportType::TCP => "tcp".into(),
        TransportType::RDMA => "rdma".into(),
        TransportType::FC => "fc".into(),
        TransportType::LOOP => "loop".into(),
        other => other.to_string(),
    }
}

fn family(family: AddressFamily) -> String {
    match family {
        AddressFamily::IPV4 => "ipv4".into(),
        AddressFamily::IPV6 => "ipv6".into(),
        other => other.to_string(),
    }
}

fn subsystem_type(subtype: SubsystemType) -> String {
    match subtype {
        SubsystemType::REFERRAL => "referral".into(),
        SubsystemType::NVM => "nvme subsystem".into(),
        SubsystemType::DISCOVERY => "current discovery subsystem".into(),
        other => other.to_string(),
    }
}

fn requirements(treq: Treq) -> String {
    let channel = match treq.secure_channel() {
        SecureChannel::UNSPECIFIED => "not specified",
        SecureChannel::REQUIRED => "required",
        SecureChannel::NOT_REQUIRED => "not required",
        _ => "reserved",
    };
    let flow = if treq.sq_flow_disable() { ", sq flow control disable supported" } else { "" };
    format!("{channel}{flow}")
}

fn attributes(eflags: Eflags) -> String {
    let known = [
        (Eflags::DUPLICATE, "duplicate discovery information"),
        (Eflags::PERSISTENT, "explicit discovery connections"),
        (Eflags::NO_CDC, "no cdc connectivity"),
    ];
    let names: Vec<_> =
        known.iter().filter(|(flag, _)| eflags.contains(*flag)).map(|(_, name)| *name).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

fn security(security: TcpSecurity) -> String {
    match security {
        TcpSecurity::NONE => "none".into(),
        TcpSecurity::TLS_1_2 => "tls".into(),
        TcpSecurity::TLS_1_3 => "tls13".into(),
        other => other.to_string(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        for log in &self.referrals {
            write!(f, "\n{log}")?;
        }
        for Unreachable { service, error } in &self.unreachable {
            write!(f, "\nReferral to {service}: {error}\n")?;
        }
        if self.is_cut { f.write_str("\nThere are more referrals than were followed.\n") } else { Ok(()) }
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, s) = (self.records.len(), if self.records.len() == 1 { "" } else { "s" });
        writeln!(f, "Discovery log of {}, generation {}: {count} record{s}", self.service, self.genctr)?;
        let mut table = Columns::titled([
            "Transport",
            "Family",
            "Address",
            "Port",
            "Type",
            "Port id",
            "Controller",
            "Security",
            "Requirements",
            "NQN",
        ]);
        for record in &self.records {
            let controller = match record.cntlid {
                0xffff => "any".to_owned(),
                cntlid => cntlid.to_string(),
            };
            table.row([
                record.trtype.clone(),
                record.adrfam.clone(),
                record.traddr.clone(),
                record.trsvcid.clone(),
                record.subtype.clone(),
                record.portid.to_string(),
                controller,
                record.sectype.clone(),
                record.treq.clone(),
                record.subnqn.clone(),
            ]);
        }
        if count > 0 { table.fmt(f) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_names_and_words_that_scripts_know() {
        let nqn = "nqn.2016-06.io.nvlane:disk".parse().expect("well formed");
        let mut entry = DiscoveryEntry::tcp([192, 0, 2, 1].into(), 4420, &nqn);
        entry.treq = Treq::default().with_sq_flow_disable(true);
        let record = serde_json::to_string(&Record::new(&entry)).expect("JSON");
        assert_eq!(
            record,
            "{\"trtype\":\"tcp\",\"adrfam\":\"ipv4\",\"subtype\":\"nvme subsystem\",\
             \"treq\":\"not specified, sq flow control disable supported\",\"portid\":0,\"cntlid\":65535,\"asqsz\":32,\
             \"trsvcid\":\"4420\",\"subnqn\":\"nqn.2016-06.io.nvlane:disk\",\"traddr\":\"192.0.2.1\",\
             \"eflags\":\"none\",\"sectype\":\"none\"}"
        );
        entry.subtype = SubsystemType::from_raw(9);
        entry.set_eflags(Eflags::PERSISTENT | Eflags::DUPLICATE);
        let record = Record::new(&entry);
        assert_eq!(record.subtype, "unknown 0x09");
        assert_eq!(record.eflags, "duplicate discovery information, explicit discovery connections");
    }
}
