//! Hostile peers, row by row of the list of hostile inputs (P, I, C, D, G, H): what breaks the transport ends the lane
//! with the right TermReq and nothing of it is acted on; what is merely impossible is answered, and the lane lives.
//!
//! Rows that a queue cannot decide (what a command implies, time, sockets) are the driver's; here they show that the
//! queue hands on what the driver needs for it.

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
