//! Opens files that this process may not open itself, by a helper process.
//!
//! The daemon sends a descriptor of a file that it has found but not opened (`O_PATH`), and flags.
//! The helper checks where the file lies, opens it and sends the descriptor back, so neither side
//! resolves a path twice.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg,
};
use rustix::process::{Pid, WaitOptions};

/// Longest answer: a number, and the reason of a refusal.
pub(crate) const ANSWER_BYTES: usize = 8192;
/// Number for a refusal by the helper, whose reason follows; all others are error numbers.
pub(crate) const REFUSED: i32 = -1;

/// The daemon's end of the socket to its helper.
#[derive(Debug)]
pub(crate) struct Opener {
    socket: Mutex<OwnedFd>,
    id: u32,
}

static OPENER: OnceLock<Opener> = OnceLock::new();

/// Opens what an `O_PATH` descriptor leads to; by the helper if this thread may not.
///
/// # Errors
/// Those of `open`, and that the helper refuses the path or has ended.
pub(crate) fn reopen(found: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    let found = found.as_fd();
    match (open_again(found, flags), OPENER.get()) {
        (Err(Errno::ACCESS), Some(opener)) => opener.open(found, flags),
        (opened, _) => Ok(opened?),
    }
}

/// Opens what a descriptor leads to, without help.
///
/// # Errors
/// The error of `open`, EACCES where this thread may not.
pub(crate) fn open_again(found: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path_of(found), flags | OFlags::CLOEXEC, Mode::empty())
}

/// Path through a descriptor of this process.
pub(crate) fn path_of(found: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", found.as_raw_fd())
}

/// Opens a file to read it, by the helper if this thread may not.
///
/// # Errors
/// Those of `open`, and that the helper refuses the file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && OPENER.get().is_some() => {
            let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            Ok(File::from(reopen(&found, OFlags::RDONLY)?))
        }
        opened => opened,
    }
}

/// Reads a text file such as the configuration, by the helper if this thread may not.
///
/// # Errors
/// Those of [`open`] and of reading, and that it is not UTF-8.
pub(crate) fn read_to_string(path: &Path) -> io::Result<String> {
    io::read_to_string(open(path)?)
}

impl Opener {
    /// Uses a helper with this end of its socket and this process id, from now on.
    pub(crate) fn install(socket: OwnedFd, id: u32) {
        let _ = OPENER.set(Self { socket: Mutex::new(socket), id });
    }

    /// Process id of the helper; `None` without one.
    pub(crate) fn id() -> Option<u32> {
        OPENER.get().map(|opener| opener.id)
    }

    /// Ends the helper, if there is one, and waits for it, but no longer than `timeout`: a helper
    /// that opens a file of a server without answer is left to end later.
    pub(crate) fn end(timeout: Duration) {
        let Some(opener) = OPENER.get() else { return };
        let Ok(socket) = opener.socket.try_lock() else { return };
        let is_closed = rustix::net::shutdown(&*socket, Shutdown::Write)
            .and_then(|()| set_socket_timeout(&*socket, Timeout::Recv, Some(timeout)))
            .and_then(|()| receive(&socket, &mut [0; ANSWER_BYTES]));
        if matches!(is_closed, Ok((0, _)) | Err(Errno::CONNRESET)) {
            let id = Pid::from_raw(opener.id.cast_signed());
            let _ = rustix::process::waitpid(id, WaitOptions::empty());
        }
    }

    fn open(&self, found: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
        let ended = |error| {
            io::Error::other(format!(
                "the process {} that opens files for this one has ended ({error}); restart the target",
                self.id
            ))
        };
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send(&socket, &flags.bits().to_ne_bytes(), Some(found)).map_err(ended)?;
        let mut bytes = [0; ANSWER_BYTES];
        let (count, opened) = receive(&socket, &mut bytes).map_err(ended)?;
        let Some((number, reason)) = bytes[..count].split_first_chunk() else {
            return Err(ended(Errno::PIPE));
        };
        match (i32::from_ne_bytes(*number), opened) {
            (0, Some(opened)) => Ok(opened),
            (REFUSED, _) => {
                let reason = String::from_utf8_lossy(reason).into_owned();
                Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
            }
            (number, _) => Err(io::Error::from_raw_os_error(number)),
        }
    }
}

/// Sends a message, with a descriptor.
///
/// # Errors
/// The error of `sendmsg`, EPIPE if the other process has ended.
pub(crate) fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    passed: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed: Vec<_> = passed.into_iter().collect();
    if !passed.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&passed));
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives a message, with its length and the descriptor that came along.
///
/// # Errors
/// The error of `recvmsg`; a process that has ended is a message of length 0.
pub(crate) fn receive(
    socket: &OwnedFd,
    bytes: &mut [u8],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let passed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, passed))
}
