//! Writes an index whose number of samples is not known in advance.

use std::io::{self, Seek, SeekFrom, Write};

use zerocopy::IntoBytes;

use super::header::header_bytes;
use super::shards::ShardTable;
use crate::Sample;

/// Writer of an index whose number of samples is not known in advance. The header consists of zeros
/// until [`finish`](Self::finish) writes it, so that a partial file is not taken for an index.
///
/// Each call writes immediately: a [`BufWriter`](io::BufWriter) can join small writes.
#[derive(Debug)]
pub struct IndexWriter<W> {
    file: W,
    /// Position in the file at which the index begins.
    begin: u64,
    samples: u64,
}

impl<W: Write + Seek> IndexWriter<W> {
    /// Begins an index at the current position of the file. The file should end there: the
    /// remaining bytes of an older and longer index would make
    /// [`Index::parse`](super::Index::parse) fail.
    ///
    /// # Errors
    /// The first error of the file.
    pub fn new(mut file: W) -> io::Result<Self> {
        let begin = file.stream_position()?;
        file.write_all(&vec![0; header_bytes(0).len()])?;
        Ok(Self { file, begin, samples: 0 })
    }

    /// Appends samples. Their numbers continue those of earlier samples.
    ///
    /// # Errors
    /// The first error of the file. The index cannot be continued after it.
    pub fn append(&mut self, samples: &[Sample]) -> io::Result<()> {
        self.file.write_all(samples.as_bytes())?;
        self.samples += samples.len() as u64;
        Ok(())
    }

    /// Number of samples that were appended.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Writes the table of shards and the header. Returns the file, positioned at the end of the
    /// index.
    ///
    /// # Errors
    /// The first error of the file.
    pub fn finish_with(mut self, shards: &ShardTable) -> io::Result<W> {
        self.file.write_all(&shards.to_bytes()?)?;
        self.finish()
    }

    /// Writes the header of an index without a table of shards. Returns the file, positioned at the
    /// end of the index.
    ///
    /// # Errors
    /// The first error of the file.
    pub fn finish(mut self) -> io::Result<W> {
        let end = self.file.stream_position()?;
        self.file.seek(SeekFrom::Start(self.begin))?;
        self.file.write_all(&header_bytes(self.samples))?;
        self.file.seek(SeekFrom::Start(end))?;
        self.file.flush()?;
        Ok(self.file)
    }
}
