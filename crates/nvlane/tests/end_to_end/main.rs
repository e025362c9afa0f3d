//! The target's data path, reached with the host library over loopback: what every command does, in every way in which
//! two ends can agree, and under what goes wrong.
#![allow(clippy::cast_possible_truncation)]

mod aborts;
mod churn;
mod corruption;
mod counters;
mod doorbells;
mod edges;
mod endings;
mod exercise;
mod exhaustion;
mod filters;
mod fused;
mod key_value;
mod key_value_large;
mod key_value_protocols;
mod linear;
mod matrix;
mod placement;
#[allow(dead_code)] // Each test program uses a part of it.
mod raw;
mod refusals;
mod relay;
mod reloads;
mod segments;
mod setup;
mod storage;
mod zero_copy;
