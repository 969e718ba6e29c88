//! A pipe that takes nothing.

use std::io::{PipeReader, PipeWriter, Write as _};

use rustix::fs::{OFlags, fcntl_setfl};

/// A full pipe: a writer waits until it is read.
pub(super) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    fcntl_setfl(&writer, OFlags::NONBLOCK).expect("our own pipe");
    while writer.write(&[b'\n'; 4096]).is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).expect("our own pipe");
    (reader, writer)
}
