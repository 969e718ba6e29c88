//! Files that contain a secret.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::secret::{InvalidSecret, Secret};

/// Longest file that is read, in bytes; a secret has at most 103.
const MAX_BYTES: u64 = 4096;
/// Permissions that a file must not have: writing by its group, and anything by everyone.
const FORBIDDEN_MODE: u32 = 0o027;

/// Error of reading a key file. The message names the file, the problem and what to do, and never
/// what the file contains.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}", path = .path.display(), problem = .problem.text(.path))]
pub struct KeyFileError {
    /// Path of the file.
    pub path: PathBuf,
    /// Problem with the file.
    pub problem: KeyFileProblem,
}

/// Problem with a key file.
#[derive(Debug)]
pub enum KeyFileProblem {
    /// There is no such file.
    Missing,
    /// The user may not read it.
    Denied,
    /// Reading failed for another reason.
    Unreadable(io::Error),
    /// The path leads to a folder, a socket or a device.
    NotAFile,
    /// The permissions allow too much.
    Exposed {
        /// Permissions of the file.
        mode: u32,
    },
    /// The file is too long for a key.
    TooLong,
    /// The file has more than one line.
    SeveralLines,
    /// The content is not a secret.
    Invalid(InvalidSecret),
}

impl KeyFileProblem {
    fn text(&self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Missing => {
                format!(
                    "no such key file: `(umask 077; feedrail gen-dhchap-key > {path})` makes one"
                )
            }
            Self::Denied => format!(
                "this user may not read the key file: run as its owner, or change the owner with \
                 `chown USER {path}`"
            ),
            Self::Unreadable(error) => format!("the key file cannot be read: {error}"),
            Self::NotAFile => {
                "this is not a regular file: name the file that contains the key".to_owned()
            }
            Self::Exposed { mode } => format!(
                "its mode {mode:04o} lets others use the key: run `chmod 600 {path}`, and make \
                 another key if somebody may have read it"
            ),
            Self::TooLong => {
                "it is too long for a key file, which has one line: DHHC-1:...".to_owned()
            }
            Self::SeveralLines => {
                "it has several lines: a key file has one key, so write each to a file of its own"
                    .to_owned()
            }
            Self::Invalid(invalid) => invalid.to_string(),
        }
    }
}

/// Reads a secret from a file that has it as its only line. Everyone else must not be able to read
/// the file, and only its owner to write it.
///
/// # Errors
/// [`KeyFileError`], which names the file.
pub fn read_key_file(path: &Path) -> Result<Secret, KeyFileError> {
    read_key_file_with(path, &|path| File::open(path))
}

/// Reads a secret as [`read_key_file`] does, from a regular file that `open` opens.
///
/// # Errors
/// [`KeyFileError`], which names the file.
pub fn read_key_file_with(
    path: &Path,
    open: &dyn Fn(&Path) -> io::Result<File>,
) -> Result<Secret, KeyFileError> {
    read(path, open).map_err(|problem| KeyFileError { path: path.to_owned(), problem })
}

fn read(path: &Path, open: &dyn Fn(&Path) -> io::Result<File>) -> Result<Secret, KeyFileProblem> {
    // A FIFO or a device is not opened.
    if !fs::metadata(path).map_err(problem_of)?.is_file() {
        return Err(KeyFileProblem::NotAFile);
    }
    let file = open(path).map_err(problem_of)?;
    let metadata = file.metadata().map_err(problem_of)?;
    let mode = metadata.permissions().mode() & 0o7777;
    if !metadata.is_file() {
        return Err(KeyFileProblem::NotAFile);
    }
    if mode & FORBIDDEN_MODE != 0 {
        return Err(KeyFileProblem::Exposed { mode });
    }
    // Allocated in full, so that no copy of the key is left behind when it grows.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES as usize + 1));
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(problem_of)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(KeyFileProblem::TooLong);
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| KeyFileProblem::Invalid(InvalidSecret::Prefix))?
        .trim();
    if text.contains('\n') {
        return Err(KeyFileProblem::SeveralLines);
    }
    text.parse().map_err(KeyFileProblem::Invalid)
}

fn problem_of(error: io::Error) -> KeyFileProblem {
    match error.kind() {
        io::ErrorKind::NotFound => KeyFileProblem::Missing,
        io::ErrorKind::PermissionDenied => KeyFileProblem::Denied,
        _ => KeyFileProblem::Unreadable(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    fn key_file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("host.key");
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its owner may");
        (folder, path)
    }

    #[test]
    fn a_key_may_end_with_a_newline() {
        for content in [KEY.to_owned(), format!("{KEY}\n"), format!("  {KEY}\r\n\n")] {
            for mode in [0o400, 0o600, 0o640, 0o440] {
                let (_folder, path) = key_file(content.as_bytes(), mode);
                let secret = read_key_file(&path).expect("a key file");
                assert_eq!(*secret.to_representation(), KEY, "{content:?}");
            }
        }
    }

    #[test]
    fn each_mistake_names_the_file_and_a_remedy() {
        let two = format!("{KEY}\n{KEY}\n");
        let cut = &KEY[..40];
        for (content, mode, words) in [
            (KEY.as_bytes(), 0o644, ["0644", "chmod 600"]),
            (KEY.as_bytes(), 0o620, ["0620", "chmod 600"]),
            (KEY.as_bytes(), 0o604, ["0604", "chmod 600"]),
            (KEY.as_bytes(), 0o601, ["0601", "chmod 600"]),
            (b"", 0o600, ["empty", "gen-dhchap-key"]),
            (b"\n", 0o600, ["empty", "gen-dhchap-key"]),
            (b"\xFF\xFE", 0o600, ["DHHC-1", "gen-dhchap-key"]),
            (two.as_bytes(), 0o600, ["several lines", "a file of its own"]),
            (&[b'a'; 5000], 0o600, ["too long", "one line"]),
            (cut.as_bytes(), 0o600, ["ends with a colon", "missing"]),
        ] {
            let (_folder, path) = key_file(content, mode);
            let message = read_key_file(&path).expect_err("a mistake").to_string();
            let name = path.display().to_string();
            for word in words.into_iter().chain([&name[..]]) {
                assert!(message.contains(word), "{word:?} in {message:?}");
            }
            assert!(!message.contains(&KEY[10..20]), "the key is in {message:?}");
        }
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |path: &Path| read_key_file(path).expect_err("no file").to_string();
        assert!(of(folder.path()).contains("not a regular file"));
        assert!(of(Path::new("/dev/null")).contains("not a regular file"));
        let missing = folder.path().join("host.key");
        assert!(of(&missing).contains("umask 077; feedrail gen-dhchap-key >"));
    }
}
