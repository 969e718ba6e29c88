//! Tests that concern the crate as a whole.

mod commands;
mod kernel_session;
mod structures;
mod values;
