//! Output file that gets its name only when it is complete.

use std::fs::{self, File, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

/// Destination of the output until it is complete.
pub(crate) enum PartialFile {
    /// Temporary file in the folder of a regular file or a free name, deleted on drop.
    Beside { file: NamedTempFile, path: PathBuf },
    /// A device, FIFO or the like, which is written directly, since it cannot be replaced by a
    /// rename.
    Direct(File),
}

impl PartialFile {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let context = || format!("cannot write {}", path.display());
        // A symbolic link is kept: the file that it points to is replaced.
        let path = match fs::canonicalize(path) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error).with_context(context),
        };
        let replaced = fs::metadata(&path).ok();
        if replaced.as_ref().is_some_and(|metadata| !metadata.is_file()) {
            return Ok(Self::Direct(
                File::options().write(true).open(&path).with_context(context)?,
            ));
        }
        // A file that this user may not write is not replaced either.
        if replaced.is_some() {
            File::options().append(true).open(&path).with_context(context)?;
        }
        let mode = replaced.map_or(0o666, |metadata| metadata.permissions().mode() & 0o777);
        let name = path.file_name().with_context(context)?.to_string_lossy().into_owned();
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let file = tempfile::Builder::new()
            .prefix(&format!(".{name}."))
            .suffix(".part")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .with_context(context)?;
        Ok(Self::Beside { file, path })
    }

    /// Renames the complete file to its final name.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Direct(_) => {}
            Self::Beside { file, path } => _ = file.persist(path)?,
        }
        Ok(())
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Beside { file, .. } => file.write(bytes),
            Self::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Beside { file, .. } => file.flush(),
            Self::Direct(file) => file.flush(),
        }
    }
}

impl Seek for PartialFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::Beside { file, .. } => file.seek(to),
            Self::Direct(file) => file.seek(to),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn an_unfinished_file_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");
        fs::write(&path, "old").unwrap();
        let mut partial = PartialFile::create(&path).unwrap();
        partial.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(partial);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), 1);
    }

    #[test]
    fn a_finished_file_keeps_mode_and_symbolic_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("copy"), folder.path().join("link"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        let mut partial = PartialFile::create(&link).unwrap();
        partial.write_all(b"new").unwrap();
        partial.finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(names(folder.path()), 2);
    }

    #[test]
    fn a_device_is_written_directly() {
        let mut partial = PartialFile::create(Path::new("/dev/null")).unwrap();
        partial.write_all(b"bytes").unwrap();
        partial.finish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
