//! Logs: text for people, JSON lines for machines, both on standard error.

use std::fmt::{self, Debug, Write};
use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use wire::text::without_hidden;

use crate::journal;
use crate::log_limit::LimitedStderr;

/// Log level and format.
#[derive(Debug, Args)]
pub struct LogOptions {
    /// Log level: error, warn, info, debug, trace or off, or filters per module such as "info,nvlane_subsystem=debug".
    /// [default: info for a target, else warn]
    #[arg(
        long,
        global = true,
        env = "NVLANE_LOG",
        value_name = "FILTER",
        value_parser = filter,
        help_heading = "Log"
    )]
    log: Option<String>,
    /// Log format.
    #[arg(long, global = true, default_value = "text", value_name = "FORMAT", help_heading = "Log")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Parses a filter. A misspelled level would be taken for a module name and silence everything, so it is refused.
fn filter(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let is_ours = |word: &str| !word.contains('[') && (word.starts_with("nvlane") || word.contains('='));
    match text.split(',').find(|word| !is_level(word) && !is_ours(word)) {
        Some(word) => Err(format!(
            "{word:?} is not a log level: write error, warn, info, debug, trace or off, or filters such as info,nvlane_subsystem=debug"
        )),
        None => text.parse::<Targets>().map(|_| text.to_owned()).map_err(|error| error.to_string()),
    }
}

/// Writes a field as `name=value` on one line, with control characters escaped: values contain text from peers. Text
/// that is already quoted and escaped is unchanged.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    if field.name() != "message" {
        let is_styled = writer.has_ansi_escapes();
        let (before, after) = if is_styled { ("\x1b[3m", "\x1b[0m\x1b[2m=\x1b[0m") } else { ("", "=") };
        write!(writer, "{before}{}{after}", field.name())?;
    }
    write!(Visible(writer), "{value:?}")
}

/// Escapes hidden characters.
struct Visible<'a, W>(&'a mut W);

impl<W: Write> Write for Visible<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&without_hidden(text, false))
    }
}

/// Starts logging, at level `usual` unless the options name one. Only the first call of a process counts.
pub fn start(options: &LogOptions, usual: &str) {
    // An empty variable is one that is not set.
    let wanted = options.log.as_deref().filter(|wanted| !wanted.is_empty()).unwrap_or(usual);
    let filter: Targets = wanted.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        // If the reader of the log has closed it, reporting that on standard error would panic.
        .log_internal_errors(false)
        .with_writer(LimitedStderr::new(matches!(options.log_format, LogFormat::Json)));
    // A second start, in tests, changes nothing.
    let _ = match options.log_format {
        LogFormat::Text => {
            let fields = debug_fn(write_field).delimited(" ");
            let layer = layer.with_target(false).fmt_fields(fields);
            // The journal has the time of each line.
            if journal::is_stderr() {
                registry.with(layer.without_time()).try_init()
            } else {
                registry.with(layer).try_init()
            }
        }
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
    };
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn a_filter_that_would_silence_everything_is_none() {
        for good in ["", "warn", "INFO", "off", "info,nvlane_subsystem=debug", "nvlane_subsystem::control"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["inof", "info;debug", "nvlane_subsystem=loud", "nonsense==,", "[span]=debug"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
