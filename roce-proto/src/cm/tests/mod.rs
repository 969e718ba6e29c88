//! Tests of the connection manager.

mod flood;
mod messages;
mod pair;
mod simulation;
mod states;
mod strangers;
