//! `feedrail write`: copies stdin or a file to a byte range of a namespace.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::interrupt::Interrupt;
use crate::options::{NamespaceArgs, RangeArgs};
use crate::session::Session;
use crate::stream::{self, RangePieces};
use crate::transfer::TransferArgs;

/// Longest wait for input before Ctrl-C is checked.
const LOOK_UP_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

const EXAMPLES: &str = "\
Examples:
  feedrail write -a 192.0.2.10 -n NQN --file shard.bin
  head -c 4K /dev/urandom | feedrail write -a 192.0.2.10 -n NQN --offset 1M --length 4K";

/// Writes a byte range of a namespace, and flushes it to the medium
///
/// Offset and length need no alignment. Blocks at an unaligned edge are read, modified and written
/// back: if two hosts write different parts of one block at the same time, the bytes of one are
/// lost without an error.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Write {
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    range: RangeArgs,
    /// Read from this file instead of stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Write {
    pub(crate) fn run(&self) -> Result<()> {
        let session = Session::open(&self.namespace.subsystem)?;
        let namespace = session.namespace(self.namespace.namespace_id)?;
        let size_bytes = namespace.info().size_bytes;
        let offset = self.range.offset.0;
        let room = size_bytes.saturating_sub(offset);
        let (mut source, length) = self.source()?;
        let length = self.range.length.map(|length| length.0).or(length);
        ensure!(
            offset <= size_bytes && length.unwrap_or(0) <= room,
            "{} bytes at {offset} go past the end: namespace {} has {size_bytes} bytes",
            length.unwrap_or(0),
            self.namespace.namespace_id
        );
        let pieces = RangePieces::new(offset, length.unwrap_or(room), namespace.info().block_bytes);
        // From here on Ctrl-C lets writes in flight end, and the error says how far they got.
        let interrupt = Interrupt::install()?;
        let mut transfer = TransferArgs::begin("wrote", length);
        let written = stream::write(
            session.host(),
            namespace.clone(),
            pieces,
            &interrupt,
            &mut |buffer| fill(&mut source, buffer, &interrupt),
            &mut |bytes| transfer.add(bytes),
        )?;
        if written > 0 {
            namespace
                .flush()
                .wait()
                .context("the data was written but could not be flushed to the medium")?;
        }
        self.check_all_taken(length, written, room, &mut source)?;
        transfer.end();
        Ok(())
    }

    /// Opens the input. Returns its length if it is a regular file.
    fn source(&self) -> Result<(File, Option<u64>)> {
        let Some(path) = &self.file else {
            // Unbuffered, so that poll(2) sees all unread data, and each read requests up to a
            // whole piece.
            return Ok((io::stdin().as_fd().try_clone_to_owned()?.into(), None));
        };
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let metadata = file.metadata()?;
        let length = metadata.is_file().then_some(metadata.len());
        Ok((file, length))
    }

    fn check_all_taken(
        &self,
        length: Option<u64>,
        written: u64,
        room: u64,
        source: &mut File,
    ) -> Result<()> {
        match length {
            Some(length) => {
                ensure!(
                    written == length,
                    "the input ended after {written} of {length} bytes, which were written"
                );
            }
            None => {
                let more = written == room && source.read(&mut [0])? > 0;
                ensure!(
                    !more,
                    "the namespace is full: {written} bytes were written, and the input has more"
                );
            }
        }
        Ok(())
    }
}

/// Reads until `buffer` is full or the input ends. Returns the number of bytes read.
///
/// # Errors
/// The input cannot be read, or a signal arrived.
fn fill(source: &mut File, buffer: &mut [u8], interrupt: &Interrupt) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        interrupt.check()?;
        let mut readable = [PollFd::new(&*source, PollFlags::IN)];
        // A signal makes poll return early with EINTR, and a read could then block.
        if matches!(poll(&mut readable, Some(&LOOK_UP_AFTER)), Ok(0) | Err(Errno::INTR)) {
            continue;
        }
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(anyhow::Error::new(error).context("cannot read the input")),
        }
    }
    Ok(filled)
}
