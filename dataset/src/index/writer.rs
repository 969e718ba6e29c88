//! Writing an index whose length is not known in advance.

use std::io::{self, Seek, SeekFrom, Write};

use zerocopy::IntoBytes;

use super::header::header_bytes;
use super::shards::ShardTable;
use crate::Sample;

/// Writes an index whose length is not known in advance. Until [`finish`](Self::finish) has written
/// the header there are zeros in its place, so that nobody takes a part for the whole.
///
/// Each call writes immediately: a [`BufWriter`](io::BufWriter) joins small ones.
#[derive(Debug)]
pub struct IndexWriter<W> {
    file: W,
    /// Where the index begins in the file.
    begin: u64,
    samples: u64,
}

impl<W: Write + Seek> IndexWriter<W> {
    /// Begins an index where the file's position is. The file should end there: bytes of an older
    /// and longer index would follow the new one, and [`Index::parse`](super::Index::parse)
    /// refuses that.
    ///
    /// # Errors
    /// Whatever the file reports.
    pub fn new(mut file: W) -> io::Result<Self> {
        let begin = file.stream_position()?;
        file.write_all(&vec![0; header_bytes(0).len()])?;
        Ok(Self { file, begin, samples: 0 })
    }

    /// Adds samples. Their numbers follow those of the samples before them.
    ///
    /// # Errors
    /// Whatever the file reports. The index cannot be continued then.
    pub fn append(&mut self, samples: &[Sample]) -> io::Result<()> {
        self.file.write_all(samples.as_bytes())?;
        self.samples += samples.len() as u64;
        Ok(())
    }

    /// How many samples were added so far.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Writes the table of shards and the header, and gives the file back, at the end of the index.
    ///
    /// # Errors
    /// Whatever the file reports.
    pub fn finish_with(mut self, shards: &ShardTable) -> io::Result<W> {
        self.file.write_all(&shards.to_bytes()?)?;
        self.finish()
    }

    /// Writes the header of an index without a table of shards, and gives the file back, at the end
    /// of the index.
    ///
    /// # Errors
    /// Whatever the file reports.
    pub fn finish(mut self) -> io::Result<W> {
        let end = self.file.stream_position()?;
        self.file.seek(SeekFrom::Start(self.begin))?;
        self.file.write_all(&header_bytes(self.samples))?;
        self.file.seek(SeekFrom::Start(end))?;
        self.file.flush()?;
        Ok(self.file)
    }
}
