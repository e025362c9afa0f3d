//! Logs: text for people, JSON lines for machines, both on standard error.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::log_limit::LimitedStderr;

/// What is logged, and how.
#[derive(Debug, Args)]
pub(crate) struct LogOptions {
    /// What to log: error, warn, info, debug, trace, or filters such as "info,nvlane_target=debug". [default: info for
    /// a target, else warn]
    #[arg(long, global = true, env = "NVLANE_LOG", value_name = "FILTER", help_heading = "Log")]
    log: Option<String>,
    /// How to write it.
    #[arg(long, global = true, default_value = "text", value_name = "FORMAT", help_heading = "Log")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// Starts logging, at `usual` unless told otherwise. Only the first call of a process counts.
pub(crate) fn start(options: &LogOptions, usual: &str) {
    let wanted = options.log.as_deref().unwrap_or(usual);
    let filter = EnvFilter::try_new(wanted).unwrap_or_else(|error| {
        eprintln!("nvlane: --log {wanted:?}: {error}; logging at {usual}");
        EnvFilter::new(usual)
    });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        // Whoever read the log may be gone. To complain of that on standard error would be a panic.
        .log_internal_errors(false)
        .with_writer(LimitedStderr::new(matches!(options.log_format, LogFormat::Json)));
    // A second start, in tests, changes nothing.
    let _ = match options.log_format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
