//! Files in the state folder: state of a subsystem that is kept across restarts. Each file is one
//! JSON document, replaced atomically.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nvme_proto::Nqn;
use rustix::fs::Access;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;

/// Content of a kind of state file (NSIDs or write protections).
pub(crate) trait KeptState: Serialize + DeserializeOwned {
    /// Words for the content in error messages.
    const WHAT: &'static str;
    /// Advice in the error message for a damaged file.
    const IF_DAMAGED: &'static str;
    /// Version of the format that is written. All versions from 1 up to it can be read.
    const VERSION: u32;

    /// Returns the version of a document and the NQN of its subsystem.
    fn header(&self) -> (u32, &str);

    /// Checks the consistency of a document that was read.
    ///
    /// # Errors
    /// Description of the inconsistency.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Error of a state file; its message has the path, the reason and the remedy.
#[derive(Debug)]
pub struct StateError {
    /// Path of the state file.
    pub path: PathBuf,
    /// Reason that reading or writing failed.
    pub problem: Problem,
    what: &'static str,
    to_do: &'static str,
}

/// Kind of failure of a state file, with its cause.
#[derive(Debug)]
pub enum Problem {
    /// Opening or reading the file failed, or it is no regular file.
    Unreadable(io::Error),
    /// The file is not valid, has an unknown version, or belongs to another subsystem.
    Damaged(String),
    /// Writing or replacing the file failed.
    Unwritable(io::Error),
}

impl StateError {
    fn new<C: KeptState>(path: &Path, problem: Problem) -> Self {
        let to_do = match problem {
            Problem::Unreadable(_) => "let the target read the file",
            Problem::Damaged(_) => C::IF_DAMAGED,
            Problem::Unwritable(_) => "set state_dir to a folder that can be written",
        };
        Self { path: path.to_owned(), problem, what: C::WHAT, to_do }
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, what, to_do) = (self.path.display(), self.what, self.to_do);
        match &self.problem {
            Problem::Unreadable(error) => {
                write!(f, "{path}: cannot read {what} ({error}); {to_do}")
            }
            Problem::Damaged(reason) => {
                write!(f, "{path}: cannot understand {what} ({reason}); {to_do}")
            }
            Problem::Unwritable(error) => {
                write!(f, "{path}: cannot keep {what} ({error}); {to_do}")
            }
        }
    }
}

impl std::error::Error for StateError {}

/// Reads a subsystem's state file; `None` if there is no file.
pub(crate) fn read<C: KeptState>(path: &Path, nqn: &Nqn) -> Result<Option<C>, StateError> {
    let bytes = match read_regular(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StateError::new::<C>(path, Problem::Unreadable(error))),
    };
    let damaged = |reason| StateError::new::<C>(path, Problem::Damaged(reason));
    let content: C = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    check_header(&content, nqn).and_then(|()| content.check()).map_err(damaged)?;
    Ok(Some(content))
}

/// Whether the folder has a state file (`*.json`) of any subsystem.
pub(crate) fn has_any(state_dir: &Path) -> bool {
    let entries = std::fs::read_dir(state_dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|end| end == "json"))
}

fn check_header<C: KeptState>(content: &C, nqn: &Nqn) -> Result<(), String> {
    let (version, of) = content.header();
    if !(1..=C::VERSION).contains(&version) {
        return Err(format!("version {version}, not 1 to {}", C::VERSION));
    }
    if of != nqn.as_str() {
        return Err(format!("it belongs to the subsystem {of}"));
    }
    Ok(())
}

/// Reads a file that only the target writes. It must be a regular file: opening fails for a
/// symlink, and does not block on a FIFO.
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = File::options().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() {
        let kind = if kind.is_dir() { "a folder" } else { "a device, FIFO or socket" };
        return Err(io::Error::other(format!("it is {kind}, not a regular file")));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces a file atomically: writes and syncs a temporary file in the same folder, then renames
/// it.
pub(crate) fn replace<C: KeptState>(path: &Path, content: &C) -> Result<(), StateError> {
    try_replace(path, content)
        .map_err(|error| StateError::new::<C>(path, Problem::Unwritable(error)))
}

fn try_replace(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let folder = folder_of(path);
    std::fs::create_dir_all(folder)?;
    // The temporary file is deleted when dropped, unless it was renamed.
    let mut file = NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, content)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(folder)?.sync_all()
}

/// Checks whether [`replace`] would succeed, without writing.
pub(crate) fn check_replace<C: KeptState>(path: &Path) -> Result<(), StateError> {
    check_folder(folder_of(path))
        .map_err(|error| StateError::new::<C>(path, Problem::Unwritable(error)))
}

/// Checks that a folder can be written, or created in a writable parent.
fn check_folder(folder: &Path) -> io::Result<()> {
    let existing = folder.ancestors().find(|folder| folder.symlink_metadata().is_ok());
    let existing = match existing {
        Some(existing) => existing,
        // No component of a relative path exists; it would be created in the working directory.
        None => Path::new("."),
    };
    if !std::fs::metadata(existing)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(rustix::fs::access(existing, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Folder of a file; `.` for a bare file name, since an empty path cannot be opened.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Number {
        version: u32,
        nqn: String,
        number: u32,
    }

    impl KeptState for Number {
        const WHAT: &'static str = "a number";
        const IF_DAMAGED: &'static str = "delete the file";
        const VERSION: u32 = 2;

        fn header(&self) -> (u32, &str) {
            (self.version, &self.nqn)
        }

        fn check(&self) -> Result<(), String> {
            if self.number == 0 { Err("it is zero".into()) } else { Ok(()) }
        }
    }

    fn number(number: u32) -> Number {
        Number { version: 2, nqn: nqn().to_string(), number }
    }

    fn nqn() -> Nqn {
        Nqn::new("nqn.2026-01.io.feedrail:t").expect("valid")
    }

    #[test]
    fn written_content_is_read_back() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("new").join("file");
        assert_eq!(read::<Number>(&path, &nqn()).expect("no file"), None);
        for content in [number(1), number(2)] {
            replace(&path, &content).expect("written");
            assert_eq!(read(&path, &nqn()).expect("read"), Some(content));
        }
    }

    #[test]
    fn errors_name_file_cause_and_remedy() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        let text = |error: StateError| {
            let text = error.to_string();
            text.strip_prefix(path.to_str().expect("UTF-8")).expect("the path").to_owned()
        };
        replace(&path, &number(0)).expect("written");
        assert_eq!(
            text(read::<Number>(&path, &nqn()).expect_err("zero")),
            ": cannot understand a number (it is zero); delete the file"
        );
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("a folder in the way");
        assert_eq!(
            text(read::<Number>(&path, &nqn()).expect_err("a folder")),
            ": cannot read a number (it is a folder, not a regular file); let the target read the file"
        );
        assert_eq!(
            text(replace(&path, &number(1)).expect_err("a folder")),
            ": cannot keep a number (Is a directory (os error 21)); \
             set state_dir to a folder that can be written"
        );
        let left = std::fs::read_dir(dir.path()).expect("read").count();
        assert_eq!(left, 1, "only the folder that is in the way");
    }

    #[test]
    fn nothing_else_is_read_in_the_place_of_a_state_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let [kept, link, fifo] = ["kept", "link", "fifo"].map(|name| dir.path().join(name));
        replace(&kept, &number(1)).expect("written");
        std::os::unix::fs::symlink(&kept, &link).expect("linked");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .expect("made");
        for path in [&link, &fifo] {
            let error = read::<Number>(path, &nqn()).expect_err("no regular file");
            assert!(matches!(error.problem, Problem::Unreadable(_)), "{error}");
        }
        replace(&link, &number(2)).expect("the link is replaced, and not what it leads to");
        assert_eq!(read(&kept, &nqn()).expect("read"), Some(number(1)));
        assert_eq!(read(&link, &nqn()).expect("read"), Some(number(2)));
    }

    #[test]
    fn documents_of_others_are_refused() {
        assert!(check_header(&Number { version: 1, ..number(1) }, &nqn()).is_ok());
        assert!(check_header(&number(1), &nqn()).is_ok());
        for version in [0, 3] {
            assert!(check_header(&Number { version, ..number(1) }, &nqn()).is_err());
        }
        let nqn_of_another = "nqn.2026-01.io.feedrail:u".to_owned();
        assert!(check_header(&Number { nqn: nqn_of_another, ..number(1) }, &nqn()).is_err());
    }

    #[test]
    fn a_bare_file_name_is_in_the_working_directory() {
        assert_eq!(folder_of(Path::new("file")), Path::new("."));
        assert_eq!(folder_of(Path::new("state/file")), Path::new("state"));
        assert_eq!(folder_of(Path::new("/file")), Path::new("/"));
    }
}
