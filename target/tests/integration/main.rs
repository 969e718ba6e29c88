//! Integration tests, in one program.

mod daemon;
mod kernel_session;
mod serving;
mod threads;
