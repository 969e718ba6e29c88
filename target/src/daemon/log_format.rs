//! Format of the log on standard error.

use std::fmt;

use clap::ValueEnum;
use rdma::Time;
use rustix::fs::fstat;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer, format};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

use super::LogFilter;
use super::line_rate::LineRate;
use super::lines::{DroppedLinesNotice, LineWriter};
use super::log_filter::colours_are_wanted;
use super::one_line::OneLineFields;
use crate::driver::clock::Clock;
use crate::log_level::LogLevel;

/// Format of the log as given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormatArg {
    /// `journal` if systemd's journal reads it, else `text`
    Auto,
    /// Time, level, message and fields
    Text,
    /// An object for each line: timestamp, level, message and fields
    Json,
    /// No time; priorities as in sd-daemon(3)
    Journal,
}

/// Format of log lines, see [`LogFormatArg`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogFormat {
    pub(super) style: LineStyle,
    /// Name of the program, where lines have it.
    pub(super) program: &'static str,
}

/// Parts of a line besides its message and fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineStyle {
    Text,
    Json,
    Journal,
    /// Priority, program and process, as `/dev/log` takes them.
    Syslog,
}

impl LogFormatArg {
    /// Returns the format; `Auto` becomes `Journal` if standard error goes to the journal, else
    /// `Text`.
    pub(super) fn resolve(self) -> LogFormat {
        let style = match self {
            Self::Auto if is_read_by_the_journal() => LineStyle::Journal,
            Self::Auto | Self::Text => LineStyle::Text,
            Self::Json => LineStyle::Json,
            Self::Journal => LineStyle::Journal,
        };
        LogFormat { style, program: "feedrail-target" }
    }
}

impl LogFormat {
    /// Installs the log in this format, unless the process has one already. Lines for a terminal
    /// have colours, if these are wanted.
    pub(super) fn start(self, filter: &LogFilter, lines: LineWriter, is_terminal: bool) {
        let clock = Clock::new();
        let targets = filter.to_filter();
        let level = Layer::<Registry>::max_level_hint(&targets).unwrap_or(LevelFilter::TRACE);
        let (layer, handle) = reload::Layer::new(targets);
        let colours = is_terminal && colours_are_wanted();
        if self.subscriber(layer, lines, colours, move || clock.now()).try_init().is_ok() {
            let set_filter = move |text: &str| {
                let filter: LogFilter = text.parse().map_err(|error| format!("{error}"))?;
                handle.reload(filter.to_filter()).map_err(|error| error.to_string())
            };
            LogLevel::register(filter.to_string(), level, Box::new(set_filter));
        }
    }

    /// Creates the subscriber: it writes each event as one line, escapes text and limits the rate.
    fn subscriber(
        self,
        filter: impl Layer<Registry> + Send + Sync,
        lines: LineWriter,
        colours: bool,
        clock: impl Fn() -> Time + Send + Sync + 'static,
    ) -> impl Subscriber + Send + Sync + 'static {
        let notices = lines.clone();
        let notice = move |left_out, metadata: &Metadata<'_>| {
            notices.push(self.error_line(&too_many(left_out, metadata)).into_bytes());
        };
        let log = tracing_subscriber::fmt::layer()
            .with_writer(move || lines.clone())
            // Otherwise the layer reports failed writes to standard error there, and panics if that
            // fails too.
            .log_internal_errors(false)
            .with_ansi(colours)
            .with_target(false)
            .fmt_fields(OneLineFields);
        let log = match self.style {
            LineStyle::Text => log.boxed(),
            LineStyle::Journal | LineStyle::Syslog => log.event_format(WithPriority(self)).boxed(),
            LineStyle::Json => {
                let log = log.json().flatten_event(true);
                log.with_current_span(false).with_span_list(false).boxed()
            }
        };
        tracing_subscriber::registry().with(filter).with(LineRate::new(clock, notice)).with(log)
    }

    /// Returns the line for an error that is not a `tracing` event.
    pub(super) fn error_line(self, message: &str) -> String {
        match self.style {
            LineStyle::Text => format!("{}: {message}\n", self.program),
            LineStyle::Journal | LineStyle::Syslog => {
                format!("{}{message}\n", self.front(Level::ERROR))
            }
            LineStyle::Json => {
                let line = serde_json::json!({ "level": "ERROR", "message": message });
                format!("{line}\n")
            }
        }
    }

    /// Prefix that readers take off a line to sort lines by priority.
    fn front(self, level: Level) -> String {
        match self.style {
            LineStyle::Syslog => {
                let priority = SYSLOG_DAEMON + priority(level);
                format!("<{priority}>{}[{}]: ", self.program, std::process::id())
            }
            _ => format!("<{}>", priority(level)),
        }
    }

    /// Returns the function for the line that replaces dropped lines.
    pub(super) fn dropped_lines_notice(self) -> DroppedLinesNotice {
        Box::new(move |lines| self.error_line(&dropped(lines)))
    }
}

fn too_many(left_out: u64, metadata: &Metadata<'_>) -> String {
    let place = metadata.target();
    format!("{left_out} lines of {place} were left out, since there were too many like them")
}

fn dropped(lines: u64) -> String {
    format!("{lines} lines of the log were dropped, since its reader was too slow")
}

/// Whether standard error is the stream that systemd names: device and inode (systemd.exec(5),
/// `JOURNAL_STREAM`).
pub(super) fn is_read_by_the_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(std::io::stderr()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// The facility `daemon` of syslog(3), as part of a priority.
const SYSLOG_DAEMON: u8 = 3 << 3;

/// Lines that start with a priority and omit what their reader records itself.
struct WithPriority(LogFormat);

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
        writer.write_str(&self.0.front(*event.metadata().level()))?;
        let plain = format().without_time().with_level(false).with_target(false);
        plain.with_ansi(false).format_event(context, writer, event)
    }
}

/// syslog(3) priority of a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::limits::{PEER_MESSAGES, PEER_MESSAGES_PERIOD};

    /// Text of a log of this format with `count` lines of strangers in each of two periods.
    fn log_of(format: LogFormat, count: u32) -> String {
        let (reader, writer) = std::io::pipe().unwrap();
        let lines = LineWriter::to(&writer, "log", format.dropped_lines_notice()).unwrap();
        drop(writer);
        let text = std::thread::spawn(move || std::io::read_to_string(reader).unwrap());
        let time = Arc::new(AtomicU64::new(1));
        let now = Arc::clone(&time);
        let clock = move || Time::from_nanos(now.load(Ordering::Relaxed));
        let subscriber = format.subscriber(LevelFilter::INFO, lines.clone(), false, clock);
        let strange = "name\nERROR forged\u{1b}[2J";
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..2 {
                (0..count).for_each(|_| tracing::warn!(strange, shown = %strange, "of {strange}"));
                let period = u64::try_from(PEER_MESSAGES_PERIOD.as_nanos()).unwrap();
                time.fetch_add(period, Ordering::Relaxed);
            }
        });
        lines.flush(Duration::from_secs(60));
        drop(lines);
        text.join().unwrap()
    }

    #[test]
    fn strangers_write_neither_many_lines_nor_lines_of_their_own() {
        for style in [LineStyle::Text, LineStyle::Journal, LineStyle::Json, LineStyle::Syslog] {
            let format = LogFormat { style, program: "feedrail-test" };
            let log = log_of(format, 10 * PEER_MESSAGES);
            let lines = log.lines().count();
            assert_eq!(lines, 2 * PEER_MESSAGES as usize + 1, "{format:?}");
            let left_out = format!("{} lines of feedrail_target", 9 * PEER_MESSAGES);
            assert_eq!(log.matches(&left_out).count(), 1, "{format:?}");
            assert!(!log.lines().any(|line| line.starts_with("ERROR")), "{format:?}");
            assert!(!log.contains('\u{1b}'), "{format:?}");
            assert!(log.contains(r"of name\nERROR forged\"), "{format:?}: {log}");
        }
    }

    #[test]
    fn lines_for_syslog_name_the_program() {
        let log = log_of(LogFormat { style: LineStyle::Syslog, program: "feedrail-test" }, 1);
        let front = format!("<28>feedrail-test[{}]: of name", std::process::id());
        assert!(log.lines().all(|line| line.starts_with(&front)), "{log}");
    }
}
