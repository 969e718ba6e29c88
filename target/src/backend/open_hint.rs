//! Remedies for files and devices that cannot be opened.

use std::io;

/// Remedy to append to the text of an error; empty if none is known.
pub(super) fn open_hint(error: &io::Error) -> &'static str {
    // systemd sets this variable for each start of a service.
    hint_for(error, std::env::var_os("INVOCATION_ID").is_some())
}

fn hint_for(error: &io::Error, is_service: bool) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied if is_service => {
            ": the user of the service must be allowed to open it, and for a device also DeviceAllow= with rw, for \
             a file that hosts write ReadWritePaths=, in [Service] of `systemctl edit feedrail-target`"
        }
        io::ErrorKind::ReadOnlyFilesystem if is_service => {
            ": the service may write where ReadWritePaths= in [Service] of `systemctl edit feedrail-target` says; or \
             it can be exported read-only"
        }
        io::ErrorKind::PermissionDenied => {
            ": the user who runs the target must be allowed to open it"
        }
        io::ErrorKind::ReadOnlyFilesystem => ": it can be exported read-only",
        _ if error.raw_os_error() == Some(libc::ELOOP) => {
            ": a symlink took its place, or one of its folders', while it was looked at"
        }
        _ if error.raw_os_error() == Some(libc::EMFILE) => {
            ": raise the limit of open files with LimitNOFILE= of the service or `ulimit -Hn`"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_told_what_its_unit_has_to_say() {
        for (errno, word) in [
            (libc::EROFS, "ReadWritePaths="),
            (libc::EACCES, "ReadWritePaths="),
            (libc::EPERM, "DeviceAllow="),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            assert!(hint_for(&error, true).contains(word), "{error}");
            assert!(!hint_for(&error, false).contains(word), "{error}");
            assert_ne!(hint_for(&error, false), "", "{error}");
        }
    }
}
