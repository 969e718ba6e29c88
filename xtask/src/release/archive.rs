//! Reproducible tar archives in memory: entries are sorted, with equal times, and owned by root.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

/// Entries of a tar archive by path.
#[derive(Default)]
pub(crate) struct Archive {
    entries: BTreeMap<String, ArchiveEntry>,
    seconds: u64,
}

struct ArchiveEntry {
    mode: u32,
    owner: u64,
    content: EntryContent,
}

enum EntryContent {
    Folder,
    File(Vec<u8>),
}

impl Archive {
    /// Creates an archive whose entries have this modification time, in seconds since 1970.
    pub(crate) fn new(seconds: u64) -> Self {
        Self { entries: BTreeMap::new(), seconds }
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) {
        let content = EntryContent::File(bytes.into());
        self.entries.insert(path.to_owned(), ArchiveEntry { mode, owner: 0, content });
    }

    /// Adds a folder with an owner other than root. Other folders need no entry.
    pub(crate) fn folder(&mut self, path: &str, mode: u32, owner: u64) {
        self.entries
            .insert(path.to_owned(), ArchiveEntry { mode, owner, content: EntryContent::Folder });
    }

    pub(crate) fn to_tar(&self) -> Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = Header::new_gnu();
            header.set_mode(entry.mode);
            header.set_uid(entry.owner);
            header.set_gid(entry.owner);
            header.set_mtime(self.seconds);
            let bytes: &[u8] = match &entry.content {
                EntryContent::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    &[]
                }
                EntryContent::File(bytes) => bytes,
            };
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, path, bytes)?;
        }
        Ok(builder.into_inner()?)
    }

    pub(crate) fn to_tar_gz(&self) -> Result<Vec<u8>> {
        compress(&self.to_tar()?)
    }
}

/// Compresses with gzip, without a time stamp, so that the result is reproducible.
pub(crate) fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_the_same_bytes_in_any_order() {
        let mut one = Archive::new(7);
        one.file("b/file", 0o644, "text");
        one.folder("a", 0o750, 999);
        let mut other = Archive::new(7);
        other.folder("a", 0o750, 999);
        other.file("b/file", 0o644, "text");
        assert_eq!(one.to_tar_gz().unwrap(), other.to_tar_gz().unwrap());

        let tar = one.to_tar().unwrap();
        let mut archive = tar::Archive::new(&*tar);
        let entries: Vec<_> = archive.entries().unwrap().map(Result::unwrap).collect();
        let paths: Vec<_> =
            entries.iter().map(|entry| entry.path().unwrap().into_owned()).collect();
        assert_eq!(paths, ["a", "b/file"].map(std::path::PathBuf::from));
        let header = entries[0].header();
        assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (999, 7));
    }
}
