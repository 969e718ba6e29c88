//! Logs of long-lived processes other than the daemon: the same lines, with the same limits.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::LogFilter;
use super::lines::LineWriter;
use super::log_format::{LineStyle, LogFormat, is_read_by_the_journal};

/// Socket of syslog, or of systemd's journal.
const SYSLOG: &str = "/dev/log";

/// Longest delay of the process's end by a slow reader.
const READER_TIMEOUT: Duration = Duration::from_secs(1);

/// The log of this process, which a thread writes.
pub struct ProcessLog(LineWriter);

/// Destination of a log.
#[derive(Debug)]
pub struct LogOutput(OutputKind);

#[derive(Debug)]
enum OutputKind {
    /// A terminal or another reader of standard error.
    StandardError,
    Journal,
    Syslog(SyslogSocket),
    File(File),
}

impl LogOutput {
    /// Standard error, with priorities if systemd's journal reads it.
    pub fn standard_error() -> Self {
        Self(if is_read_by_the_journal() { OutputKind::Journal } else { OutputKind::StandardError })
    }

    /// The log of a process without a terminal: systemd's journal if it reads standard error, else
    /// syslog. `None` if neither is there.
    pub fn of_background() -> Option<Self> {
        if is_read_by_the_journal() {
            return Some(Self(OutputKind::Journal));
        }
        SyslogSocket::connect(SYSLOG.as_ref()).ok().map(OutputKind::Syslog).map(Self)
    }

    /// The end of a file, which is created if it does not exist.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn file(path: &Path) -> io::Result<Self> {
        File::options().append(true).create(true).open(path).map(OutputKind::File).map(Self)
    }
}

impl ProcessLog {
    /// Starts the log, unless the process has one already.
    ///
    /// # Errors
    /// A descriptor or a thread is not available.
    pub fn start(
        program: &'static str,
        filter: &LogFilter,
        LogOutput(output): LogOutput,
    ) -> io::Result<Self> {
        let style = match &output {
            OutputKind::StandardError | OutputKind::File(_) => LineStyle::Text,
            OutputKind::Journal => LineStyle::Journal,
            OutputKind::Syslog(_) => LineStyle::Syslog,
        };
        let is_terminal = matches!(output, OutputKind::StandardError) && io::stderr().is_terminal();
        let format = LogFormat { style, program };
        let (name, notice) = ("feedrail-log", format.dropped_lines_notice());
        let lines = match output {
            OutputKind::StandardError | OutputKind::Journal => {
                LineWriter::to(io::stderr(), name, notice)
            }
            OutputKind::Syslog(socket) => LineWriter::into(socket, name, notice),
            OutputKind::File(file) => LineWriter::into(file, name, notice),
        }?;
        format.start(filter, lines.clone(), is_terminal);
        Ok(Self(lines))
    }

    /// Waits until the lines so far are written, at most for a second.
    pub fn flush(&self) {
        self.0.flush(READER_TIMEOUT);
    }
}

/// Connection to syslog, which is made again after its reader was restarted.
#[derive(Debug)]
struct SyslogSocket {
    path: PathBuf,
    socket: UnixDatagram,
}

impl SyslogSocket {
    fn connect(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Self { path: path.to_owned(), socket })
    }
}

impl Write for SyslogSocket {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let sent = self.socket.send(line.trim_ascii_end()).or_else(|_| {
            self.socket = UnixDatagram::unbound()?;
            self.socket.connect(&self.path)?;
            self.socket.send(line.trim_ascii_end())
        });
        sent.map(|_| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syslog_is_found_again_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut received = [0; 100];
        let reader = UnixDatagram::bind(&path).unwrap();
        let mut socket = SyslogSocket::connect(&path).unwrap();
        socket.write_all(b"<28>one\n").unwrap();
        let length = reader.recv(&mut received).unwrap();
        assert_eq!(&received[..length], b"<28>one");
        drop(reader);
        std::fs::remove_file(&path).unwrap();
        assert!(socket.write_all(b"<28>nobody reads this\n").is_err());
        let reader = UnixDatagram::bind(&path).unwrap();
        socket.write_all(b"<28>two\n").unwrap();
        let length = reader.recv(&mut received).unwrap();
        assert_eq!(&received[..length], b"<28>two");
    }
}
