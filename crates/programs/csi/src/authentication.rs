//! Authentication of nodes by DH-HMAC-CHAP: a class of volumes names where the target has the secrets, and nodes get the same secrets
//! from Kubernetes, or have files of their own.
//!
//! ```text
//! StorageClass ▶ volume context ▶ the target's host entries        references, such as file:/etc/nvlane/{node}.key
//!              ▶ publish context: which secrets a node needs ▶ secrets of the stage call, or the node's files ▶ kernel
//! ```
//!
//! The target's configuration has references only, so no secret passes the controller.

use std::collections::BTreeMap;
use std::fmt;

use security::secret::Secret;
use serde_json::{Map, Value, json};
use subsystem::config::SecretSource;
use tonic::Status;

use crate::refusal::invalid;

/// The secret of the host.
pub(crate) const HOST_SECRET: &str = "dhchapSecret";
/// The secret of the subsystem, with which it authenticates to the host.
pub(crate) const CONTROLLER_SECRET: &str = "dhchapCtrlSecret";

/// In a reference: the NQN of the node.
const NODE: &str = "{node}";

/// Where the target has the secrets of a volume's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct References(BTreeMap<&'static str, String>);

impl References {
    /// Reads those among the values of a map, the field `field`.
    ///
    /// # Errors
    /// One is no reference, or that of the host is missing.
    pub(crate) fn read(field: &str, values: &BTreeMap<String, String>) -> Result<Self, Status> {
        let mut read = BTreeMap::new();
        for name in [HOST_SECRET, CONTROLLER_SECRET] {
            let Some(text) = values.get(name) else { continue };
            // As it is for some node.
            let source = text.replace(NODE, "node").parse::<SecretSource>();
            source.map_err(|why| {
                invalid(&format!("{field}.{name}"), format_args!("{why}, as the target has it"))
            })?;
            read.insert(name, text.clone());
        }
        match read.contains_key(CONTROLLER_SECRET) && !read.contains_key(HOST_SECRET) {
            true => Err(invalid(
                &format!("{field}.{HOST_SECRET}"),
                format_args!(
                    "missing: a subsystem authenticates only to hosts that do, and {CONTROLLER_SECRET} is given"
                ),
            )),
            false => Ok(Self(read)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As the context of a volume, which is given back with each call.
    pub(crate) fn context(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(name, text)| ((*name).to_owned(), text.clone())).collect()
    }

    /// The names of the secrets that a node needs, with commas between them.
    pub(crate) fn names(&self) -> String {
        self.0.keys().copied().collect::<Vec<_>>().join(",")
    }

    /// Refuses a node whose name would lead to another directory.
    ///
    /// # Errors
    /// Its name has a slash, and is a part of a reference.
    pub(crate) fn check_node(&self, node: &str) -> Result<(), Status> {
        match node.contains('/') && self.0.values().any(|text| text.contains(NODE)) {
            true => Err(invalid(
                "node_id",
                format_args!("a slash is not allowed in it, as {NODE} is a part of a file's name"),
            )),
            false => Ok(()),
        }
    }

    /// The entry of a node in its subsystem.
    pub(crate) fn of_node(&self, node: &str) -> Value {
        let mut entry = Map::from_iter([("nqn".to_owned(), json!(node))]);
        for (name, key) in [(HOST_SECRET, "dhchap_secret"), (CONTROLLER_SECRET, "dhchap_ctrl_secret")] {
            if let Some(text) = self.0.get(name) {
                entry.insert(key.into(), text.replace(NODE, node).into());
            }
        }
        entry.into()
    }
}

/// The secrets of one connection of a node.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secrets {
    pub(crate) host: Option<String>,
    pub(crate) controller: Option<String>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, controller) = (self.host.is_some(), self.controller.is_some());
        f.debug_struct("Secrets")
            .field("host", &host)
            .field("controller", &controller)
            .finish_non_exhaustive()
    }
}

/// Where a node has secrets of its own, for classes whose secrets Kubernetes does not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnSecrets {
    pub(crate) host: Option<SecretSource>,
    pub(crate) controller: Option<SecretSource>,
}

impl OwnSecrets {
    /// The secrets that a volume needs, by their names in `needed`: of the request, or else of this node. The request's count, so
    /// that a cluster's classes may differ.
    ///
    /// # Errors
    /// One is missing or malformed.
    pub(crate) fn for_volume(
        &self,
        needed: &str,
        given: &BTreeMap<String, String>,
    ) -> Result<Secrets, Status> {
        let mut secrets = Secrets::default();
        for name in needed.split(',').filter(|name| !name.is_empty()) {
            let (place, own, option) = match name {
                HOST_SECRET => (&mut secrets.host, &self.host, "--dhchap-secret"),
                CONTROLLER_SECRET => (&mut secrets.controller, &self.controller, "--dhchap-ctrl-secret"),
                other => {
                    let why = format_args!(
                        "the controller asks for {other:?}: use a driver of its version on the node"
                    );
                    return Err(invalid("publish_context.secrets", why));
                }
            };
            let field = format!("secrets.{name}");
            // Only a text of its form is passed on: options of the kernel have commas between them.
            let secret = match (given.get(name), own) {
                (Some(text), _) => text.trim().parse::<Secret>().map_err(|why| invalid(&field, why))?,
                (None, Some(own)) => own.read::<Secret>().map_err(Status::failed_precondition)?,
                (None, None) => {
                    return Err(Status::failed_precondition(format!(
                        "{field}: the target wants this node to authenticate: name a Secret with {name} in the StorageClass \
                         (csi.storage.k8s.io/node-stage-secret-name), or a file with the node's driver ({option})"
                    )));
                }
            };
            *place = Some(secret.to_text().to_string());
        }
        Ok(secrets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn references_are_those_of_the_target() {
        let both = map(&[
            (HOST_SECRET, "file:/etc/nvlane/{node}.key"),
            (CONTROLLER_SECRET, "credential:csi"),
            ("pool", "a"),
        ]);
        let read = References::read("parameters", &both).expect("references");
        assert_eq!((read.names().as_str(), read.context().len()), ("dhchapCtrlSecret,dhchapSecret", 2));
        assert_eq!(
            read.of_node("nqn.a"),
            json!({ "nqn": "nqn.a", "dhchap_secret": "file:/etc/nvlane/nqn.a.key", "dhchap_ctrl_secret": "credential:csi" })
        );
        assert!(read.check_node("nqn.2026-01.com.example:a").is_ok());
        assert!(read.check_node("nqn.2026-01.com.example:a/../b").is_err());
        for (pairs, part) in [
            (vec![(HOST_SECRET, SECRET)], "file:PATH"),
            (vec![(HOST_SECRET, "etc/key")], "expected file:PATH"),
            (vec![(CONTROLLER_SECRET, "file:/etc/key")], "parameters.dhchapSecret: missing"),
        ] {
            let status = References::read("parameters", &map(&pairs)).expect_err("refused");
            assert!(status.message().contains(part) && !status.message().contains("AQID"), "{status:?}");
        }
    }

    #[test]
    fn a_node_takes_the_request_s_secrets_or_its_own() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), format!("{SECRET}\n")).expect("written");
        let own = OwnSecrets { host: Some(SecretSource::File(file.path().into())), controller: None };
        let none = OwnSecrets::default();
        assert_eq!(none.for_volume("", &map(&[])).expect("none is needed"), Secrets::default());
        let given = none.for_volume(HOST_SECRET, &map(&[(HOST_SECRET, SECRET)])).expect("given");
        let read = own.for_volume(HOST_SECRET, &map(&[])).expect("its own");
        assert!(given == read && given.host.as_deref() == Some(SECRET));
        assert!(!format!("{given:?}").contains("DHHC"));
        for (secrets, needed, given, part) in [
            (&none, HOST_SECRET, map(&[]), "node-stage-secret-name"),
            (&own, "dhchapCtrlSecret,dhchapSecret", map(&[]), "--dhchap-ctrl-secret"),
            (&none, HOST_SECRET, map(&[(HOST_SECRET, "DHHC-1:00:x:,nqn=other")]), "secrets.dhchapSecret"),
            (&none, "tlsKey", map(&[]), "a driver of its version"),
        ] {
            let status = secrets.for_volume(needed, &given).expect_err("refused");
            assert!(status.message().contains(part) && !status.message().contains("nqn=other"), "{status:?}");
        }
    }
}
