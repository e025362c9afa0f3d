//! SPDK's methods that nvlane serves, and the check of their parameters.

use serde::Deserialize;
use serde_json::{Map, Value};

use self::Rule::{Hint, Off, Used};
use crate::error::CallError;

/// What a parameter may be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// It is used.
    Used,
    /// A hint for resources: nvlane has its own.
    Hint,
    /// The default only, which is `false`, 0 or `null`.
    Off,
}

/// A method's parameters.
pub(crate) type Parameters = &'static [(&'static str, Rule)];

/// Parameters that bdevs have for features that nvlane does not offer.
const METADATA: [(&str, Rule); 5] = [
    ("md_size", Off),
    ("md_interleave", Off),
    ("dif_type", Off),
    ("dif_is_head_of_md", Off),
    ("dif_pi_format", Off),
];

/// The methods and their parameters.
pub(crate) const METHODS: &[(&str, Parameters)] = &[
    (
        "bdev_aio_create",
        &[
            ("filename", Used),
            ("name", Used),
            ("block_size", Used),
            ("readonly", Used),
            ("uuid", Used),
            ("fallocate", Hint),
            ("nowait", Hint),
        ],
    ),
    ("bdev_aio_delete", &[("name", Used)]),
    ("bdev_get_bdevs", &[("name", Used), ("timeout", Hint)]),
    (
        "bdev_malloc_create",
        &[
            ("name", Used),
            ("num_blocks", Used),
            ("block_size", Used),
            ("uuid", Used),
            ("physical_block_size", Hint),
            ("optimal_io_boundary", Off),
            ("numa_id", Hint),
            METADATA[0],
            METADATA[1],
            METADATA[2],
            METADATA[3],
            METADATA[4],
        ],
    ),
    ("bdev_lvol_clone", &[("snapshot_name", Used), ("clone_name", Used)]),
    (
        "bdev_lvol_create",
        &[
            ("lvol_name", Used),
            ("size_in_mib", Used),
            ("lvs_name", Used),
            ("uuid", Used),
            ("thin_provision", Hint),
            ("clear_method", Hint),
        ],
    ),
    ("bdev_lvol_delete", &[("name", Used)]),
    ("bdev_lvol_get_lvols", &[("lvs_name", Used), ("lvs_uuid", Used)]),
    ("bdev_lvol_get_lvstores", &[("lvs_name", Used), ("uuid", Used)]),
    ("bdev_lvol_resize", &[("name", Used), ("size_in_mib", Used)]),
    ("bdev_lvol_snapshot", &[("lvol_name", Used), ("snapshot_name", Used)]),
    ("bdev_malloc_delete", &[("name", Used)]),
    (
        "bdev_null_create",
        &[
            ("name", Used),
            ("num_blocks", Used),
            ("block_size", Used),
            ("uuid", Used),
            ("physical_block_size", Hint),
            ("preferred_write_alignment", Hint),
            ("preferred_write_granularity", Hint),
            ("optimal_write_size", Hint),
            ("preferred_unmap_alignment", Hint),
            ("preferred_unmap_granularity", Hint),
            METADATA[0],
            METADATA[1],
            METADATA[2],
            METADATA[3],
            METADATA[4],
        ],
    ),
    ("bdev_null_delete", &[("name", Used)]),
    (
        "bdev_set_qos_limit",
        &[
            ("name", Used),
            ("rw_ios_per_sec", Used),
            ("rw_mbytes_per_sec", Used),
            ("r_mbytes_per_sec", Used),
            ("w_mbytes_per_sec", Used),
        ],
    ),
    ("framework_start_init", &[]),
    ("framework_wait_init", &[]),
    ("keyring_file_add_key", &[("name", Used), ("path", Used)]),
    ("keyring_file_remove_key", &[("name", Used)]),
    ("keyring_get_keys", &[]),
    (
        "nvmf_create_subsystem",
        &[
            ("nqn", Used),
            ("serial_number", Used),
            ("model_number", Used),
            ("allow_any_host", Used),
            ("min_cntlid", Used),
            ("max_cntlid", Used),
            ("max_namespaces", Hint),
            ("tgt_name", Off),
            ("ana_reporting", Off),
            ("passthrough", Off),
            ("enable_nssr", Off),
            ("admin_label", Off),
            ("dmrsl", Hint),
            ("wzsl", Hint),
            ("max_discard_size_kib", Hint),
            ("max_write_zeroes_size_kib", Hint),
        ],
    ),
    (
        "nvmf_create_transport",
        &[
            ("trtype", Used),
            ("tgt_name", Off),
            ("max_queue_depth", Hint),
            ("max_io_qpairs_per_ctrlr", Hint),
            ("in_capsule_data_size", Hint),
            ("max_io_size", Hint),
            ("max_aq_depth", Hint),
            ("io_unit_size", Hint),
            ("num_shared_buffers", Hint),
            ("buf_cache_size", Hint),
            ("iobuf_small_cache_size", Hint),
            ("iobuf_large_cache_size", Hint),
            ("zcopy", Hint),
            ("num_cqe", Hint),
            ("max_srq_depth", Hint),
            ("no_srq", Hint),
            ("c2h_success", Hint),
            ("dif_insert_or_strip", Off),
            ("sock_priority", Hint),
            ("acceptor_backlog", Hint),
            ("abort_timeout_sec", Hint),
            ("no_wr_batching", Hint),
            ("control_msg_num", Hint),
            ("disable_mappable_bar0", Hint),
            ("disable_adaptive_irq", Hint),
            ("disable_shadow_doorbells", Hint),
            ("acceptor_poll_rate", Hint),
            ("ack_timeout", Hint),
            ("data_wr_pool_size", Hint),
            ("disable_command_passthru", Hint),
            ("kas", Hint),
            ("min_kato", Hint),
            ("masked_oncs", Off),
            ("masked_fuses", Off),
        ],
    ),
    ("nvmf_delete_subsystem", &[("nqn", Used), ("tgt_name", Off)]),
    ("nvmf_get_subsystems", &[("nqn", Used), ("tgt_name", Off)]),
    ("nvmf_get_transports", &[("trtype", Used), ("tgt_name", Off)]),
    (
        "nvmf_subsystem_add_host",
        &[
            ("nqn", Used),
            ("host", Used),
            ("psk", Used),
            ("dhchap_key", Used),
            ("dhchap_ctrlr_key", Used),
            ("tgt_name", Off),
        ],
    ),
    (
        "nvmf_subsystem_add_listener",
        &[
            ("nqn", Used),
            ("listen_address", Used),
            ("secure_channel", Used),
            ("tgt_name", Off),
            ("ana_state", Hint),
            ("sock_impl", Hint),
            ("numa_id", Hint),
        ],
    ),
    ("nvmf_subsystem_add_ns", &[("nqn", Used), ("namespace", Used), ("tgt_name", Off)]),
    ("nvmf_subsystem_allow_any_host", &[("nqn", Used), ("allow_any_host", Used), ("tgt_name", Off)]),
    ("nvmf_subsystem_get_listeners", &[("nqn", Used), ("tgt_name", Off)]),
    ("nvmf_subsystem_remove_host", &[("nqn", Used), ("host", Used), ("timeout_ms", Hint), ("tgt_name", Off)]),
    ("nvmf_subsystem_remove_listener", &[("nqn", Used), ("listen_address", Used), ("tgt_name", Off)]),
    ("nvmf_subsystem_remove_ns", &[("nqn", Used), ("nsid", Used), ("tgt_name", Off)]),
    ("rpc_get_methods", &[("current", Hint), ("include_aliases", Hint)]),
    ("spdk_get_version", &[]),
];

/// Parameters of `namespace` in `nvmf_subsystem_add_ns`.
pub(super) const NAMESPACE: Parameters = &[
    ("bdev_name", Used),
    ("nsid", Used),
    ("nguid", Used),
    ("uuid", Used),
    ("eui64", Off),
    ("ptpl_file", Off),
    ("anagrpid", Hint),
    ("no_auto_visible", Off),
];

/// Parameters of `listen_address`.
pub(super) const LISTEN_ADDRESS: Parameters =
    &[("trtype", Used), ("traddr", Used), ("trsvcid", Used), ("adrfam", Used)];

pub(super) fn parameters_of(method: &str) -> Option<Parameters> {
    METHODS.iter().find(|(name, _)| *name == method).map(|(_, parameters)| *parameters)
}

/// Whether SPDK has this method, and nvlane serves it.
pub(crate) fn knows(method: &str) -> bool {
    parameters_of(method).is_some()
}

/// Whether a method of SPDK changes anything.
pub(crate) fn is_change(method: &str) -> bool {
    let reads = ["_get_", "rpc_get_methods", "spdk_get_version", "framework_"];
    knows(method) && !reads.iter().any(|part| method.contains(part))
}

/// Checked parameters.
pub(super) struct Given<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Given<'a> {
    pub(super) fn new(given: &'a Map<String, Value>, known: Parameters) -> Result<Self, CallError> {
        for (name, value) in given {
            let Some((_, rule)) = known.iter().find(|(known, _)| known == name) else {
                let hint = store::nearest(name, known.iter().map(|(name, _)| *name));
                let hint = hint.map_or_else(String::new, |near| format!(": did you mean {near}?"));
                return Err(CallError::invalid(Some(name), format!("no such parameter{hint}")));
            };
            let is_off = match value {
                Value::Null | Value::Bool(false) => true,
                Value::Number(number) => number.as_f64() == Some(0.0),
                Value::Array(list) => list.is_empty(),
                _ => false,
            };
            let is_plain = !matches!(value, Value::Object(_) | Value::Array(_));
            match rule {
                Off if !is_off => {
                    let message = "nvlane does not offer this: leave it out";
                    return Err(CallError::invalid(Some(name), message));
                }
                Hint if !is_plain => return Err(CallError::invalid(Some(name), "expected a plain value")),
                _ => {}
            }
        }
        Ok(Self(given))
    }

    /// A parameter that may be left out, or `null`.
    pub(super) fn maybe<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<Option<T>, CallError> {
        let value = self.0.get(name).cloned().unwrap_or_default();
        serde_json::from_value(value).map_err(|error| CallError::invalid(Some(name), error.to_string()))
    }

    pub(super) fn needed<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<T, CallError> {
        self.maybe(name)?.ok_or_else(|| CallError::invalid(Some(name), "missing"))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, CallError> {
        Ok(self.maybe(name)?.unwrap_or(false))
    }

    /// The parameters in a parameter.
    pub(super) fn table(&self, name: &str, known: Parameters) -> Result<Given<'a>, CallError> {
        match self.0.get(name) {
            Some(Value::Object(table)) => Given::new(table, known),
            _ => Err(CallError::invalid(Some(name), "missing, or no object")),
        }
    }
}
