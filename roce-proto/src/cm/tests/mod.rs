//! Tests of the connection manager.

mod flood;
mod forgeries;
mod messages;
mod pair;
mod simulation;
mod states;
