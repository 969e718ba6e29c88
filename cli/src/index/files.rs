//! The files that `feedrail index` writes.

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use feedrail_dataset::formats::KeyedSample;
use feedrail_dataset::index::{IndexWriter, SampleKeys, ShardTable};

use crate::partial_file::PartialFile;

/// Index being written, and the keys of its samples if `--keys` requests them.
pub(super) struct IndexFiles {
    path: PathBuf,
    index: IndexWriter<BufWriter<PartialFile>>,
    keys: Option<KeysFile>,
}

/// File of keys, which stay in memory until all of them are known.
struct KeysFile {
    path: PathBuf,
    file: PartialFile,
    keys: SampleKeys,
}

impl IndexFiles {
    pub(super) fn create(path: &Path, keys: Option<&Path>) -> Result<Self> {
        let index = IndexWriter::new(BufWriter::new(PartialFile::create(path)?));
        let index = index.with_context(|| cannot_write(path))?;
        let keys = keys.map(|path| {
            let (path, file) = (path.to_owned(), PartialFile::create(path)?);
            anyhow::Ok(KeysFile { path, file, keys: SampleKeys::default() })
        });
        Ok(Self { path: path.to_owned(), index, keys: keys.transpose()? })
    }

    pub(super) fn append(&mut self, sample: &KeyedSample) -> Result<()> {
        if let Some(KeysFile { keys, .. }) = &mut self.keys {
            keys.append(sample);
        }
        self.index.append(&[sample.sample]).with_context(|| cannot_write(&self.path))
    }

    /// Completes the files and renames them to their final names.
    pub(super) fn finish(self, shards: &ShardTable) -> Result<()> {
        let written = match self.keys {
            Some(KeysFile { path, file, keys }) => {
                let file = keys.write(BufWriter::new(file)).map(BufWriter::into_inner);
                let file = file.with_context(|| cannot_write(&path))?;
                Some((file.map_err(|error| error.into_error()), path))
            }
            None => None,
        };
        let index = self.index.finish_with(shards).with_context(|| cannot_write(&self.path))?;
        let index = index.into_inner().map_err(|error| error.into_error());
        index.and_then(PartialFile::finish).with_context(|| cannot_write(&self.path))?;
        if let Some((keys, path)) = written {
            keys.and_then(PartialFile::finish).with_context(|| cannot_write(&path))?;
        }
        Ok(())
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
