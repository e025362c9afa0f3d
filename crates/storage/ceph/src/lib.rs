//! Ceph's client libraries, loaded at run time: clusters, RBD images whose operations complete through an eventfd, and
//! objects of RADOS whose operations complete through a pipe.
//!
//! ```text
//! Library ─▶ Cluster (one per configuration and user) ─▶ Image (opened once, shared by all reactors)
//!                                                           ▲ start            │ collect, after its eventfd rang
//!                                                        Requests (of one reactor: owns the buffers in flight)
//! ```
//!
//! librbd queues completions and writes to the eventfd ([`Image::collect`]). librados can only call: what it calls writes
//! four bytes into a pipe ([`ObjectRequests`]) and touches no memory. Calls that wait for the cluster say so; all others
//! return at once.

#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

#[cfg(any(test, feature = "double"))]
pub mod double;

mod cluster;
mod error;
mod functions;
mod image;
mod library;
mod object_requests;
mod objects;
mod requests;
mod search;

pub use cluster::{Cluster, ClusterName};
pub use error::Error;
pub use image::{Access, Ended, Image, ImageName};
pub use library::Library;
pub use object_requests::{FinishedObject, ObjectRequest, ObjectRequests, UnstartedObject, Waker};
pub use objects::Objects;
pub use requests::{Finished, Request, Requests, Unstarted};
pub use search::OnData;
