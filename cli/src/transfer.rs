//! Progress and summary of a long read or write.

use std::time::Instant;

use crate::clock::now;
use crate::output;
use crate::progress::Progress;
use crate::size::human;

pub(crate) struct TransferArgs {
    verb: &'static str,
    began: Instant,
    done_bytes: u64,
    progress: Progress,
}

impl TransferArgs {
    /// `verb` is the summary's first word: "read" or "wrote".
    pub(crate) fn begin(verb: &'static str, total_bytes: Option<u64>) -> Self {
        Self { verb, began: now(), done_bytes: 0, progress: Progress::transfer(total_bytes) }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        self.progress.add(bytes);
    }

    pub(crate) fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    /// Prints the number of bytes and the rate on stderr, once everything was transferred. Returns
    /// the time in seconds.
    pub(crate) fn end(self) -> f64 {
        let Self { verb, began, done_bytes, progress } = self;
        drop(progress);
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        output::note(format_args!(
            "{verb} {done_bytes} bytes ({}) in {seconds:.2} s, {:.1} MB/s",
            human(done_bytes),
            done_bytes as f64 / seconds / 1e6
        ));
        seconds
    }
}
