//! Tests that concern the crate as a whole.

mod authentication;
mod commands;
mod kernel_session;
mod range_lists;
mod structures;
mod values;
