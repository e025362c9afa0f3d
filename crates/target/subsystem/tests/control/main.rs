//! The control plane driven directly: no sockets, no threads, a clock that the tests move.

mod any_requests;
mod authentication;
mod concatenation;
mod connect;
mod discovery;
mod events;
mod harness;
mod hosts;
mod identify;
mod lifecycle;
mod log_models;
mod namespaces;
mod pages;
mod reload;
mod rights;
mod unauthenticated;
