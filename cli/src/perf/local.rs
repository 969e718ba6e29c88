//! Baseline: reads of a local file by threads, through the page cache, as data loaders do.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};
use serde_json::{Value, json};

use super::job::IoIterator;
use super::measure::Measure;
use super::workload::IoDirection;
use crate::clock::now;
use crate::file_map::FileMap;
use crate::interrupt::Interrupt;

/// Way in which a thread reads a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessMethod {
    /// `pread` into the thread's buffer.
    Pread,
    /// Copy from the mapped file into the thread's buffer.
    Mmap,
}

/// Result of one access method.
pub(crate) struct Baseline {
    way: AccessMethod,
    measure: Measure,
    elapsed: Duration,
}

/// Limits after which a thread ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until<'a> {
    pub(crate) runtime: Option<Duration>,
    pub(crate) ios: Option<u64>,
    /// Bytes of the longest read, and of each buffer.
    pub(crate) longest_bytes: usize,
    pub(crate) interrupt: &'a Interrupt,
}

impl AccessMethod {
    pub(crate) const ALL: [Self; 2] = [Self::Pread, Self::Mmap];

    fn name(self) -> &'static str {
        match self {
            Self::Pread => "pread",
            Self::Mmap => "mmap",
        }
    }

    /// Drops the file from the page cache, then runs one thread for each workload, which must only
    /// read, until it has ended or is interrupted.
    pub(crate) fn measure(
        self,
        path: &Path,
        workloads: Vec<IoIterator>,
        until: Until<'_>,
    ) -> Result<Baseline> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        // Pages that the kernel keeps nevertheless are cached for both methods.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        let source = LocalFile::new(self, file)?;
        let start = now();
        let measure = read_in_threads(&source, workloads, until, thread::Builder::new)?;
        Ok(Baseline { way: self, measure, elapsed: start.elapsed() })
    }
}

impl Baseline {
    pub(crate) fn name(&self) -> &'static str {
        self.way.name()
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "read": self.measure.read.to_json(self.elapsed) })
    }

    pub(crate) fn to_text(&self) -> String {
        format!(
            "{} of the local file:\n{}",
            self.name(),
            self.measure.read.to_text("read", self.elapsed)
        )
    }
}

/// Runs a thread for each workload. If the system refuses one, the others end soon.
fn read_in_threads(
    source: &LocalFile,
    workloads: Vec<IoIterator>,
    until: Until<'_>,
    mut builder: impl FnMut() -> thread::Builder,
) -> Result<Measure> {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let start = |workload| {
            builder().spawn_scoped(scope, move || read_all(source, workload, until, stop))
        };
        let running: io::Result<Vec<_>> = workloads.into_iter().map(start).collect();
        let running = running.inspect_err(|_| stop.store(true, Ordering::Relaxed)).context(
            "cannot start a thread for each read in flight: lower --iodepth or --numjobs",
        )?;
        let mut total = Measure::default();
        for thread in running {
            total.add(&thread.join().expect("a reading thread does not panic")?);
        }
        Ok(total)
    })
}

fn read_all(
    source: &LocalFile,
    workload: IoIterator,
    until: Until<'_>,
    stop: &AtomicBool,
) -> Result<Measure> {
    let mut buffer = vec![0; until.longest_bytes];
    let mut measure = Measure::default();
    let start = now();
    let ios = usize::try_from(until.ios.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    for io in workload.take(ios) {
        let over = until.runtime.is_some_and(|runtime| start.elapsed() >= runtime);
        if over || until.interrupt.check().is_err() || stop.load(Ordering::Relaxed) {
            break;
        }
        let began = now();
        source.read(&mut buffer[..io.length_bytes as usize], io.offset_bytes)?;
        measure.record(IoDirection::Read, io.length_bytes, began.elapsed());
    }
    Ok(measure)
}

/// Open file, for one of the access methods.
enum LocalFile {
    Plain(File),
    Mapped(FileMap),
}

impl LocalFile {
    fn new(way: AccessMethod, file: File) -> Result<Self> {
        Ok(match way {
            AccessMethod::Pread => Self::Plain(file),
            AccessMethod::Mmap => Self::Mapped(FileMap::of(&file).context("cannot map the file")?),
        })
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Self::Plain(file) => file.read_exact_at(into, offset).context("cannot read the file"),
            Self::Mapped(map) => map.copy(offset, into),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::iter;

    use super::super::workload::PerfIo;
    use super::*;

    #[test]
    fn a_refused_thread_ends_the_others_with_error() {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &[0; 512]).unwrap();
        let io = PerfIo { direction: IoDirection::Read, offset_bytes: 0, length_bytes: 512 };
        let workload = || -> IoIterator { Box::new(iter::repeat(io)) };
        let interrupt = &Interrupt::install().unwrap();
        let endless = Until { runtime: None, ios: None, longest_bytes: 512, interrupt };
        // No address space has room for the third one's stack.
        let mut stacks = [1 << 20, 1 << 20, 1 << 60].into_iter();
        let builder = || thread::Builder::new().stack_size(stacks.next().unwrap());
        let workloads = vec![workload(), workload(), workload()];
        let source = LocalFile::new(AccessMethod::Pread, file).unwrap();
        let Err(error) = read_in_threads(&source, workloads, endless, builder) else {
            panic!("a stack of 2^60 bytes")
        };
        assert!(error.to_string().contains("lower --iodepth or --numjobs"), "{error}");
    }
}
