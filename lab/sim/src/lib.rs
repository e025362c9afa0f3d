//! The real host and target under virtual time: a seeded scheduler, a hostile network, a failing disk, and a checker.
//!
//! The product itself runs: association machines and lane cores of `host`, the applications of `target` with their
//! control plane, the backends of `store`. Their surroundings are simulated: `reactor`'s [`Io`](reactor::Io), sockets,
//! disks, threads and time. One seed decides everything, so that a failing run can be repeated, event by event.
//!
//! ```text
//!   user ─▶ host lanes ─▶ network ─▶ reactors of the target ─▶ disk
//!     ▲                                                          │
//!     └───── model: may this block hold that value? ◀────────────┘
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::missing_errors_doc, reason = "an error of the laboratory ends a run with its message")]
// Virtual worlds are small: counts and times fit any integer, and a wrong one would only be another seed.
#![allow(clippy::cast_possible_truncation)]

mod admin;
mod authentication;
mod case;
mod coverage;
mod crash;
mod crash_files;
mod crash_pool;
mod crash_report;
mod event_use;
mod finding;
mod foreign;
mod host;
mod host_link;
mod key_names;
mod keys;
mod leaver;
mod memcached_client;
mod model;
mod names;
mod offer;
mod pair_model;
mod pair_settings;
mod random;
mod reactor_io;
mod removable;
mod rights;
mod run;
mod scenario;
mod scout;
mod sent_bytes;
mod separate;
mod setting;
mod shared;
mod shrink;
mod timeline;
mod tls_keys;
mod tls_right;
mod trace;
mod user_buffer;
mod wire_view;
mod world;

pub use case::Case;
pub use coverage::{Coverage, Ending, Point};
pub use crash::crash_states;
pub use crash_report::CrashReport;
pub use run::{RunOutcome, run_case, run_seed};
pub use scenario::CommandId;
pub use shrink::{Shrunk, shrink};
pub use timeline::Timeline;
