//! Lets nodes connect to volumes, and takes that back.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use tonic::Status;
use wire::nqn::Nqn;

use super::Controller;
use crate::authentication::References;
use crate::capability::Use;
use crate::context::{ADDRESSES, NQN, SECRETS, UUID};
use crate::csi_v1::volume_capability::access_mode::Mode;
use crate::csi_v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse,
};
use crate::name::Id;
use crate::refusal::required;
use crate::target::{Changed, Subsystem, texts};

/// Times that a change is tried whose configuration has changed meanwhile.
const TRY_COUNT: usize = 8;

impl Controller {
    pub(crate) fn publish(
        &self,
        request: ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        required("volume_id", &request.volume_id, "fast/pvc-1")?;
        let node = required("node_id", &request.node_id, "the NQN in /etc/nvme/hostnqn")?;
        let wanted = Use::of("volume_capability", request.volume_capability.as_ref())?;
        let id = self.volume_id("volume_id", &request.volume_id)?;
        let references = References::read("volume_context", &request.volume_context)?;
        let _working = self.pending.begin(id.to_string())?;
        let volume = self.volume_of(&id)?;
        if !node.starts_with("nqn.") || node.parse::<Nqn>().is_err() {
            return Err(Status::not_found(format!(
                "node_id: there is no node {node}: a node's id is its host NQN"
            )));
        }
        references.check_node(node)?;
        let addresses = self.addresses()?;
        let only_reads = request.readonly || wanted.only_reads();
        let nqn = id.nqn(&self.nqn_prefix);
        let told = || told(&nqn, &addresses, &volume.uuid, &references);
        for _ in 0..TRY_COUNT {
            let subsystems = self.target.subsystems()?;
            let (method, params) = match subsystems.find(&nqn) {
                None => {
                    let writers = if only_reads { json!([]) } else { json!([node]) };
                    let namespace = json!({ "nsid": 1, "storage": volume.storage, "write_hosts": writers });
                    let mut values = json!({ "hosts": [node], "namespace": [namespace] });
                    if !references.is_empty() {
                        values["host"] = json!([references.of_node(node)]);
                    }
                    ("add", json!({ "noun": "subsystem", "name": nqn, "values": values }))
                }
                Some(subsystem) => {
                    match self.one_more(subsystem, subsystems.revision, node, &wanted, only_reads)? {
                        More::There => return Ok(told()),
                        More::Outdated => continue,
                        More::Values(mut values) => {
                            if !references.is_empty() {
                                let hosts = texts(&values["hosts"]);
                                let entries = hosts.iter().map(|host| references.of_node(host));
                                values["host"] = entries.collect();
                            }
                            ("set", json!({ "noun": "subsystem", "name": nqn, "values": values }))
                        }
                    }
                }
            };
            if let Changed::Done = self.target.change(method, params, subsystems.revision)? {
                return Ok(told());
            }
        }
        Err(Status::aborted("the target's configuration keeps changing: repeat the call"))
    }

    pub(crate) fn unpublish(
        &self,
        request: ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse, Status> {
        // What cannot be there is not published.
        let Some(id) = self.id("volume_id", &request.volume_id)? else {
            return Ok(ControllerUnpublishVolumeResponse {});
        };
        let _working = self.pending.begin(id.to_string())?;
        let nqn = id.nqn(&self.nqn_prefix);
        for _ in 0..TRY_COUNT {
            let subsystems = self.target.subsystems()?;
            let Some(subsystem) = subsystems.find(&nqn) else {
                return Ok(ControllerUnpublishVolumeResponse {});
            };
            let is_left = |host: &&String| !request.node_id.is_empty() && **host != request.node_id;
            let left: Vec<String> = subsystem.hosts.iter().filter(is_left).cloned().collect();
            if left.len() == subsystem.hosts.len() && !left.is_empty() {
                return Ok(ControllerUnpublishVolumeResponse {});
            }
            // A node that is gone cannot disconnect: its association ends here, so that it writes nothing afterwards.
            let (method, params) = match left.is_empty() {
                true => ("remove", json!({ "noun": "subsystem", "name": nqn, "force": true })),
                false => {
                    let Some((mut namespace, revision)) = self.target.namespace(&nqn)? else { continue };
                    if revision != subsystems.revision {
                        continue;
                    }
                    let writers = texts(&namespace["write_hosts"]);
                    let writers: Vec<&String> = writers.iter().filter(is_left).collect();
                    namespace["write_hosts"] = json!(writers);
                    let mut values = json!({ "hosts": left, "namespace": [namespace] });
                    let (mut entries, revision) = self.target.host_entries(&nqn)?;
                    if revision != subsystems.revision {
                        continue;
                    }
                    if !entries.is_empty() {
                        entries.retain(|entry| left.iter().any(|host| entry["nqn"] == **host));
                        values["host"] = entries.into();
                    }
                    ("set", json!({ "noun": "subsystem", "name": nqn, "values": values, "force": true }))
                }
            };
            if let Changed::Done = self.target.change(method, params, subsystems.revision)? {
                return Ok(ControllerUnpublishVolumeResponse {});
            }
        }
        Err(Status::aborted("the target's configuration keeps changing: repeat the call"))
    }

    /// Nodes that a volume is published to.
    pub(super) fn nodes_of(&self, id: &Id) -> Result<Vec<String>, Status> {
        let nqn = id.nqn(&self.nqn_prefix);
        let subsystems = self.target.subsystems()?;
        Ok(subsystems.find(&nqn).map(|subsystem| subsystem.hosts.clone()).unwrap_or_default())
    }

    /// A subsystem with one more node.
    fn one_more(
        &self,
        subsystem: &Subsystem,
        seen: u64,
        node: &str,
        wanted: &Use,
        only_reads: bool,
    ) -> Result<More, Status> {
        let Some((mut namespace, revision)) = self.target.namespace(&subsystem.nqn)? else {
            return Ok(More::Outdated);
        };
        if revision != seen {
            return Ok(More::Outdated);
        }
        let mut writers = texts(&namespace["write_hosts"]);
        let writes = |host: &str| writers.iter().any(|writer| writer == host);
        if subsystem.hosts.iter().any(|host| host == node) {
            return match writes(node) == only_reads {
                true => Err(Status::already_exists(format!(
                    "readonly: the volume is published to {node} already, {}",
                    if only_reads { "for writing" } else { "for reading only" }
                ))),
                false => Ok(More::There),
            };
        }
        let others: Vec<&str> = subsystem.hosts.iter().map(String::as_str).collect();
        if wanted.is_for_one_node() && !others.is_empty() {
            return Err(Status::failed_precondition(format!(
                "volume_capability.access_mode: the volume is for one node at a time, and is published to {}",
                others.join(", ")
            )));
        }
        let is_one_writer = wanted.mode == Mode::MultiNodeSingleWriter;
        if let Some(writer) = writers.first().filter(|_| is_one_writer && !only_reads) {
            return Err(Status::failed_precondition(format!(
                "volume_capability.access_mode: one node writes, and {writer} does already"
            )));
        }
        let mut hosts = subsystem.hosts.clone();
        hosts.push(node.to_owned());
        if !only_reads {
            writers.push(node.to_owned());
        }
        namespace["write_hosts"] = json!(writers);
        Ok(More::Values(json!({ "hosts": hosts, "namespace": [namespace] })))
    }

    /// Addresses that nodes connect to.
    fn addresses(&self) -> Result<Vec<String>, Status> {
        if !self.portals.is_empty() {
            return Ok(self.portals.clone());
        }
        let listeners = self.target.listeners()?;
        let found: Vec<String> = listeners.iter().filter_map(address).collect();
        match found.is_empty() {
            false => Ok(found),
            true => Err(Status::failed_precondition(
                "the target listens at no address that nodes can be told: name one with --portal, or with the listener's \
                 advertise (and nodes cannot do TLS)",
            )),
        }
    }
}

/// What a node more means for a subsystem.
enum More {
    /// Nothing: it is there.
    There,
    /// What was read is of two configurations.
    Outdated,
    /// Its new values.
    Values(Value),
}

/// What a node needs to connect.
fn told(
    nqn: &str,
    addresses: &[String],
    uuid: &str,
    references: &References,
) -> ControllerPublishVolumeResponse {
    let mut publish_context: BTreeMap<String, String> =
        [(NQN, nqn.to_owned()), (ADDRESSES, addresses.join(",")), (UUID, uuid.to_owned())]
            .map(|(key, value)| (key.to_owned(), value))
            .into();
    if !references.is_empty() {
        publish_context.insert(SECRETS.to_owned(), references.names());
    }
    ControllerPublishVolumeResponse { publish_context }
}

/// The address that a listener gives hosts, if they can use it.
fn address(listener: &Value) -> Option<String> {
    let values = &listener["values"];
    let wants_tls = values["tls"] == "required" || values["tls"] == "concatenated";
    let leads_to_subsystems = values["subsystems"] != false && !wants_tls;
    let name = listener["running"]["address"].as_str().or_else(|| listener["name"].as_str())?;
    let bound: SocketAddr = name.parse().ok()?;
    let advertised = values["advertise"].as_str().map(|text| match text.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, bound.port()).to_string(),
        Err(_) => text.to_owned(),
    });
    let reachable = advertised.or_else(|| (!bound.ip().is_unspecified()).then(|| bound.to_string()));
    reachable.filter(|_| leads_to_subsystems)
}
