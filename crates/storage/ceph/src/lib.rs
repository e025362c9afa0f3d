//! Ceph's client libraries, loaded at run time: clusters, and RBD images whose operations complete through an eventfd.
//!
//! ```text
//! Library ─▶ Cluster (one per configuration and user) ─▶ Image (opened once, shared by all reactors)
//!                                                           ▲ start            │ collect, after its eventfd rang
//!                                                        Requests (of one reactor: owns the buffers in flight)
//! ```
//!
//! No thread of the libraries calls us: librbd queues completions and writes to the eventfd ([`Image::collect`]). Calls
//! that wait for the cluster say so; all others return at once.

#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

#[cfg(any(test, feature = "double"))]
pub mod double;

mod cluster;
mod error;
mod functions;
mod image;
mod library;
mod requests;

pub use cluster::{Cluster, ClusterName};
pub use error::Error;
pub use image::{Access, Ended, Image, ImageName};
pub use library::Library;
pub use requests::{Finished, Request, Requests, Unstarted};
