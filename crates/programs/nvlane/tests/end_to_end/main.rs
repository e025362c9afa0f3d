//! The target's data path, reached by the host library over loopback: every command, every combination of negotiated
//! options, and failures.
#![allow(clippy::cast_possible_truncation)]

mod aborts;
mod allocated;
mod audit;
mod authentication;
mod boundaries;
mod churn;
mod concatenation;
mod corruption;
mod counters;
mod doorbells;
mod edges;
mod endings;
mod exercise;
mod exhaustion;
mod far_blocks;
mod filters;
mod fused;
mod key_value;
mod key_value_large;
mod key_value_map;
mod key_value_protocols;
mod key_value_values;
mod linear;
mod matrix;
mod memcached_partitions;
mod memcached_trust;
mod placement;
mod rate_limits;
#[allow(dead_code)] // Each test program uses a part of it.
mod raw;
mod refusals;
mod relay;
mod reloads;
mod rights;
mod segments;
mod setup;
mod storage;
mod strangers;
mod tls;
mod tls_relay;
mod zero_copy;
