//! Metrics of a target for Prometheus, a page for people, and the HTTP server that has them.
//!
//! Metrics are the state of the target ([`subsystem::state`]) in another form: a scrape asks each reactor once, by message, as
//! SIGUSR1 does. The server runs on a thread of its own.
//!
//! ```text
//! server ─▶ Source::scrape ─▶ Observer ── one message per reactor ──▶ reactors
//!    └────▶ render ─▶ text, or live ─▶ JSON of the page and of `nvlane top`
//! ```
#![forbid(unsafe_code)]

mod bounded;
pub mod http;
pub mod live;
mod live_page;
pub mod metric;
mod render;
mod server;

pub use render::{Process, Reloads, Renderer, Scrape, plain_text};
pub use server::{Server, Source};
