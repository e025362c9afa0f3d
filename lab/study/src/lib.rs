//! Named experiments: variants measured in turn on one machine until their medians are stable, and a report.
//!
//! ```text
//! experiment ──cells──▶ machine ──measure, round by round──▶ measured ──headline, figures──▶ results.json, report.html
//!                          │ bench: cores, times, targets in processes of their own (served)
//! ```
//!
//! A target is a process of this machine, or of the machine of a study server ([`remote`]); experiments do not know which.
//!
//! An [`experiment`] defines the cells and the numbers computed from them; the [`machine`] decides when each cell is
//! measured and how often; [`results`] and [`page`] write the results. A new experiment is one file in
//! `experiments` and one line in the [`catalogue`].
#![forbid(unsafe_code)]
#![allow(clippy::missing_errors_doc, reason = "an error of the laboratory ends a run with its message")]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod awake;
pub mod bench;
pub mod catalogue;
mod cell;
mod chunk_servers;
mod churn;
pub mod compare;
mod counters;
pub mod csv;
mod descriptors;
pub mod distribution;
mod division;
mod doorbell;
mod driver;
mod energy;
mod error;
pub mod experiment;
mod experiments;
pub mod figure;
mod file_target;
mod file_target_kind;
mod fio;
mod format;
pub mod headline;
pub mod held_lanes;
mod hit_ratio;
mod idle_lanes;
pub mod interval;
mod judged;
mod kept;
mod kernel_nvme;
mod key_value;
mod keys;
mod lane_times;
mod lanes;
mod line_counts;
mod load_values;
mod local_target;
mod lookups;
pub mod machine;
pub mod measured;
mod memory_load;
mod network;
mod one_regime;
pub mod page;
mod peers;
mod power;
mod process;
mod profile;
pub mod progress;
mod queue_load;
pub mod remote;
pub mod results;
mod rounds;
mod running_peer;
mod scratch;
mod served;
mod served_options;
mod side_load;
mod spdk;
mod spdk_host;
mod steering;
mod study_file;
pub mod summary;
pub mod svg;
pub mod table;
pub mod target_options;
mod target_sampling;
mod text_load;
mod text_sockets;
pub mod two_machines;
mod words;

pub use served::Served;
pub use served_options::ServedOptions;
