//! A target as its operator configures it and its hosts see it: the configuration file, and targets over real sockets.

#[path = "../support/mod.rs"]
mod support;

mod authentication;
mod config;
mod deadlines;
mod fused;
mod key_rights;
mod key_value;
mod order_of_answers;
mod rights;
