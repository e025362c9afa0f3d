//! What the target has: pools, volumes, snapshots, and the subsystems that serve them.

use serde::Deserialize;
use serde_json::{Value, json};
use tonic::Status;

use crate::control_call::{CallError, Control};
use crate::name::Id;

/// Codes of the target's errors.
const INVALID: i64 = -32602;
const REVISION: i64 = -32002;
const MISSING: i64 = -32003;
const EXISTS: i64 = -32004;
const BUSY: i64 = -32005;
const NO_SPACE: i64 = -32006;
const QUOTA: i64 = -32007;
const CANNOT: i64 = -32008;
/// An older target has no volumes.
const NO_METHOD: i64 = -32601;

/// A directory with volumes.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Pool {
    pub(crate) name: String,
    /// What a new volume may have, bytes.
    #[serde(default)]
    pub(crate) available: u64,
    /// Whether its file system shares blocks: snapshots and clones cost nothing.
    #[serde(default)]
    pub(crate) can_clone: bool,
    /// Why it cannot be used.
    #[serde(default)]
    pub(crate) error: Option<String>,
}

/// A volume or a snapshot.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Object {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) uuid: String,
    #[serde(rename = "size")]
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) created_s: i64,
    pub(crate) source: Option<Source>,
    /// What a namespace of it has as its storage.
    pub(crate) storage: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Volume,
    Snapshot,
}

/// What a volume is a copy of.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) uuid: String,
}

/// The subsystems of one revision of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Subsystems {
    pub(crate) list: Vec<Subsystem>,
    pub(crate) revision: u64,
}

/// A subsystem.
#[derive(Clone, Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    /// Hosts that may connect.
    pub(crate) hosts: Vec<String>,
}

impl Subsystems {
    /// The one of this name.
    pub(crate) fn find(&self, nqn: &str) -> Option<&Subsystem> {
        self.list.iter().find(|subsystem| subsystem.nqn == nqn)
    }
}

/// Outcome of a change that needs the configuration to be as it was seen.
pub(crate) enum Changed {
    Done,
    /// Somebody else has changed something in between.
    Outdated,
}

/// The target.
pub(crate) struct Target {
    control: Box<dyn Control>,
}

impl Target {
    pub(crate) fn new(control: impl Control + 'static) -> Self {
        Self { control: Box::new(control) }
    }

    pub(crate) fn pools(&self) -> Result<Vec<Pool>, Status> {
        objects(self.call("pool_list", json!({}))?)
    }

    pub(crate) fn volumes(&self) -> Result<Vec<Object>, Status> {
        objects(self.call("volume_list", json!({}))?)
    }

    pub(crate) fn snapshots(&self) -> Result<Vec<Object>, Status> {
        objects(self.call("snapshot_list", json!({}))?)
    }

    /// The volume or snapshot of this id; `None` if there is none.
    pub(crate) fn find(&self, kind: Kind, id: &Id) -> Result<Option<Object>, Status> {
        let method = match kind {
            Kind::Volume => "volume_show",
            Kind::Snapshot => "snapshot_show",
        };
        match self.control.call(method, json!({ "name": id.to_string() })) {
            Err(CallError::Refused { code: MISSING, .. }) => Ok(None),
            answer => read(answer.map_err(status)?).map(Some),
        }
    }

    /// Creates a volume or snapshot. If there is one of its name already, returns that one as `Err`.
    pub(crate) fn create(&self, method: &str, params: Value) -> Result<Result<Object, Object>, Status> {
        match self.control.call(method, params) {
            Err(CallError::Refused { code: EXISTS, mut data, .. }) => read(data["object"].take()).map(Err),
            answer => read(answer.map_err(status)?).map(Ok),
        }
    }

    /// Deletes a volume or snapshot, if it is there.
    pub(crate) fn delete(&self, kind: Kind, id: &Id) -> Result<(), Status> {
        let method = match kind {
            Kind::Volume => "volume_delete",
            Kind::Snapshot => "snapshot_delete",
        };
        match self.control.call(method, json!({ "name": id.to_string() })) {
            Err(CallError::Refused { code: MISSING, .. }) => Ok(()),
            answer => answer.map(drop).map_err(status),
        }
    }

    pub(crate) fn resize(&self, id: &Id, size_bytes: u64) -> Result<Object, Status> {
        read(self.call("volume_resize", json!({ "name": id.to_string(), "size": size_bytes }))?)
    }

    /// All subsystems.
    pub(crate) fn subsystems(&self) -> Result<Subsystems, Status> {
        let mut answer = self.call("list", json!({ "noun": "subsystem" }))?;
        let revision = answer["revision"].as_u64().unwrap_or(0);
        let list = answer["objects"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let subsystem = |object: &Value| {
            let nqn = object["name"].as_str()?.to_owned();
            Some(Subsystem { nqn, hosts: texts(&object["values"]["hosts"]) })
        };
        Ok(Subsystems { list: list.iter().filter_map(subsystem).collect(), revision })
    }

    /// The only namespace of a subsystem, as configured, and the revision.
    pub(crate) fn namespace(&self, nqn: &str) -> Result<Option<(Value, u64)>, Status> {
        let answer = self.control.call("list", json!({ "noun": "namespace", "subsystem": nqn }));
        let mut answer = match answer {
            Err(CallError::Refused { code: MISSING, .. }) => return Ok(None),
            answer => answer.map_err(status)?,
        };
        let revision = answer["revision"].as_u64().unwrap_or(0);
        let namespace = answer["objects"].get_mut(0).map(|object| object["values"].take());
        Ok(namespace.map(|namespace| (namespace, revision)))
    }

    /// What a subsystem says of single hosts: where their secrets are. With the revision.
    pub(crate) fn host_entries(&self, nqn: &str) -> Result<(Vec<Value>, u64), Status> {
        let answer = self.control.call("list", json!({ "noun": "key", "subsystem": nqn }));
        let mut answer = match answer {
            // It is gone since: no revision is that.
            Err(CallError::Refused { code: MISSING, .. }) => return Ok((Vec::new(), u64::MAX)),
            answer => answer.map_err(status)?,
        };
        let revision = answer["revision"].as_u64().unwrap_or(0);
        let objects = answer["objects"].as_array_mut().map(std::mem::take).unwrap_or_default();
        Ok((objects.into_iter().map(|mut object| object["values"].take()).collect(), revision))
    }

    /// Addresses that hosts find the target at.
    pub(crate) fn listeners(&self) -> Result<Vec<Value>, Status> {
        let mut answer = self.call("list", json!({ "noun": "listener" }))?;
        Ok(answer["objects"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Changes the configuration, if it has this revision.
    pub(crate) fn change(&self, method: &str, mut params: Value, revision: u64) -> Result<Changed, Status> {
        params["revision"] = revision.into();
        match self.control.call(method, params) {
            Err(CallError::Refused { code: REVISION, .. }) => Ok(Changed::Outdated),
            answer => answer.map(|_| Changed::Done).map_err(status),
        }
    }

    fn call(&self, method: &str, params: Value) -> Result<Value, Status> {
        self.control.call(method, params).map_err(status)
    }
}

/// The texts of a list.
pub(crate) fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
}

fn objects<T: serde::de::DeserializeOwned>(mut answer: Value) -> Result<Vec<T>, Status> {
    read(answer["objects"].take())
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Status> {
    serde_json::from_value(value).map_err(|error| {
        Status::internal(format!("the target's answer is not that of this version: {error}"))
    })
}

/// The target's refusal as that of a call of the interface.
fn status(error: CallError) -> Status {
    match error {
        CallError::Unreachable(why) => Status::unavailable(why),
        CallError::Refused { code, message, .. } => match code {
            INVALID => Status::invalid_argument(message),
            MISSING => Status::not_found(message),
            EXISTS => Status::already_exists(message),
            BUSY => Status::failed_precondition(message),
            NO_SPACE | QUOTA => Status::resource_exhausted(message),
            CANNOT => Status::failed_precondition(message),
            REVISION => Status::aborted(message),
            NO_METHOD => Status::failed_precondition(format!("the target has no volumes: {message}")),
            _ => Status::internal(message),
        },
    }
}
