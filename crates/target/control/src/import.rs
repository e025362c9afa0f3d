//! Configurations of other targets as nvlane's: nvmetcli's and SPDK's.
//!
//! Each object is added as a call adds it, to a target that only checks. What is refused is left out, and named.

use serde_json::{Map, Value, json};
use subsystem::config::{ListenerConfig, TargetConfig};
use subsystem::operator::{Outline, Report};

use crate::control::{Control, Plant};
use crate::error::CallError;
use crate::rpc::Call;
use crate::spdk;

/// A configuration that was carried over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The configuration, as TOML.
    pub toml: String,
    /// What could not be carried over, a line each.
    pub left_out: Vec<String>,
}

/// Takes over a configuration of nvmetcli (`nvmetcli save`) or of SPDK (`save_config`).
///
/// # Errors
/// It is neither, or nothing of it could be carried over.
pub fn import(text: &str) -> Result<Imported, String> {
    let given: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?;
    let subsystems = given.get("subsystems").and_then(Value::as_array);
    let is_spdk = |list: &Vec<Value>| list.iter().any(|subsystem| subsystem.get("config").is_some());
    let mut work = Import::new()?;
    match subsystems {
        Some(list) if is_spdk(list) => work.of_spdk(list),
        _ if given.get("ports").is_some() || subsystems.is_some() => work.of_nvmetcli(&given),
        _ => {
            return Err(
                "it is no configuration of nvmetcli (ports, subsystems) or SPDK (subsystems with config)"
                    .into(),
            );
        }
    }
    work.end()
}

/// A target that only checks.
struct Checker;

impl Plant for Checker {
    fn change(&mut self, _: &TargetConfig, _: &TargetConfig, _: bool) -> Result<Report, Report> {
        Ok(Report::default())
    }

    fn running(&self) -> Option<&Outline> {
        None
    }

    fn bound(&self, _: &str) -> Option<String> {
        None
    }

    fn look_after_storage(&mut self) {}

    fn state(&self) -> Option<Value> {
        None
    }
}

/// Address of a listener that is there until the configuration's own are known.
const PLACEHOLDER: &str = "127.0.0.1:1";

struct Import {
    control: Control,
    left_out: Vec<String>,
    listener_count: usize,
}

impl Import {
    fn new() -> Result<Self, String> {
        let address = PLACEHOLDER.parse().map_err(|_| "no address")?;
        let base = TargetConfig { listeners: vec![ListenerConfig::new(address)], ..TargetConfig::default() };
        Ok(Self { control: Control::start(&base, None)?.control, left_out: Vec::new(), listener_count: 0 })
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value, CallError> {
        let params = match params {
            Value::Object(params) => params,
            _ => Map::new(),
        };
        self.control.perform(&Call { method: method.into(), params }, &mut Checker)
    }

    /// Adds an object, or says why not. Returns whether it was added.
    fn add(&mut self, what: &str, method: &str, params: Value) -> bool {
        match self.call(method, params) {
            Ok(_) => true,
            Err(error) => {
                let why = error.message.lines().collect::<Vec<_>>().join("; ");
                self.left_out.push(format!("{what}: {why}"));
                false
            }
        }
    }

    fn leave_out(&mut self, what: &str, why: &str) {
        self.left_out.push(format!("{what}: {why}"));
    }

    fn end(mut self) -> Result<Imported, String> {
        if self.listener_count > 0 {
            self.call("remove", json!({ "noun": "listener", "name": PLACEHOLDER }))
                .map_err(|error| error.message)?;
        } else {
            // The default ones of a target.
            for address in ["127.0.0.1:4420", "127.0.0.1:8009"] {
                self.add("listener", "add", json!({ "noun": "listener", "name": address }));
            }
            let removed = self.call("remove", json!({ "noun": "listener", "name": PLACEHOLDER }));
            removed.map_err(|error| error.message)?;
            self.leave_out("listeners", "there was none that nvlane can have: those of 127.0.0.1 were added");
        }
        if self.control.config().subsystems.is_empty() {
            return Err(format!("no subsystem could be carried over\n{}", self.left_out.join("\n")));
        }
        let toml = self.control.export().map_err(|error| error.message)?;
        Ok(Imported { toml, left_out: self.left_out })
    }

    fn of_spdk(&mut self, list: &[Value]) {
        for subsystem in list {
            for call in subsystem.get("config").and_then(Value::as_array).into_iter().flatten() {
                let method = call.get("method").and_then(Value::as_str).unwrap_or_default();
                let params = call.get("params").and_then(Value::as_object).cloned().unwrap_or_default();
                // What saved configurations always have, and nvlane's target is without.
                let is_of_no_use = [
                    "_set_options",
                    "_set_config",
                    "_set_max_subsystems",
                    "_set_default_impl",
                    "_set_hotplug",
                    "_wait_for_examine",
                ];
                if is_of_no_use.iter().any(|end| method.ends_with(end)) {
                    continue;
                }
                if !spdk::knows(method) {
                    let method = if method.is_empty() { "a call without a method" } else { method };
                    self.leave_out(method, "nvlane has nothing of this kind");
                    continue;
                }
                self.of_spdk_call(method, params);
            }
        }
    }

    /// Makes a call of a saved configuration; parameters that nvlane cannot follow are left out.
    fn of_spdk_call(&mut self, method: &str, mut params: Map<String, Value>) {
        let name = ["nqn", "name", "filename"].iter().find_map(|key| params.get(*key)?.as_str());
        let what = format!("{method} {}", name.unwrap_or_default()).trim_end().to_owned();
        loop {
            let Err(error) = self.call(method, params.clone().into()) else {
                if method == "nvmf_subsystem_add_listener" {
                    self.listener_count += 1;
                }
                return;
            };
            let field =
                error.data.as_ref().and_then(|data| data["fields"][0]["field"].as_str()).map(str::to_owned);
            let is_extra =
                error.message.contains("does not offer this") || error.message.contains("no such parameter");
            let removed = field.filter(|_| is_extra).and_then(|field| {
                let of_namespace = params.get_mut("namespace").and_then(Value::as_object_mut);
                let value = of_namespace.and_then(|table| table.remove(&field));
                value.or_else(|| params.remove(&field)).map(|value| (field, value))
            });
            match removed {
                Some((field, value)) => {
                    self.leave_out(&what, &format!("without {field} = {value}: {}", error.message));
                }
                None => {
                    let why = error.message.lines().collect::<Vec<_>>().join("; ");
                    return self.leave_out(&what, &why);
                }
            }
        }
    }

    fn of_nvmetcli(&mut self, given: &Value) {
        let list =
            |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        for host in list(given, "hosts") {
            let has_key =
                host.as_object().is_some_and(|host| host.keys().any(|key| key.starts_with("dhchap")));
            if has_key {
                let what = format!("secret of host {}", text(&host, "nqn").unwrap_or_default());
                self.leave_out(
                    &what,
                    "put it into a file, and name it: [[subsystem.host]] dhchap_secret = \"file:PATH\"",
                );
            }
        }
        for port in list(given, "ports") {
            self.of_port(&port);
        }
        for subsystem in list(given, "subsystems") {
            self.of_subsystem(&subsystem);
        }
    }

    fn of_port(&mut self, port: &Value) {
        let address = port.get("addr").cloned().unwrap_or_default();
        let text = |key: &str| address[key].as_str().unwrap_or_default();
        let what = format!("port {}", port.get("portid").unwrap_or(&Value::Null));
        if !text("trtype").eq_ignore_ascii_case("tcp") {
            return self.leave_out(&what, &format!("transport {}: nvlane speaks TCP", text("trtype")));
        }
        let ip = text("traddr").parse::<std::net::IpAddr>();
        let (Ok(ip), Ok(number)) = (ip, text("trsvcid").parse::<u16>()) else {
            return self
                .leave_out(&what, &format!("{} {} is no address and port", text("traddr"), text("trsvcid")));
        };
        let name = std::net::SocketAddr::new(ip, number).to_string();
        if self.add(
            &what,
            "add",
            json!({ "noun": "listener", "name": name, "values": { "subsystems": true } }),
        ) {
            self.listener_count += 1;
        }
        if matches!(text("treq"), "required") {
            self.leave_out(&what, "treq = required: add tls = \"required\" and a tls_key");
        }
        for referral in port.get("referrals").and_then(Value::as_array).into_iter().flatten() {
            let of = |key: &str| referral["addr"][key].as_str().unwrap_or_default();
            let address = match of("traddr").parse::<std::net::IpAddr>() {
                Ok(ip) => std::net::SocketAddr::new(ip, of("trsvcid").parse().unwrap_or(8009)).to_string(),
                Err(_) => of("traddr").to_owned(),
            };
            self.add(&format!("referral {address}"), "add", json!({ "noun": "referral", "name": address }));
        }
    }

    fn of_subsystem(&mut self, subsystem: &Value) {
        let nqn = subsystem.get("nqn").and_then(Value::as_str).unwrap_or_default();
        let attributes = subsystem.get("attr").cloned().unwrap_or_default();
        let text = |key: &str| match &attributes[key] {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let is_any = text("allow_any_host").as_deref() == Some("1");
        let hosts = if is_any {
            json!("any")
        } else {
            subsystem.get("allowed_hosts").cloned().unwrap_or_else(|| json!([]))
        };
        let mut values = Map::from_iter([("hosts".to_owned(), hosts)]);
        for key in ["serial", "model"] {
            if let Some(text) = text(key).filter(|text| !text.is_empty()) {
                values.insert(key.into(), text.into());
            }
        }
        let ids = [text("cntlid_min"), text("cntlid_max")].map(|id| id.and_then(|id| id.parse::<u16>().ok()));
        if let [Some(first), Some(last)] = ids {
            values.insert("cntlids".into(), json!([first, last]));
        }
        let what = format!("subsystem {nqn}");
        if text("pi_enable").as_deref() == Some("1") {
            self.leave_out(&what, "pi_enable: nvlane has no protection information");
        }
        if !self.add(&what, "add", json!({ "noun": "subsystem", "name": nqn, "values": values })) {
            return;
        }
        for namespace in subsystem.get("namespaces").and_then(Value::as_array).into_iter().flatten() {
            self.of_namespace(nqn, namespace);
        }
        if subsystem.get("passthru").is_some_and(|passthru| passthru["enable"] == 1) {
            self.leave_out(&what, "passthru: nvlane serves no foreign controllers; use device:PATH");
        }
    }

    fn of_namespace(&mut self, nqn: &str, namespace: &Value) {
        let what = format!("{nqn} namespace {}", namespace["nsid"]);
        let device = &namespace["device"];
        let path = device["path"].as_str().unwrap_or_default();
        if !path.starts_with('/') {
            return self.leave_out(&what, "its device has no absolute path");
        }
        if namespace["enable"] == 0 {
            return self.leave_out(&what, "it is not enabled");
        }
        let kind = if path.starts_with("/dev/") { "device" } else { "file" };
        let storage = format!("{kind}:{}", path.replace('%', "%25").replace('?', "%3F"));
        let mut values = Map::from_iter([
            ("nsid".to_owned(), namespace["nsid"].clone()),
            ("storage".to_owned(), storage.into()),
        ]);
        for key in ["uuid", "nguid"] {
            let text = device[key].as_str().unwrap_or_default();
            if text.bytes().any(|byte| byte.is_ascii_hexdigit() && byte != b'0') {
                values.insert(key.into(), text.into());
            }
        }
        if namespace["ana_grpid"].as_u64().is_some_and(|group| group > 1) {
            self.leave_out(&what, "ana_grpid: nvlane has no ANA groups");
        }
        self.add(&what, "add", json!({ "noun": "namespace", "subsystem": nqn, "values": values }));
    }
}
