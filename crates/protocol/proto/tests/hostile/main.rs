//! Hostile peers, row by row of docs/hostile-inputs.md (P, I, C, D, G, H): a protocol violation ends the lane with the
//! right TermReq and has no effect; a merely invalid command is answered, and the lane stays open.
//!
//! Rows that a queue cannot decide (command semantics, time, sockets) belong to the driver; here they show that the
//! queue passes on the necessary information.

#![allow(clippy::cast_possible_truncation)]

#[path = "../harness/ends.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod ends;
#[path = "../harness/pdus.rs"]
#[allow(dead_code)]
mod pdus;

mod commands;
mod controllers;
mod digests;
mod handshake;
mod headers;
mod write_data;
