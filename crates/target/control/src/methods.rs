//! The methods of a call: list, show, add, set and remove objects; diff, export and state.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use subsystem::config::{MemcachedAddress, listen_address};
use wire::discovery::{DISCOVERY_PORT, IO_PORT};
use wire::id::Nsid;
use wire::nqn::Nqn;

use crate::control::{Control, Edit, Plant};
use crate::edits::{add_host, add_number, keep_numbers, key_of_host, remove_named, text_of};
use crate::error::{CallError, METHOD, MISSING, REFUSED};
use crate::noun::{NOUNS, Noun};
use crate::rpc::Call;
use crate::tree::{IS_NUMBERED, names};

/// The methods of nvlane.
pub(crate) const METHODS: [&str; 10] =
    ["list", "show", "add", "set", "remove", "diff", "export", "state", "live", "reload"];

/// Parameters of a method.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    noun: Option<String>,
    /// NQN of the subsystem that the object is part of.
    subsystem: Option<String>,
    name: Option<Value>,
    #[serde(default)]
    values: Map<String, Value>,
    /// The revision that the caller saw.
    revision: Option<u64>,
    /// Whether to remove also what connected hosts use.
    #[serde(default)]
    force: bool,
}

/// An object in a tree.
struct Place {
    noun: &'static Noun,
    /// Index of its subsystem.
    subsystem: Option<usize>,
}

impl Call {
    /// Whether a reload is to remove also what connected hosts use.
    ///
    /// # Errors
    /// Other parameters.
    pub fn reload_is_forced(&self) -> Result<bool, CallError> {
        Ok(self.parsed()?.force)
    }

    fn parsed(&self) -> Result<Params, CallError> {
        self.params_as()
    }

    /// Its parameters.
    ///
    /// # Errors
    /// Missing, unknown or wrong ones.
    pub(crate) fn params_as<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        serde_json::from_value(Value::Object(self.params.clone()))
            .map_err(|error| CallError::invalid(None, error.to_string()))
    }
}

impl Control {
    /// Carries out a call of nvlane's own methods; `None` if it is none.
    pub(crate) fn perform_own(
        &mut self,
        call: &Call,
        plant: &mut dyn Plant,
    ) -> Option<Result<Value, CallError>> {
        METHODS.contains(&call.method.as_str()).then(|| self.own_method(call, plant))
    }

    fn own_method(&mut self, call: &Call, plant: &mut dyn Plant) -> Result<Value, CallError> {
        match call.method.as_str() {
            "list" => self.list(&call.parsed()?, plant),
            "show" => self.show(&call.parsed()?, plant),
            "add" => self.add(&call.parsed()?, plant),
            "set" => self.set(&call.parsed()?, plant),
            "remove" => self.remove(&call.parsed()?, plant),
            "diff" => Ok(json!({
                "revision": self.revision(), "kept": self.is_kept(), "differences": self.differences(),
            })),
            "export" => Ok(json!({ "revision": self.revision(), "toml": self.export()? })),
            "state" => plant.state().ok_or_else(CallError::ending),
            _ => Err(CallError::new(REFUSED, "the target itself answers")),
        }
    }

    fn place(&self, params: &Params) -> Result<Place, CallError> {
        let name = params.noun.as_deref().ok_or_else(|| CallError::invalid(Some("noun"), "missing"))?;
        let noun = Noun::named(name).ok_or_else(|| {
            let known: Vec<String> = NOUNS.iter().map(|noun| noun.name.to_owned()).collect();
            CallError { code: METHOD, ..CallError::missing("noun", name, &known) }
        })?;
        let subsystem = match noun.in_subsystem {
            true => Some(self.subsystem(params.subsystem.as_deref())?),
            false => None,
        };
        Ok(Place { noun, subsystem })
    }

    /// The subsystem of this name, or the only one.
    fn subsystem(&self, nqn: Option<&str>) -> Result<usize, CallError> {
        let list = self.tree.get("subsystem").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let known = names("nqn", list);
        match (nqn, known.len()) {
            (Some(nqn), _) => known
                .iter()
                .position(|known| known == nqn)
                .ok_or_else(|| CallError::missing("subsystem", nqn, &known)),
            (None, 1) => Ok(0),
            (None, 0) => Err(CallError::new(MISSING, "there is no subsystem yet: add one first")),
            (None, _) => {
                let message = format!("which one: {}", known.join(", "));
                Err(CallError::invalid(Some("subsystem"), message))
            }
        }
    }

    fn list(&self, params: &Params, plant: &dyn Plant) -> Result<Value, CallError> {
        // Of all subsystems, unless one is named.
        let everywhere = params.subsystem.is_none();
        let noun = params.noun.as_deref().and_then(Noun::named);
        let subsystems = self.tree.get("subsystem").and_then(Value::as_array).map_or(0, Vec::len);
        let places = match noun.filter(|noun| noun.in_subsystem && everywhere) {
            Some(noun) => (0..subsystems).map(|at| Place { noun, subsystem: Some(at) }).collect(),
            None => vec![self.place(params)?],
        };
        let objects: Vec<Value> = places.iter().flat_map(|place| self.objects(place, plant)).collect();
        Ok(json!({ "revision": self.revision(), "objects": objects }))
    }

    fn show(&self, params: &Params, plant: &dyn Plant) -> Result<Value, CallError> {
        let place = self.place(params)?;
        let objects = self.objects(&place, plant);
        let known: Vec<String> =
            objects.iter().filter_map(|object| Some(object["name"].as_str()?.to_owned())).collect();
        let at = match place.noun.id {
            None => 0,
            Some(_) => {
                let name = canonical(place.noun, &given(params)?);
                known
                    .iter()
                    .position(|known| *known == name)
                    .ok_or_else(|| CallError::missing(place.noun.name, &name, &known))?
            }
        };
        let mut object = objects.into_iter().nth(at).unwrap_or_default();
        object["revision"] = self.revision().into();
        Ok(object)
    }

    /// The objects of a kind: name, subsystem, values, and what runs.
    fn objects(&self, place: &Place, plant: &dyn Plant) -> Vec<Value> {
        let Place { noun, subsystem } = place;
        let mut at = &self.tree;
        let nqn = subsystem.and_then(|index| {
            at = at.get("subsystem")?.get(index)?;
            at.get("nqn")?.as_str()
        });
        if noun.name == "host" {
            return hosts(at)
                .into_iter()
                .map(|(name, values)| json!({ "name": name, "subsystem": nqn, "values": values }))
                .collect();
        }
        let found = noun.place.iter().try_fold(at, |at, key| at.get(key));
        let Some(id) = noun.id else {
            let mut values = found.cloned().unwrap_or_else(|| json!({}));
            if let Some(table) = values.as_object_mut() {
                table.retain(|_, value| !value.is_array());
            }
            return vec![json!({ "name": noun.name, "values": values })];
        };
        let list = found.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let object = |(name, table): (String, &Value)| {
            let mut values = table.clone();
            if let Some(table) = values.as_object_mut() {
                // They are objects of their own.
                table.retain(|key, _| {
                    key != IS_NUMBERED
                        && !(noun.name == "subsystem" && ["namespace", "host"].contains(&key.as_str()))
                });
            }
            let running = running(noun, nqn, &name, plant);
            let mut object = json!({ "name": name, "values": values });
            if let Some(nqn) = nqn {
                object["subsystem"] = nqn.into();
            }
            if let Some(running) = running {
                object["running"] = running;
            }
            object
        };
        names(id, list).into_iter().zip(list).map(object).collect()
    }

    fn add(&mut self, params: &Params, plant: &mut dyn Plant) -> Result<Value, CallError> {
        let place = self.place(params)?;
        let noun = place.noun;
        let Some(id) = noun.id else {
            let message = format!("there is one {} only: set its values", noun.name);
            return Err(CallError::invalid(Some("noun"), message));
        };
        check_keys(&params.values)?;
        let mut values = params.values.clone();
        if let Some(name) = &params.name {
            values.entry(id).or_insert_with(|| match name.as_str().map(str::parse::<u32>) {
                Some(Ok(number)) if id == "nsid" => number.into(),
                _ => name.clone(),
            });
        }
        let mut tree = self.tree.clone();
        if noun.name == "host" {
            let name = add_host(table_of(&mut tree, &place)?, values)?;
            return self.changed(tree, params, plant, &name);
        }
        let list = list_of(&mut tree, &place)?;
        if noun.name == "namespace" {
            add_number(&mut values, list);
            if !values.contains_key("storage") {
                if let Some(text) = values.get(id).and_then(Value::as_str) {
                    let message =
                        format!("expected a number, found {text:?}: storage is a key of its own (--storage)");
                    return Err(CallError::invalid(Some(id), message));
                }
                let message = "missing: name storage such as ram:1G (--storage), or a size (--size)";
                return Err(CallError::invalid(Some("storage"), message));
            }
        } else if !values.contains_key(id) {
            return Err(CallError::invalid(Some(id), "missing"));
        }
        if noun.name == "subsystem" {
            // As an empty list in the file: no host may connect until one is added.
            values.entry("hosts").or_insert_with(|| json!([]));
        }
        let name = canonical(noun, &text_of(values.get(id).unwrap_or(&Value::Null)));
        if names(id, list).contains(&name) && !name.ends_with(":0") {
            return Err(CallError::new(
                REFUSED,
                format!("{} {name} is there already: set its values", noun.name),
            ));
        }
        list.push(Value::Object(values));
        self.changed(tree, params, plant, &name)
    }

    fn set(&mut self, params: &Params, plant: &mut dyn Plant) -> Result<Value, CallError> {
        let place = self.place(params)?;
        let noun = place.noun;
        if params.values.is_empty() {
            return Err(CallError::invalid(Some("values"), "nothing to set"));
        }
        check_keys(&params.values)?;
        let mut tree = self.tree.clone();
        let name = match noun.id {
            None => noun.name.to_owned(),
            Some(_) => canonical(noun, &given(params)?),
        };
        let table = match noun.id {
            None => table_of(&mut tree, &place)?,
            Some(_) if noun.name == "host" => {
                let subsystem = table_of(&mut tree, &place)?;
                let known: Vec<String> =
                    hosts(&Value::Object(subsystem.clone())).into_iter().map(|(name, _)| name).collect();
                if !known.contains(&name) {
                    return Err(CallError::missing("host", &name, &known));
                }
                key_of_host(subsystem, &name)?
            }
            Some(id) => {
                let list = list_of(&mut tree, &place)?;
                let known = names(id, list);
                let at = known.iter().position(|known| *known == name);
                let at = at.ok_or_else(|| CallError::missing(noun.name, &name, &known))?;
                list[at].as_object_mut().ok_or_else(|| CallError::missing(noun.name, &name, &known))?
            }
        };
        for (key, value) in &params.values {
            if noun.id == Some(key) {
                let message = format!("it names the {}: remove it, and add another one", noun.name);
                return Err(CallError::invalid(Some(key), message));
            }
            match value {
                Value::Null => drop(table.remove(key)),
                value => drop(table.insert(key.clone(), value.clone())),
            }
        }
        if noun.name == "host" && table.len() <= 1 {
            // Nothing is said of it any more.
            let subsystem = table_of(&mut tree, &place)?;
            remove_named(subsystem, "host", "nqn", &name);
        }
        self.changed(tree, params, plant, &name)
    }

    fn remove(&mut self, params: &Params, plant: &mut dyn Plant) -> Result<Value, CallError> {
        let place = self.place(params)?;
        let noun = place.noun;
        let Some(id) = noun.id else {
            let message = format!("{} is always there: set values to null for their defaults", noun.name);
            return Err(CallError::invalid(Some("noun"), message));
        };
        let name = canonical(noun, &given(params)?);
        let mut tree = self.tree.clone();
        if noun.name == "host" {
            let subsystem = table_of(&mut tree, &place)?;
            let known: Vec<String> =
                hosts(&Value::Object(subsystem.clone())).into_iter().map(|(name, _)| name).collect();
            if !known.contains(&name) {
                return Err(CallError::missing("host", &name, &known));
            }
            if let Some(Value::Array(hosts)) = subsystem.get_mut("hosts") {
                hosts.retain(|host| host.as_str() != Some(&name));
            }
            remove_named(subsystem, "host", "nqn", &name);
        } else {
            let list = list_of(&mut tree, &place)?;
            let known = names(id, list);
            let at = known.iter().position(|known| *known == name);
            let at = at.ok_or_else(|| CallError::missing(noun.name, &name, &known))?;
            let removed = list.remove(at);
            if noun.name == "namespace" {
                keep_numbers(list, removed.get("nsid").and_then(Value::as_u64));
            }
        }
        self.changed(tree, params, plant, &name)
    }

    fn changed(
        &mut self,
        tree: Value,
        params: &Params,
        plant: &mut dyn Plant,
        name: &str,
    ) -> Result<Value, CallError> {
        let edit =
            Edit { tree, names: self.names.clone(), revision: params.revision, is_forced: params.force };
        let mut answer = self.edit(edit, plant)?;
        answer["name"] = name.into();
        Ok(answer)
    }
}

/// Refuses what is a key of the tree, and none of the configuration.
fn check_keys(values: &Map<String, Value>) -> Result<(), CallError> {
    match values.contains_key(IS_NUMBERED) {
        true => Err(CallError::invalid(Some(IS_NUMBERED), "no such key")),
        false => Ok(()),
    }
}

/// The name of the object in question.
fn given(params: &Params) -> Result<String, CallError> {
    let name = params.name.as_ref().ok_or_else(|| CallError::invalid(Some("name"), "missing"))?;
    match name {
        Value::String(_) | Value::Number(_) => Ok(text_of(name)),
        _ => Err(CallError::invalid(Some("name"), "write text, or a number")),
    }
}

/// A name as the tree has it: an address with its port.
fn canonical(noun: &Noun, name: &str) -> String {
    let address = |port| listen_address(name, port).map(|address| address.to_string());
    let found = match noun.name {
        // A discovery listener without a port has another one: see the reader of the file.
        "listener" => address(IO_PORT),
        "referral" => address(DISCOVERY_PORT),
        "memcached" => name.parse::<MemcachedAddress>().map(|address| address.to_string()),
        _ => return name.to_owned(),
    };
    found.unwrap_or_else(|_| name.to_owned())
}

/// The table that a kind of object is in.
fn table_of<'a>(tree: &'a mut Value, place: &Place) -> Result<&'a mut Map<String, Value>, CallError> {
    let broken = || CallError::new(REFUSED, "the configuration has another shape");
    let at = match place.subsystem {
        Some(at) => tree.get_mut("subsystem").and_then(|list| list.get_mut(at)).ok_or_else(broken)?,
        None => tree,
    };
    let keys = match (place.noun.id, place.noun.place) {
        (None, keys) => keys,
        (Some(_), [above @ .., _]) => above,
        (Some(_), []) => &[],
    };
    let found = keys.iter().try_fold(at, |at, key| {
        at.as_object_mut().map(|table| table.entry(*key).or_insert_with(|| json!({})))
    });
    found.and_then(Value::as_object_mut).ok_or_else(broken)
}

/// The list that a kind of object is in.
fn list_of<'a>(tree: &'a mut Value, place: &Place) -> Result<&'a mut Vec<Value>, CallError> {
    let key = place.noun.place.last().copied().unwrap_or_default();
    let list = table_of(tree, place)?.entry(key).or_insert_with(|| json!([]));
    list.as_array_mut().ok_or_else(|| CallError::new(REFUSED, "the configuration has another shape"))
}

/// The hosts of a subsystem, each with the references to its secrets.
fn hosts(subsystem: &Value) -> Vec<(String, Value)> {
    let listed = subsystem.get("hosts").and_then(Value::as_array).into_iter().flatten();
    let mut found: Vec<(String, Value)> =
        listed.map(|name| (text_of(name), json!({ "nqn": name }))).collect();
    for table in subsystem.get("host").and_then(Value::as_array).into_iter().flatten() {
        let name = text_of(&table["nqn"]);
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => *values = table.clone(),
            None => found.push((name, table.clone())),
        }
    }
    found
}

/// What runs of an object, where the configuration does not say it.
fn running(noun: &Noun, nqn: Option<&str>, name: &str, plant: &dyn Plant) -> Option<Value> {
    let of = |nqn: &str| plant.running()?.subsystems.get(&nqn.parse::<Nqn>().ok()?);
    match noun.name {
        "namespace" => {
            let nsid = Nsid::new(name.parse().ok()?);
            let namespace = of(nqn?)?.namespaces.get(&nsid)?;
            Some(json!({ "uuid": namespace.uuid.to_string(), "storage": namespace.spec.to_string() }))
        }
        "subsystem" => {
            let subsystem = of(name)?;
            Some(json!({ "serial": subsystem.serial, "namespaces": subsystem.namespaces.len() }))
        }
        "listener" => Some(json!({ "address": plant.bound(name)? })),
        _ => None,
    }
}
