//! Where nodes reach the target from: segments such as `zone=a`, the same for controller and nodes.

use std::collections::BTreeMap;

use tonic::Status;

use crate::csi_v1::{Topology, TopologyRequirement};

/// Segments of `--topology`; none if all nodes of a cluster reach the target.
pub(crate) type Segments = BTreeMap<String, String>;

/// Parses `KEY=VALUE`.
pub(crate) fn segment(text: &str) -> Result<(String, String), String> {
    let is_good = |part: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        !part.is_empty() && part.len() <= 63 + 254 && part.bytes().all(is_letter)
    };
    match text.split_once('=') {
        Some((key, value)) if is_good(key) && is_good(value) && !value.contains('/') => {
            Ok((key.into(), value.into()))
        }
        _ => Err("write KEY=VALUE, such as topology.kubernetes.io/zone=a".into()),
    }
}

/// The topology of a volume, or of a node.
pub(crate) fn of(segments: &Segments) -> Option<Topology> {
    (!segments.is_empty()).then(|| Topology { segments: segments.clone() })
}

/// Whether a node of this topology reaches the target.
pub(crate) fn reaches(segments: &Segments, topology: &Topology) -> bool {
    topology.segments.iter().all(|(key, value)| segments.get(key).is_none_or(|ours| ours == value))
}

/// Checks that a volume of the target can be where it is wanted.
pub(crate) fn check(segments: &Segments, wanted: Option<&TopologyRequirement>) -> Result<(), Status> {
    let Some(wanted) = wanted.filter(|wanted| !wanted.requisite.is_empty()) else { return Ok(()) };
    match wanted.requisite.iter().any(|topology| reaches(segments, topology)) {
        true => Ok(()),
        false => Err(Status::resource_exhausted(format!(
            "accessibility_requirements: this target is reached from {segments:?} only (--topology)"
        ))),
    }
}
