//! A target in memory: pools, volumes, snapshots and subsystems, by the contract of the control socket's calls.

use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use crate::control_call::{CallError, Control};

/// Bytes that a volume may have.
const ROOM: u64 = 1 << 40;

#[derive(Default)]
pub(super) struct FakeTarget {
    objects: Vec<Value>,
    subsystems: Vec<Value>,
    revision: u64,
    uuid_count: u64,
    /// Changes of others that come in between a look and a change.
    disturbances: u32,
    pub(super) is_gone: bool,
}

/// The target, and who looks at it.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<FakeTarget>>);

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, FakeTarget> {
        self.0.lock().expect("no test has panicked in it")
    }
}

impl Control for Shared {
    fn call(&self, method: &str, params: Value) -> Result<Value, CallError> {
        let mut target = self.lock();
        match target.is_gone {
            true => Err(CallError::Unreachable("the target is gone".into())),
            false => target.call(method, &params),
        }
    }
}

fn refused<T>(code: i64, message: &str, data: Value) -> Result<T, CallError> {
    Err(CallError::Refused { code, message: message.into(), data })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl FakeTarget {
    pub(super) fn shared() -> Shared {
        Shared(Arc::new(Mutex::new(Self::default())))
    }

    pub(super) fn volume_count(&self) -> usize {
        self.objects.iter().filter(|object| object["kind"] == "volume").count()
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Lets others change the configuration that often, each time between a look and a change.
    pub(super) fn disturb(&mut self, count: u32) {
        self.disturbances = count;
    }

    /// Hosts of a subsystem, and those of them that write.
    pub(super) fn hosts(&self, nqn: &str) -> Option<(Vec<String>, Vec<String>)> {
        let found = self.subsystems.iter().find(|subsystem| subsystem["nqn"] == nqn)?;
        let texts =
            |list: &Value| list.as_array().into_iter().flatten().map(|item| text(item).to_owned()).collect();
        Some((texts(&found["hosts"]), texts(&found["namespace"][0]["write_hosts"])))
    }

    /// What a subsystem says of single hosts.
    pub(super) fn host_entries(&self, nqn: &str) -> Value {
        let found = self.subsystems.iter().find(|subsystem| subsystem["nqn"] == nqn);
        found.map_or(Value::Null, |subsystem| subsystem["host"].clone())
    }

    fn call(&mut self, method: &str, params: &Value) -> Result<Value, CallError> {
        let name = text(&params["name"]);
        match method {
            "pool_list" => Ok(json!({ "objects": [
                { "name": "fast", "available": ROOM, "can_clone": true, "error": null },
                { "name": "slow", "available": ROOM / 2, "can_clone": false, "error": null },
            ] })),
            "volume_create" => self.add("volume", name, None, params),
            "volume_clone" => {
                let source = self.find(None, text(&params["source"]))?.clone();
                self.add("volume", name, Some(&source), params)
            }
            "snapshot_create" => {
                let source = self.find(Some("volume"), text(&params["volume"]))?.clone();
                self.add("snapshot", name, Some(&source), params)
            }
            "volume_list" | "snapshot_list" => {
                let kind = method.trim_end_matches("_list");
                let mut objects = self.objects.clone();
                objects.retain(|object| object["kind"] == kind);
                objects.sort_by(|one, other| text(&one["name"]).cmp(text(&other["name"])));
                Ok(json!({ "objects": objects }))
            }
            "volume_show" | "snapshot_show" => {
                self.find(Some(method.trim_end_matches("_show")), name).cloned()
            }
            "volume_resize" => {
                let at = self.position(Some("volume"), name)?;
                self.objects[at]["size"] = params["size"].clone();
                Ok(self.objects[at].clone())
            }
            "volume_delete" | "snapshot_delete" => {
                let at = self.position(Some(method.trim_end_matches("_delete")), name)?;
                let storage = &self.objects[at]["storage"];
                if self.subsystems.iter().any(|subsystem| subsystem["namespace"][0]["storage"] == *storage) {
                    return refused(-32005, "it is served", json!({ "served_by": [] }));
                }
                self.objects.remove(at);
                Ok(json!({}))
            }
            "list" => Ok(json!({ "revision": self.revision, "objects": self.list(params) })),
            "add" | "set" | "remove" => self.change(method, name, params),
            other => refused(-32601, other, Value::Null),
        }
    }

    fn position(&self, kind: Option<&str>, name: &str) -> Result<usize, CallError> {
        let is_it = |object: &Value| object["name"] == name && kind.is_none_or(|kind| object["kind"] == kind);
        match self.objects.iter().position(is_it) {
            Some(at) => Ok(at),
            None => refused(-32003, &format!("no {name}"), Value::Null),
        }
    }

    fn find(&self, kind: Option<&str>, name: &str) -> Result<&Value, CallError> {
        Ok(&self.objects[self.position(kind, name)?])
    }

    fn add(
        &mut self,
        kind: &str,
        name: &str,
        source: Option<&Value>,
        params: &Value,
    ) -> Result<Value, CallError> {
        if let Ok(there) = self.find(None, name) {
            return refused(-32004, "it is there", json!({ "object": there, "same": false }));
        }
        if source.is_some() && name.starts_with("slow/") {
            return refused(-32008, "no reflink", Value::Null);
        }
        let size = params["size"].as_u64().or_else(|| source?["size"].as_u64()).expect("a size");
        if size > ROOM {
            return refused(-32007, "too large", Value::Null);
        }
        self.uuid_count += 1;
        let block_bytes =
            source.map_or_else(|| params["block_bytes"].clone(), |source| source["block_bytes"].clone());
        let source = source.map(|source| json!({ "name": source["name"], "uuid": source["uuid"] }));
        let object = json!({
            "name": name, "kind": kind, "uuid": format!("00000000-0000-4000-8000-{:012}", self.uuid_count), "size": size,
            "block_bytes": block_bytes, "created_s": 1_796_000_000, "allocated": 0, "source": source,
            "storage": format!("pool:/srv/{name}"), "served_by": [],
        });
        self.objects.push(object.clone());
        Ok(object)
    }

    fn list(&self, params: &Value) -> Vec<Value> {
        let of = |subsystem: &Value| match text(&params["noun"]) {
            "subsystem" => {
                vec![
                    json!({ "name": subsystem["nqn"], "values": { "nqn": subsystem["nqn"], "hosts": subsystem["hosts"] } }),
                ]
            }
            "key" if subsystem["nqn"] == params["subsystem"] => {
                let entries = subsystem["host"].as_array().into_iter().flatten();
                entries.map(|entry| json!({ "name": entry["nqn"], "values": entry })).collect()
            }
            _ if subsystem["nqn"] == params["subsystem"] => {
                vec![json!({ "name": "1", "values": subsystem["namespace"][0] })]
            }
            _ => Vec::new(),
        };
        match text(&params["noun"]) {
            "listener" => vec![
                json!({ "name": "0.0.0.0:4420", "values": { "address": "0.0.0.0:4420", "advertise": "192.0.2.1" } }),
                json!({ "name": "192.0.2.2:0", "values": {}, "running": { "address": "192.0.2.2:4420" } }),
                json!({ "name": "192.0.2.3:8009", "values": { "subsystems": false } }),
                json!({ "name": "192.0.2.4:4420", "values": { "tls": "required" } }),
                json!({ "name": "[::]:4420", "values": {} }),
            ],
            _ => self.subsystems.iter().flat_map(of).collect(),
        }
    }

    fn change(&mut self, method: &str, name: &str, params: &Value) -> Result<Value, CallError> {
        assert_eq!(params["noun"], "subsystem");
        if self.disturbances > 0 {
            self.disturbances -= 1;
            self.revision += 1;
        }
        if params["revision"].as_u64().is_some_and(|seen| seen != self.revision) {
            return refused(-32002, "outdated", json!({ "revision": self.revision }));
        }
        let at = self.subsystems.iter().position(|subsystem| subsystem["nqn"] == name);
        match (method, at) {
            ("add", None) => {
                let mut subsystem = params["values"].clone();
                subsystem["nqn"] = name.into();
                self.subsystems.push(subsystem);
            }
            ("set", Some(at)) => {
                for (key, value) in params["values"].as_object().expect("values") {
                    self.subsystems[at][key] = value.clone();
                }
            }
            ("remove", Some(at)) => drop(self.subsystems.remove(at)),
            _ => return refused(-32001, "it is there already, or not", Value::Null),
        }
        self.revision += 1;
        Ok(json!({ "revision": self.revision, "name": name }))
    }
}
