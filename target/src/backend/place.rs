//! Paths of files and devices. A path is resolved once to an `O_PATH` descriptor, through which the
//! file is examined and opened as often as needed; later changes of the path have no effect.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use rustix::io::Errno;

use super::{block, claim};
use crate::confinement::reopen;

/// Attempts to open a file that another process has leased (`fcntl(2)`, `F_SETLEASE`), 10 ms apart
/// (10 s in all). Another target gives back a lease within a second or two.
const TRIES: u32 = 1000;
/// Attempts for a file of a served directory (1 s in all), where a user could lease many files,
/// and each delays the next.
const TRIES_IN_DIRECTORY: u32 = 100;

/// A path, and the directory that it must not lead out of even if its entries change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilePlace<'a> {
    /// Path of the file or device.
    pub path: &'a Path,
    /// Real path of the directory; `None` for a file that an operator named, whose symlinks are
    /// followed.
    pub root: Option<&'a Path>,
}

impl<'a> FilePlace<'a> {
    /// Path that an operator named, which may lead anywhere.
    pub(crate) fn named(path: &'a Path) -> Self {
        Self { path, root: None }
    }

    /// Resolves the path without opening the file.
    ///
    /// # Errors
    /// No file exists there, or the path leads through a symlink in the directory.
    pub(crate) fn find(self) -> io::Result<FoundFile> {
        let Some(root) = self.root else {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let found = rustix::fs::open(self.path, flags, Mode::empty())?;
            return Ok(FoundFile { handle: found.into(), tries: TRIES });
        };
        let relative = self.path.strip_prefix(root).map_err(|_| Errno::XDEV)?;
        ServedRoot::at(root.to_owned())?.find(relative)
    }
}

/// A file, device or folder found at a path, with an `O_PATH` descriptor.
#[derive(Debug)]
pub(crate) struct FoundFile {
    handle: File,
    tries: u32,
}

impl FoundFile {
    /// File type, size and device from `fstat`.
    ///
    /// # Errors
    /// The error of `fstat`.
    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        self.handle.metadata()
    }

    /// Length of a file or block device in bytes. Opens a device to find it.
    ///
    /// # Errors
    /// The file system does not report it, or the device cannot be opened.
    pub(crate) fn size_bytes(&self) -> io::Result<u64> {
        let metadata = self.metadata()?;
        match metadata.file_type().is_block_device() {
            true => block::size_bytes(&self.open(false, libc::O_NONBLOCK)?),
            false => Ok(metadata.len()),
        }
    }

    /// Opens the found file, even if its path leads to another file by now.
    ///
    /// # Errors
    /// The file cannot be opened with this access, or another process does not give back its lease.
    pub(super) fn open(&self, writable: bool, flags: i32) -> io::Result<File> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::from_bits_retain(flags.cast_unsigned());
        if !self.metadata()?.is_file() {
            return Ok(reopen(&self.handle, flags)?.into());
        }
        let flags = flags | OFlags::NONBLOCK;
        for _ in 1..self.tries {
            match reopen(&self.handle, flags) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => claim::pause(),
                opened => return blocking(opened?.into()),
            }
        }
        blocking(reopen(&self.handle, flags)?.into())
    }
}

/// Clears `O_NONBLOCK`, with which io_uring would fail reads that have to wait.
fn blocking(file: File) -> io::Result<File> {
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// A directory whose files are opened relative to its descriptor. Symlinks below it are not
/// followed, so users who may change its entries cannot lead out of it.
#[derive(Debug)]
pub(crate) struct ServedRoot {
    path: PathBuf,
    handle: OwnedFd,
}

impl ServedRoot {
    /// Opens a directory that an operator named, following symlinks.
    ///
    /// # Errors
    /// It does not exist or is no directory.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::at(path.canonicalize()?)
    }

    /// Opens the directory at a path without symlinks.
    fn at(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let handle = openat2(CWD, &path, flags, Mode::empty(), resolve)?;
        Ok(Self { path, handle })
    }

    /// Path of the directory, with symlinks resolved.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Finds a file in the directory or its folders by a relative path.
    ///
    /// # Errors
    /// It does not exist, or the path leads through a symlink or out of the directory.
    pub(crate) fn find(&self, relative: &Path) -> io::Result<FoundFile> {
        let handle = self.open_beneath(relative, OFlags::PATH)?.into();
        Ok(FoundFile { handle, tries: TRIES_IN_DIRECTORY })
    }

    /// Opens a folder in the directory, or the directory itself for the empty path.
    ///
    /// # Errors
    /// It does not exist, cannot be read, or the path leads through a symlink.
    pub(crate) fn folder(&self, relative: &Path) -> io::Result<ServedFolder> {
        let found = self.open_beneath(relative, OFlags::PATH | OFlags::DIRECTORY)?;
        let handle = reopen(&found, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(ServedFolder { relative: relative.to_owned(), handle })
    }

    fn open_beneath(&self, relative: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&self.handle, relative, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
    }
}

/// An open folder of a served directory.
#[derive(Debug)]
pub(crate) struct ServedFolder {
    relative: PathBuf,
    handle: OwnedFd,
}

#[derive(Debug)]
pub(crate) struct FolderEntry {
    /// Path relative to the directory.
    pub relative: PathBuf,
    /// File type and size in bytes, if the entry can be examined.
    pub kind: Option<(FileType, u64)>,
}

impl FolderEntry {
    /// Whether the entry is a folder whose name does not start with a dot.
    pub(crate) fn is_visible_folder(&self) -> bool {
        let name = self.relative.file_name();
        let visible = name.is_some_and(|name| !name.as_bytes().starts_with(b"."));
        visible && matches!(self.kind, Some((FileType::Directory, _)))
    }
}

impl ServedFolder {
    /// Reads all entries except `.` and `..`. Symlinks are not followed.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn entries(&self) -> io::Result<Vec<FolderEntry>> {
        let mut entries = Vec::new();
        // Reads from the descriptor itself: nothing is opened again.
        let mut folder = Dir::new(self.handle.try_clone()?)?;
        folder.rewind();
        for entry in folder {
            let name = entry?.file_name().to_owned();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let status = statat(&self.handle, &name, AtFlags::SYMLINK_NOFOLLOW).ok();
            let kind = status.map(|status| {
                (
                    FileType::from_raw_mode(status.st_mode),
                    u64::try_from(status.st_size).unwrap_or(0),
                )
            });
            let name = OsString::from_vec(name.into_bytes());
            entries.push(FolderEntry { relative: self.relative.join(name), kind });
        }
        Ok(entries)
    }

    /// Path through the descriptor (`/proc/self/fd`), which leads to this folder while it is open.
    pub(crate) fn pinned_path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.handle.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory `d` with files and symlinks of all kinds, and a secret outside it.
    fn served() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().canonicalize().expect("real");
        let root = path.join("d");
        fs::create_dir_all(root.join("sub")).expect("made");
        fs::write(path.join("secret"), "secret").expect("written");
        fs::write(root.join("sub/file"), "file").expect("written");
        symlink(path.join("secret"), root.join("absolute")).expect("linked");
        symlink("../secret", root.join("relative")).expect("linked");
        symlink("..", root.join("up")).expect("linked");
        symlink("sub/file", root.join("inside")).expect("linked");
        symlink("/proc/self/cwd", root.join("magic")).expect("linked");
        (folder, root)
    }

    #[test]
    fn nothing_leads_out_of_a_directory() {
        let (_folder, root) = served();
        let find = |name: &str| FilePlace { path: &root.join(name), root: Some(&root) }.find();
        assert!(find("sub/file").expect("there").metadata().expect("known").is_file());
        for name in ["absolute", "relative", "up/secret", "inside", "magic/x", "../secret", "none"]
        {
            assert!(find(name).is_err(), "{name}");
        }
        let beside = root.parent().expect("a parent").join("secret");
        assert!(FilePlace { path: &beside, root: Some(&root) }.find().is_err());
        assert!(FilePlace::named(&root.join("relative")).find().is_ok(), "an operator named it");

        let root = ServedRoot::open(&root).expect("there");
        assert!(root.folder(Path::new("sub")).is_ok());
        for name in ["up", "magic", "sub/../..", "sub/file"] {
            assert!(root.folder(Path::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn what_was_found_is_opened_though_its_path_changes() {
        let (_folder, root) = served();
        let path = root.join("sub/file");
        let found = FilePlace { path: &path, root: Some(&root) }.find().expect("there");
        fs::remove_file(&path).expect("removed");
        symlink(root.join("../secret"), &path).expect("linked");
        for _ in 0..2 {
            let mut text = String::new();
            found.open(true, 0).expect("opened").read_to_string(&mut text).expect("read");
            assert_eq!(text, "file");
        }
    }

    #[test]
    fn files_are_opened_to_wait_for_their_medium() {
        let (_folder, root) = served();
        let found = FilePlace::named(&root.join("sub/file")).find().expect("there");
        let file = found.open(false, 0).expect("opened");
        assert!(!rustix::fs::fcntl_getfl(&file).expect("known").contains(OFlags::NONBLOCK));
    }
}
