//! `feedrail read`: copies a byte range of a namespace to stdout or a file.

use std::io::{self, StdoutLock, Write};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use crate::interrupt::{Interrupt, Interrupted};
use crate::options::{NamespaceArgs, RangeArgs};
use crate::output::{check_stdout, stdout_error};
use crate::partial_file::PartialFile;
use crate::session::Session;
use crate::stream::{self, RangePieces};
use crate::transfer::TransferArgs;

const EXAMPLES: &str = "\
Examples:
  feedrail read -a 192.0.2.10 -n NQN > copy
  feedrail read -a 192.0.2.10 -n NQN --offset 1M --length 4K | xxd
  feedrail read -a 192.0.2.10 -n NQN --namespace-id 7 --file shard-7.bin";

/// Reads a byte range of a namespace
///
/// Offset and length need no alignment. A range beyond the end is an error, and nothing is written.
/// The output file is renamed into place when it is complete: after an error or Ctrl-C, an older
/// file is unchanged.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Read {
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    range: RangeArgs,
    /// Write to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Read {
    pub(crate) fn run(&self) -> Result<()> {
        let session = Session::open(&self.namespace.subsystem)?;
        let namespace = session.namespace(self.namespace.namespace_id)?;
        let size_bytes = namespace.info().size_bytes;
        let (offset, length) = self.clip(size_bytes)?;
        let mut sink = self.sink()?;
        let pieces = RangePieces::new(offset, length, namespace.info().block_bytes);
        // From here on Ctrl-C sets a flag, so that the temporary file is deleted.
        let interrupt = Interrupt::install()?;
        let mut transfer = TransferArgs::begin("read", Some(length));
        let result = stream::read(session.host(), namespace, pieces, &interrupt, &mut |bytes| {
            sink.write_all(bytes).map_err(|error| self.explain(error))?;
            transfer.add(bytes.len() as u64);
            Ok(())
        });
        result.map_err(|error| match error.is::<Interrupted>() {
            true => error.context(self.what_is_left(transfer.done_bytes(), length)),
            false => error,
        })?;
        sink.finish().map_err(|error| self.explain(error))?;
        transfer.end();
        Ok(())
    }

    /// Describes what was written before Ctrl-C, for the error message.
    fn what_is_left(&self, done: u64, length: u64) -> String {
        match &self.file {
            None => format!("{done} of {length} bytes were written to stdout"),
            Some(path) => format!("{} was not written", path.display()),
        }
    }

    /// Returns offset and length of the range to read, which must lie within `size_bytes`.
    fn clip(&self, size_bytes: u64) -> Result<(u64, u64)> {
        let offset = self.range.offset.0;
        let length = self.range.length.map_or(size_bytes.saturating_sub(offset), |length| length.0);
        let inside = offset.checked_add(length).is_some_and(|end| end <= size_bytes);
        ensure!(
            inside,
            "{length} bytes at {offset} go past the end: namespace {} has {size_bytes} bytes",
            self.namespace.namespace_id
        );
        Ok((offset, length))
    }

    fn sink(&self) -> Result<Sink> {
        match &self.file {
            None => check_stdout().map(|()| Sink::Stdout(io::stdout().lock())),
            Some(path) => PartialFile::create(path).map(Sink::File),
        }
    }

    fn explain(&self, error: io::Error) -> anyhow::Error {
        match &self.file {
            None => stdout_error(error),
            Some(path) => {
                anyhow::Error::new(error).context(format!("cannot write {}", path.display()))
            }
        }
    }
}

/// Destination of the data.
enum Sink {
    Stdout(StdoutLock<'static>),
    File(PartialFile),
}

impl Sink {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.write_all(bytes),
            Self::File(file) => file.write_all(bytes),
        }
    }

    /// Flushes stdout, or renames the complete file to its final name.
    fn finish(self) -> io::Result<()> {
        match self {
            Self::Stdout(mut stdout) => stdout.flush(),
            Self::File(file) => file.finish(),
        }
    }
}
