//! The format of the log on standard error.

use std::fmt;
use std::io::IsTerminal as _;

use clap::ValueEnum;
use rustix::fs::fstat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer, format};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use super::LogFilter;
use super::lines::DroppedLinesNotice;
use super::log_filter::colours_are_wanted;

/// The format of the log, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormatArg {
    /// That of the journal where systemd's journal reads it, else text
    Auto,
    /// Time, level, message and fields
    Text,
    /// An object for each line: timestamp, level, message and fields
    Json,
    /// Without time, and with priorities as sd-daemon(3) has them
    Journal,
}

/// How lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogFormat {
    Text,
    Json,
    Journal,
}

impl LogFormatArg {
    /// The format that it stands for.
    pub(super) fn resolve(self) -> LogFormat {
        match self {
            Self::Auto if is_read_by_the_journal() => LogFormat::Journal,
            Self::Auto | Self::Text => LogFormat::Text,
            Self::Json => LogFormat::Json,
            Self::Journal => LogFormat::Journal,
        }
    }
}

impl LogFormat {
    /// Has events logged so, unless the process has a log already.
    pub(super) fn start<W>(self, filter: &LogFilter, writer: W)
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter.to_filter())
            .with_writer(writer)
            // It would report a standard error that takes nothing on standard error, and panic
            // over that.
            .log_internal_errors(false)
            .with_ansi(std::io::stderr().is_terminal() && colours_are_wanted())
            .with_target(false);
        let _ = match self {
            Self::Text => log.try_init(),
            Self::Journal => log.event_format(WithPriority).try_init(),
            Self::Json => {
                let log = log.json().flatten_event(true);
                log.with_current_span(false).with_span_list(false).try_init()
            }
        };
    }

    /// A line of an error that is not an event.
    pub(super) fn error_line(self, message: &str) -> String {
        match self {
            Self::Text => format!("feedrail-target: {message}\n"),
            Self::Journal => format!("<{}>{message}\n", priority(Level::ERROR)),
            Self::Json => {
                let line = serde_json::json!({ "level": "ERROR", "message": message });
                format!("{line}\n")
            }
        }
    }

    /// The line that stands where lines were dropped.
    pub(super) fn dropped_lines_notice(self) -> DroppedLinesNotice {
        match self {
            Self::Text => |lines| Self::Text.error_line(&dropped(lines)),
            Self::Json => |lines| Self::Json.error_line(&dropped(lines)),
            Self::Journal => |lines| Self::Journal.error_line(&dropped(lines)),
        }
    }
}

fn dropped(lines: u64) -> String {
    format!("{lines} lines of the log were dropped, since its reader was too slow")
}

/// Whether standard error is the stream that systemd names: device and inode (systemd.exec(5),
/// `JOURNAL_STREAM`).
fn is_read_by_the_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(std::io::stderr()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Lines with a priority in front, and without what the journal knows itself.
struct WithPriority;

impl<S, N> FormatEvent<S, N> for WithPriority
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        let plain = format().without_time().with_level(false).with_target(false);
        plain.with_ansi(false).format_event(context, writer, event)
    }
}

/// The priority of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}
