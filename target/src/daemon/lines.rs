//! Queue of lines for standard output or standard error, whose reader may be slow or stop, without
//! blocking the target.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};

/// Most lines in the queue; further ones are dropped and counted.
const QUEUE_LINES: usize = 4096;

/// Sending end of the queue, which never blocks. Clones share one queue.
#[derive(Clone)]
pub(super) struct LineWriter {
    queue: Sender<LogEntry>,
    dropped: Arc<AtomicU64>,
}

enum LogEntry {
    Line {
        text: Vec<u8>,
        /// Number of lines that were dropped between the previous line and this one.
        dropped_before: u64,
    },
    /// Request for a reply once all lines before it are written.
    Flush(Sender<()>),
}

/// Function that returns the line to write in place of this number of dropped lines.
pub(super) type DroppedLinesNotice = Box<dyn Fn(u64) -> String + Send>;

impl LineWriter {
    /// Starts a thread that writes the lines to a descriptor. It bypasses the locks of the standard
    /// library, which a panicking thread may hold.
    ///
    /// # Errors
    /// The descriptor cannot be duplicated, or the thread cannot be started.
    pub(super) fn to(
        descriptor: impl AsFd,
        name: &str,
        notice: DroppedLinesNotice,
    ) -> io::Result<Self> {
        Self::into(File::from(descriptor.as_fd().try_clone_to_owned()?), name, notice)
    }

    /// Starts a thread that writes lines, each by one call of `out`.
    ///
    /// # Errors
    /// A thread is not available.
    pub(super) fn into(
        out: impl Write + Send + 'static,
        name: &str,
        notice: DroppedLinesNotice,
    ) -> io::Result<Self> {
        Self::start(out, name, notice, QUEUE_LINES)
    }

    fn start(
        out: impl Write + Send + 'static,
        name: &str,
        notice: DroppedLinesNotice,
        queue_lines: usize,
    ) -> io::Result<Self> {
        let (queue, lines) = bounded(queue_lines);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer { out, lines, notice, dropped: Arc::clone(&dropped) };
        let early = crate::confinement::EarlyThread::announce();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            early.enter();
            writer.run();
        })?;
        Ok(Self { queue, dropped })
    }

    /// Queues a line, which includes its newline. The line is dropped if the queue is full.
    pub(super) fn push(&self, text: Vec<u8>) {
        let dropped_before = self.dropped.swap(0, Ordering::Relaxed);
        match self.queue.try_send(LogEntry::Line { text, dropped_before }) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.dropped.fetch_add(dropped_before + 1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until all queued lines are written; for at most `timeout` until there is room in the
    /// queue, and as long again.
    pub(super) fn flush(&self, timeout: Duration) {
        let (done, written) = bounded(1);
        if self.queue.send_timeout(LogEntry::Flush(done), timeout).is_ok() {
            let _ = written.recv_timeout(timeout);
        }
    }
}

/// `tracing` passes one whole line per call.
impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Writer<W> {
    out: W,
    lines: Receiver<LogEntry>,
    notice: DroppedLinesNotice,
    dropped: Arc<AtomicU64>,
}

impl<W: Write> Writer<W> {
    fn run(mut self) {
        while let Ok(entry) = self.lines.recv() {
            match entry {
                LogEntry::Line { text, dropped_before } => {
                    self.report_dropped(dropped_before);
                    self.write(&text);
                }
                LogEntry::Flush(done) => {
                    let dropped = self.dropped.swap(0, Ordering::Relaxed);
                    self.report_dropped(dropped);
                    let _ = done.send(());
                }
            }
            if self.lines.is_empty() {
                let dropped = self.dropped.swap(0, Ordering::Relaxed);
                self.report_dropped(dropped);
            }
        }
    }

    fn report_dropped(&mut self, dropped: u64) {
        if dropped > 0 {
            let notice = (self.notice)(dropped);
            self.write(notice.as_bytes());
        }
    }

    /// Writes a line. Errors are ignored: a closed pipe or a full disk must not stop the target.
    fn write(&mut self, text: &[u8]) {
        let _ = self.out.write_all(text).and_then(|()| self.out.flush());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

    fn notice() -> DroppedLinesNotice {
        Box::new(|dropped| format!("{dropped} dropped\n"))
    }

    #[test]
    fn lines_arrive_in_order() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let lines = LineWriter::start(writer, "lines", notice(), 8).expect("a thread");
        for line in ["a\n", "b\n", "c\n"] {
            lines.push(line.into());
        }
        lines.flush(FLUSH_TIMEOUT);
        drop(lines);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("text");
        assert_eq!(text, "a\nb\nc\n");
    }

    #[test]
    fn a_stopped_reader_blocks_no_thread() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let lines = LineWriter::start(writer, "lines", notice(), 8).expect("a thread");
        // More than the queue and a pipe of any usual size hold.
        let line = [vec![b'x'; 1 << 20], b"\n".to_vec()].concat();
        for _ in 0..100 {
            lines.push(line.clone());
        }
        lines.flush(Duration::from_millis(1));
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        lines.flush(FLUSH_TIMEOUT);
        lines.push(b"last\n".into());
        lines.flush(FLUSH_TIMEOUT);
        drop(lines);
        let text = read.join().expect("no panic").expect("text");
        let told: u64 = (text.lines())
            .filter_map(|line| line.strip_suffix(" dropped")?.parse::<u64>().ok())
            .sum();
        let written = text.lines().filter(|line| line.starts_with('x')).count() as u64;
        assert_eq!(told + written, 100);
        assert!(told >= 91, "one was being written, eight waited");
        assert!(text.ends_with("\nlast\n"));
    }

    #[test]
    fn a_reader_that_left_ends_nothing() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let lines = LineWriter::start(writer, "lines", notice(), 8).expect("a thread");
        for _ in 0..100 {
            lines.push(b"x\n".into());
        }
        lines.flush(FLUSH_TIMEOUT);
    }
}
