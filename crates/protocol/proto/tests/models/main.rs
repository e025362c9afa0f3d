//! Both ends of a queue pair, and the queue of events, compared with simple models, for any order of what happens: slots,
//! ids, tags, R2Ts, aborts while data is in flight, completions in any order, sends that stop anywhere. wire §4.3, §28.23

#![allow(clippy::cast_possible_truncation)]

#[path = "../harness/ends.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod ends;
#[path = "../harness/pdus.rs"]
#[allow(dead_code)]
mod pdus;

mod controller;
mod events;
mod host;
