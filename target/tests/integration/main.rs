//! Integration tests, in one program.

mod daemon;
mod kernel_session;
mod key_files;
mod serving;
mod threads;
