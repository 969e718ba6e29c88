//! `feedrail read`: a byte range of a namespace to stdout or a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::args::{Namespace, Range};
use crate::output::stdout_error;
use crate::session::Session;
use crate::stream::{self, Pieces};

const EXAMPLES: &str = "\
Examples:
  feedrail read -a 192.0.2.10 -n NQN > copy
  feedrail read -a 192.0.2.10 -n NQN --offset 1M --length 4K | xxd
  feedrail read -a 192.0.2.10 -n NQN --namespace-id 7 --file shard-7.bin";

/// Reads a byte range of a namespace
///
/// Any offset and length will do; a range that goes past the end is an error, and then nothing is written.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Read {
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    range: Range,
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
        let pieces = Pieces::new(offset, length, namespace.info().block_bytes);
        stream::read(session.host(), namespace, pieces, &mut |bytes| {
            sink.write_all(bytes).map_err(|error| self.explain(error))
        })?;
        sink.flush().map_err(|error| self.explain(error))
    }

    /// The range to read, which must lie within `size_bytes`.
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

    fn sink(&self) -> Result<Box<dyn Write>> {
        Ok(match &self.file {
            None => Box::new(io::stdout().lock()),
            Some(path) => {
                let created = File::create(path);
                Box::new(created.with_context(|| format!("cannot write {}", path.display()))?)
            }
        })
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
